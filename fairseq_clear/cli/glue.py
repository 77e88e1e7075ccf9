"""``fairseq-clear glue``: fine-tunes and evaluates a checkpoint on GLUE."""

import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from fairseq_clear.cli.flags import TOKENIZER_HELP, Command, choose_tokenizer, publish
from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.glue.glue_tasks import GLUE_TASKS, RECIPES, metric_of, read_examples
from fairseq_clear.evaluation.reports import check_seeds
from fairseq_clear.files import check_output_file, hash_file, read_json, write_errors, write_whole
from fairseq_clear.settings import setting
from fairseq_clear.text.data_folders import data_folders


@dataclass(kw_only=True)
class Tasks(Command):
    """Flags of the commands that read GLUE's files."""

    glue_dir: Path = setting("GLUE's folder, with a folder per task", metavar="DIR")
    tasks: tuple[str, ...] = setting("tasks to read", choices=tuple(GLUE_TASKS))
    overwrite: bool = setting("replace existing output", False)


@dataclass(kw_only=True)
class Text(Tasks):
    """Write the training texts of GLUE's tasks, without labels, as text files for fairseq-clear prepare.

    The two texts of a pair are two documents.
    """

    dest: Path = setting("folder to write TASK.txt to", Path("glue-text"), metavar="DIR")

    def run(self) -> int:
        """Write a file for each task."""
        paths = {name: self.dest / f"{name}.txt" for name in self.tasks}
        for path in filter(Path.exists, paths.values()):
            check_output_file(path, self.overwrite, flag="--dest")
        found = {name: read_examples(self.glue_dir, GLUE_TASKS[name], "train") for name in self.tasks}
        with write_errors(self.dest, "--dest"):
            self.dest.mkdir(parents=True, exist_ok=True)
        for name, path in paths.items():
            columns, _, dropped = found[name]
            cleaned = (re.sub(r"[\0\r]", " ", text).strip() for row in zip(*columns, strict=True) for text in row)
            texts = list(filter(None, cleaned))
            with write_errors(path, "--dest"), write_whole(path) as stream:
                stream.write("\n\n".join(texts).encode() + b"\n")
            print(f"{name}: {len(texts):,} texts, {dropped:,} malformed lines dropped; wrote {path}")
        return 0


@dataclass(kw_only=True)
class PrepareTasks(Tasks):
    """Turn GLUE's tsv files into the folders that sentence_prediction reads, with the checkpoint's vocabulary."""

    data_bin: str = setting("folder with the dict.txt and tokenizer of the checkpoint", metavar="DIR")
    tokenizer: str | None = setting(TOKENIZER_HELP, None)
    max_length: int = setting(
        "maximum tokens, special ones included (CERT: 128); longer pairs lose the end of the longer text", 512, least=4
    )
    dest: Path = setting("folder to write the tasks' folders to", Path("glue-bin"), metavar="DIR")

    def run(self) -> int:
        """Write a folder for each task."""
        from fairseq_clear.evaluation.glue.glue_running import prepare_task

        folder = data_folders(self.data_bin)[0]
        tokenizer = choose_tokenizer(self.tokenizer, folder)
        options: Any = {"max_length": self.max_length, "overwrite": self.overwrite}
        for name in dict.fromkeys(self.tasks):
            splits = prepare_task(GLUE_TASKS[name], self.glue_dir, folder, self.dest, tokenizer, **options)
            for split, counts in splits.items():
                print(f"{name} {split}: {', '.join(f'{key} {number:,}' for key, number in counts.items())}")
        return 0


