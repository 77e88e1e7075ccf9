"""``fairseq-clear glue``: fine-tunes and evaluates a checkpoint on GLUE."""

import argparse
import shlex
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from fairseq_clear.cli.flags import TOKENIZER_HELP, Command, add_flags, choose_tokenizer, given_flags, read_flags
from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.glue.glue_recipes import FineTuning, headline
from fairseq_clear.files import check_output_file, hash_file, write_errors
from fairseq_clear.settings import flag_name, setting
from fairseq_clear.text.data_folders import data_folders

if TYPE_CHECKING:
    from fairseq_clear.evaluation.glue.glue_running import Restart, Start

REPORT = "report.json"
TASKS = "CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI, RTE, WNLI"


@dataclass(kw_only=True)
class Text(Command):
    """Write the texts of GLUE's tasks, without labels, as text files for fairseq-clear prepare."""

    glue_dir: Path = setting("GLUE's folder, with a folder per task", metavar="DIR")
    tasks: tuple[str, ...] = setting(f"some of {TASKS}", metavar="TASK")
    dest: Path = setting("folder to write TASK.txt to", Path("glue-text"), metavar="DIR")
    splits: tuple[str, ...] = setting(
        "which splits to write; test sets are never written", ("train",), choices=("train", "dev")
    )
    pairs: str = setting(
        "write the two texts of a pair as two documents, or as one line joined by a space",
        "separate",
        choices=("separate", "joined"),
    )
    drop_malformed: bool = setting("drop malformed lines and count them; otherwise they are an error", False)
    overwrite: bool = setting("replace existing files", False)

    def run(self) -> int:
        """Write a file for each task."""
        from fairseq_clear.evaluation.glue.glue_tasks import choose_tasks, write_texts

        paths = [(task, self.dest / f"{task.name}.txt") for task in choose_tasks(self.tasks)]
        for task, path in paths:
            if "train" not in task.splits:
                raise UserError(f"--tasks {task.name}: has no training data, so there is no text to write")
            if path.exists() and not self.overwrite:
                raise UserError(f"--dest {path}: exists already; add --overwrite to replace it, or give another folder")
        with write_errors(self.dest, "--dest"):
            self.dest.mkdir(parents=True, exist_ok=True)
        for task, path in paths:
            is_joined = self.pairs == "joined"
            written, dropped = write_texts(
                task, self.glue_dir, path, self.splits, is_joined=is_joined, drop_malformed=self.drop_malformed
            )
            print(f"{task.name}: {written:,} texts{dropped_lines(dropped)}; wrote {path}")
        return 0


@dataclass(kw_only=True)
class PrepareTasks(Command):
    """Turn GLUE's tsv files into the folders that sentence_prediction reads, with the checkpoint's vocabulary."""

    glue_dir: Path = setting("GLUE's folder, with a folder per task", metavar="DIR")
    data_bin: str = setting("folder with the dict.txt and tokenizer of the checkpoint", metavar="DIR")
    tokenizer: str | None = setting(TOKENIZER_HELP, None)
    tasks: tuple[str, ...] = setting(f"some of {TASKS}, AX", metavar="TASK")
    dest: Path = setting("folder to write the tasks' folders to", Path("glue-bin"), metavar="DIR")
    split_dev: str | None = setting(
        "choose on the first A % of the dev set, report scores on its last B % (Self-Guided A.4: 10/90)",
        None,
        metavar="A/B",
    )
    drop_malformed: bool = setting(
        "drop malformed lines of train and dev, and count them; otherwise they are an error", False
    )
    overwrite: bool = setting("replace prepared tasks", False)

    def run(self) -> int:
        """Write a folder for each task."""
        from fairseq_clear.evaluation.glue.glue_data import parse_split_dev, prepare_task
        from fairseq_clear.evaluation.glue.glue_tasks import choose_tasks

        tasks = choose_tasks(self.tasks)
        split = None if self.split_dev is None else parse_split_dev(self.split_dev)
        folder = data_folders(self.data_bin)[0]
        tokenizer = choose_tokenizer(self.tokenizer, folder)
        for task in tasks:
            summaries = prepare_task(
                task, self.glue_dir, folder, self.dest, tokenizer,
                split_dev=split, drop_malformed=self.drop_malformed, overwrite=self.overwrite,
            )  # fmt: skip
            parts = ", ".join(f"{name} {summary.rows:,}" for name, summary in summaries.items())
            tokens, unknown = (sum(getattr(one, key) for one in summaries.values()) for key in ("tokens", "unknown"))
            dropped = dropped_lines(sum(summary.dropped for summary in summaries.values()))
            share = unknown / max(tokens, 1)
            print(f"{task.name}: {parts}; {share:.2%} unknown tokens{dropped}; wrote {self.dest / task.name}")
        return 0