@dataclass(kw_only=True)
class Run(Command):
    """Fine-tune a checkpoint on every task, with several seeds and a paper's hyper-parameters.

    Reports the median and the best dev score over the seeds. A run that was stopped resumes, a finished one is kept.
    """

    checkpoint: Path = setting("checkpoint of clear_roberta or roberta")
    data: Path = setting("output folder of glue prepare", metavar="DIR")
    recipe: str = setting(
        "clear: RoBERTa's hyper-parameters, as in CLEAR 4.2; cert: CERT's, section 5.2; both are listed in "
        "fairseq_clear/evaluation/glue/glue_tasks.py",
        choices=tuple(RECIPES),
    )
    tasks: tuple[str, ...] = setting("tasks to fine-tune on", choices=tuple(GLUE_TASKS))
    seeds: tuple[int, ...] = setting("seeds, each a run of every task", (1, 2, 3, 4, 5))
    output: Path = setting("folder of the runs and the report", Path("glue-runs"), metavar="DIR")
    label: str | None = setting("name of the rows in the table (default: the checkpoint's name)", None, metavar="TEXT")
    device: str | None = setting("(default: cuda if available)", None, choices=("cpu", "cuda"))
    precision: str = setting("precision of training", "float32", choices=("float32", "fp16", "bf16"))
    lr: float | None = setting("peak learning rate (default: the recipe's)", None, above=0)
    batch_size: int | None = setting("examples per update (default: the recipe's)", None, least=1)
    epochs: int | None = setting("passes over the training split (default: the recipe's)", None, least=1)

    def run(self) -> int:
        """Check all runs, run them one after another, and print and write the report."""
        from fairseq_clear.distributed import choose_device
        from fairseq_clear.evaluation.checkpoints import load_model
        from fairseq_clear.evaluation.glue.glue_running import GLUE_JSON, GlueRun, build_report

        check_seeds(self.seeds)
        given = {name: value for name in ("lr", "batch_size", "epochs") if (value := getattr(self, name)) is not None}
        remedies = {name: f"run fairseq-clear glue prepare --tasks {name} --dest {self.data}" for name in self.tasks}
        records = {name: read_json(self.data / name / GLUE_JSON, remedy, dict) for name, remedy in remedies.items()}
        loaded = load_model(self.checkpoint, self.data / self.tasks[0] / "input0")
        if loaded.architecture == "clear_hf":
            raise UserError(
                f"{self.checkpoint}: is a clear_hf checkpoint, which glue does not fine-tune; export it, and use transformers"
            )
        device = choose_device(self.device).type
        if self.precision == "fp16" and device == "cpu":
            raise UserError("--precision fp16: needs a GPU; give bf16, or leave it out")
        start: Any = (self.checkpoint, hash_file(self.checkpoint), loaded, device, self.precision)
        runs, results = [], []
        for name, record in records.items():
            settings, folder = replace(RECIPES[self.recipe][name], **given), self.output / name
            data = (GLUE_TASKS[name], self.data / name, record)
            runs += [GlueRun(*data, seed, settings, folder / f"seed{seed}", *start) for seed in self.seeds]
        for run in runs:
            run.check()
        for run in runs:
            result, metric = run.run(), metric_of(self.recipe, run.task.name)
            results.append(result)
            score = f"{metric} {result['metrics']['valid'].get(metric, 0.0):.1f}, epoch {result['epoch']}"
            print(f"{run.task.name} seed {run.seed}: {score}", file=sys.stderr)
        output = self.output / "report.json"
        publish(build_report(runs, results, self.recipe, self.label or self.checkpoint.stem), output)
        print(f"wrote {output}", file=sys.stderr)
        return 0


@dataclass(kw_only=True)
class Glue(Command):
    """Fine-tune a checkpoint on GLUE's tasks with fairseq's own sentence_prediction task, and score it on the dev sets."""

    EXAMPLES: ClassVar[str] = """
fairseq-clear glue text --glue-dir glue_data --tasks CoLA RTE --dest texts    # texts/CoLA.txt, texts/RTE.txt
fairseq-clear glue prepare --glue-dir glue_data --data-bin data-bin --dest glue-bin --tasks CoLA RTE
fairseq-clear glue prepare ... --tasks QQP --max-length 128
fairseq-clear glue run --checkpoint checkpoint_best.pt --data glue-bin --recipe clear --tasks CoLA RTE --output runs
fairseq-clear glue run ... --seeds 1 2 3 --epochs 3 --lr 3e-4 --precision fp16 --label tiny"""
    STEPS = {
        "text": (Text, "write GLUE's texts as text files for fairseq-clear prepare"),
        "prepare": (PrepareTasks, "convert GLUE's files to folders for fairseq-train"),
        "run": (Run, "fine-tune with several seeds"),
    }