def dropped_lines(count: int) -> str:
    """Text to append to a line of output if malformed lines were dropped."""
    return f"; {count:,} malformed lines dropped" if count else ""


@dataclass(kw_only=True)
class Run(Command):
    """Fine-tune a checkpoint on every task, with several seeds (restarts) and a paper's hyper-parameters.

    Reports the median and the best score over the restarts.
    """

    checkpoint: Path = setting("checkpoint of clear_roberta or roberta")
    data: Path = setting("output folder of glue prepare", metavar="DIR")
    recipe: str = setting(
        "clear: RoBERTa's hyper-parameters, as in CLEAR 4.2; cert: those of CERT 5.2; both are listed in "
        "fairseq_clear/evaluation/glue/glue_recipes.py",
        choices=("clear", "cert"),
    )
    tasks: tuple[str, ...] = setting(f"some of {TASKS}", metavar="TASK")
    seeds: tuple[int, ...] = setting("number of restarts (seeds 1 to N), or several seeds", (5,))
    output: Path = setting("folder of the restarts and the report", Path("glue-runs"), metavar="DIR")
    label: str | None = setting("name of the rows in the table (default: the checkpoint's name)", None, metavar="TEXT")
    device: str | None = setting("(default: cuda if available)", None, choices=("cpu", "cuda"), group="running")
    precision: str = setting("precision of training", "float32", choices=("float32", "fp16", "bf16"), group="running")
    local_jobs: int = setting("restarts to run at a time", 1, least=1, group="running")
    slurm: str | None = setting(
        "write OUTPUT/glue.sbatch, an array with one task per restart, and print how to submit it; FLAGS are sbatch's, as "
        "--slurm='--partition=gpu --gres=gpu:1'. Afterwards, the same command without --slurm prints the table",
        None,
        nargs="?",
        const="",
        metavar="FLAGS",
        group="running",
    )
    restart: int | None = setting(
        "run only restart I, from 0; the tasks of the array use it", None, metavar="I", group="running"
    )
    changes: dict[str, Any]

    @classmethod
    def add_arguments(cls, parser: argparse.ArgumentParser) -> None:
        """Declare the flags; those of the hyper-parameters have no defaults, because the recipe sets them."""
        super().add_arguments(parser)
        add_flags(parser.add_argument_group("values that replace the recipe's"), FineTuning, have_defaults=False)

    @classmethod
    def from_flags(cls, args: argparse.Namespace) -> Self:
        """Make the command with the hyper-parameters that are given."""
        return read_flags(cls, args, changes=given_flags(FineTuning, args))

    def run(self) -> int:
        """Run the restarts, or write the Slurm script that runs them."""
        from fairseq_clear.distributed import choose_device
        from fairseq_clear.evaluation.checkpoints import load_model
        from fairseq_clear.evaluation.glue.glue_running import Start, plan_restarts, seed_list, slurm_script
        from fairseq_clear.evaluation.glue.glue_tasks import choose_tasks

        # absolute, since the array's tasks may start in another folder
        self.output, self.data, self.checkpoint = (
            path.absolute() for path in (self.output, self.data, self.checkpoint)
        )
        restarts = plan_restarts(
            choose_tasks(self.tasks), self.data, self.recipe, seed_list(self.seeds), self.output, **self.changes
        )
        if self.slurm is not None:
            script = self.output / "glue.sbatch"
            text = slurm_script(self.array_arguments(), len(restarts), self.output, self.slurm)
            with write_errors(script):
                self.output.mkdir(parents=True, exist_ok=True)
                script.write_text(text)
            print(f"sbatch {shlex.quote(str(script))}")
            return 0
        if self.restart is not None:
            if not 0 <= self.restart < len(restarts):
                raise UserError(f"--restart {self.restart}: there are restarts 0 to {len(restarts) - 1}")
            restarts = [restarts[self.restart]]
        loaded, device = (
            load_model(self.checkpoint, restarts[0].data.folder / "input0"),
            choose_device(self.device).type,
        )
        start = Start(self.checkpoint, hash_file(self.checkpoint), loaded, device, self.precision)
        if note := start.pair_note([restart.data.task for restart in restarts]):
            print(note, file=sys.stderr)
        return self.run_and_report(restarts, start)

    def run_and_report(self, restarts: "list[Restart]", start: "Start") -> int:
        """Run the restarts; print the table unless this is one task of an array."""
        import torch

        from fairseq_clear.evaluation.glue.glue_running import build_report, run_restarts

        def done(restart: "Restart", result: dict[str, Any]) -> None:
            metric = headline(self.recipe, restart.data.task.name)
            score = result["metrics"]["valid"][metric]
            print(f"{restart.name}: {metric} {score:.2f}, epoch {result['epoch']}", file=sys.stderr)
            if not result["agrees_with_fairseq"]:
                print(f"{restart.name}: fairseq logged an accuracy of {result['fairseq_accuracy']}", file=sys.stderr)

        devices = torch.cuda.device_count() if start.device == "cuda" else 0
        run_restarts(restarts, start, self.local_jobs, devices, done)
        if self.restart is not None:
            return 0
        report = build_report(restarts, self.recipe, start, self.label or self.checkpoint.stem)
        print(report.table(bold=sys.stdout.isatty()))
        print(report.caption())
        report.write(self.output / REPORT)
        print(f"wrote {self.output / REPORT}", file=sys.stderr)
        return 0

    def array_arguments(self) -> list[str]:
        """Return the command line of an array task, without ``--restart``."""
        arguments = ["glue", "run"]
        values = {**vars(self), **self.changes}
        for item in (*fields(self), *fields(FineTuning)):
            value = values.get(item.name) if "help" in item.metadata else None
            if value is not None and item.name not in {"slurm", "restart", "local_jobs"}:
                items = value if isinstance(value, tuple) else (value,)
                arguments += [flag_name(item), *map(str, items)]
        return arguments


@dataclass(kw_only=True)
class Predict(Command):
    """Predict the test sets; write the zip file for GLUE's test server."""

    checkpoints: tuple[str, ...] = setting(
        "--output of glue run, whose best restart of each task on the dev set is used; or single checkpoints",
        metavar="DIR|TASK=FILE",
    )
    data: Path = setting("output folder of glue prepare", metavar="DIR")
    output: Path = setting("submission to write", metavar="FILE.zip")
    recipe: str = setting("recipe whose metric chooses the best restart", "clear", choices=("clear", "cert"))
    majority: tuple[str, ...] = setting(
        "tasks for which to predict the most frequent training label, as most fine-tuned models do on WNLI",
        (),
        metavar="TASK",
    )
    max_length: int | None = setting("maximum tokens of an input (default: as in training)", None)
    device: str | None = setting("(default: cuda if available)", None, choices=("cpu", "cuda"))
    overwrite: bool = setting("replace an existing file", False)

    def run(self) -> int:
        """Predict the test sets and write the submission."""
        from fairseq_clear.distributed import choose_device
        from fairseq_clear.evaluation.glue.glue_predicting import predict_tests, write_submission

        check_output_file(self.output, self.overwrite)
        device = choose_device(self.device).type
        contents, lines = predict_tests(
            self.checkpoints, self.data, self.recipe, self.majority, device, self.max_length
        )
        missing = write_submission(self.output, contents)
        print("\n".join(lines))
        print(f"wrote {self.output}: {', '.join(contents)}")
        if missing:
            print(f"GLUE's server also needs: {', '.join(missing)}", file=sys.stderr)
        return 0


@dataclass(kw_only=True)
class Glue(Command):
    """Fine-tune a checkpoint on GLUE's tasks with fairseq's own sentence_prediction task, and predict the test sets."""

    EXAMPLES: ClassVar[str] = """
fairseq-clear glue text --glue-dir glue_data --tasks CoLA RTE --dest texts    # texts/CoLA.txt, texts/RTE.txt
fairseq-clear glue text ... --splits train dev --pairs joined --drop-malformed
fairseq-clear glue prepare --glue-dir glue_data --data-bin data-bin --dest glue-bin --tasks CoLA RTE
fairseq-clear glue prepare ... --tasks QQP --split-dev 10/90 --drop-malformed
fairseq-clear glue run --checkpoint checkpoint_best.pt --data glue-bin --recipe clear --tasks CoLA RTE --output runs
fairseq-clear glue run ... --seeds 5 --local-jobs 2 --epochs 3 --lr 3e-4 --max-length 128 --precision fp16 --label tiny
fairseq-clear glue run ... --slurm='--partition=gpu --gres=gpu:1'
fairseq-clear glue predict --checkpoints runs --data glue-bin --majority WNLI --output submission.zip"""
    STEPS = {
        "text": (Text, "write GLUE's texts as text files for fairseq-clear prepare"),
        "prepare": (PrepareTasks, "convert GLUE's files to folders for fairseq-train"),
        "run": (Run, "fine-tune with several seeds"),
        "predict": (Predict, "write the submission for the test server"),
    }
