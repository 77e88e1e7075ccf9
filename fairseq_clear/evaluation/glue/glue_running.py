"""Fine-tuning on GLUE: writes each task's data for fairseq's ``sentence_prediction``, runs fairseq-train, reports dev scores.

A task's data are a folder with ``input0``, ``input1`` for pairs, ``label`` and ``glue.json``. A run that was stopped resumes
where it stopped; a finished run is not repeated.
"""

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import make_builder

import fairseq_clear
from fairseq_clear import patches
from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.checkpoints import LoadedModel, strip_checkpoint
from fairseq_clear.evaluation.glue.glue_tasks import GLUE_TASKS, FineTuning, GlueTask, metric_of, read_examples
from fairseq_clear.evaluation.reports import Report, Row
from fairseq_clear.evaluation.training_log import read_log
from fairseq_clear.files import hash_file, read_json, write_errors, write_json
from fairseq_clear.models.encoding import read_texts
from fairseq_clear.output_folder import output_folder
from fairseq_clear.processes import die_with_parent
from fairseq_clear.text.data_folders import DICTIONARY
from fairseq_clear.text.tokenizers import Tokenizer
from fairseq_clear.text.vocabulary import load_dictionary

patches.apply()

GLUE_JSON, SETTINGS, RESULT = "glue.json", "settings.json", "result.json"
AVERAGE = "Avg."
# Names of fairseq's statistics of a validation that a result keeps.
MEASURED = ("loss", "accuracy", "mcc", "f1", "acc_and_f1", "pearson", "spearman", "pearson_and_spearman")
# as in fairseq's examples/roberta/config/finetuning
FP16 = ("--fp16", "--fp16-init-scale", "4", "--threshold-loss-scale", "1", "--fp16-scale-window", "128")
PRECISIONS = {"float32": (), "fp16": FP16, "bf16": ("--bf16",)}
Result = dict[str, Any]


def prepare_task(
    task: GlueTask,
    glue_dir: Path,
    data_bin: Path,
    dest: Path,
    tokenizer: Tokenizer,
    *,
    max_length: int = 512,
    overwrite: bool = False,
) -> dict[str, dict[str, int]]:
    """Convert the files of a task to the folder ``dest/TASK``, with the dictionary of ``data_bin``.

    Inputs of more than ``max_length`` tokens are cut, see ``cut_pair``. On an error, nothing is written.

    Returns:
        Split -> numbers of its examples (``rows``), unknown tokens, cut inputs, malformed lines (``dropped``), and the length
        of its longest input.

    Raises:
        UserError: missing or malformed files, or the folder exists already.
    """
    dictionary = load_dictionary(data_bin / DICTIONARY)
    splits: dict[str, dict[str, int]] = {}
    with output_folder(dest / task.name, overwrite, (GLUE_JSON,)) as folder:
        *inputs, answers = (folder / name for name in [*("input0", "input1")[: len(task.columns)], "label"])
        for part in (*inputs, answers):
            part.mkdir()
            shutil.copyfile(data_bin / DICTIONARY, part / DICTIONARY)
        # in the order of the table, so that class ids do not depend on the frequency of the labels
        (answers / DICTIONARY).write_text("".join(f"{label} 1\n" for label in task.labels))
        known = Dictionary.load(str(answers / DICTIONARY))
        for split in task.splits:
            texts, labels, dropped = read_examples(glue_dir, task, split)
            # without <s>, which sentence_prediction adds
            encoded = [[row[1:] for row in read_texts(dictionary, tokenizer, column)] for column in texts]
            whole = list(zip(*encoded, strict=True))
            rows = [cut_pair(row, max_length) for row in whole]
            for part, column in zip(inputs, zip(*rows, strict=True), strict=True):
                _write_rows(part / split, column, len(dictionary))
            if task.labels:
                _write_rows(answers / split, [[known.index(label), known.eos()] for label in labels], len(known))
            else:  # scores of a regression, as fairseq's task reads them
                scores = [f"{float(score) / task.maximum_score!r}\n" for score in labels]
                (answers / f"{split}.label").write_text("".join(scores))
            splits[split] = {
                "rows": len(rows),
                "unknown": sum(text.count(dictionary.unk()) for row in rows for text in row),
                "cut": sum(input_length(row) > max_length for row in whole),
                "dropped": dropped,
                "longest": max(map(input_length, rows)),
            }
        content = {"max_length": max_length, "vocabulary_hash": hash_file(data_bin / DICTIONARY), "splits": splits}
        content["tokenizer"] = type(tokenizer).__name__
        content["files"] = {name: hash_file(glue_dir / task.name / name) for name in task.splits.values()}
        write_json(folder / GLUE_JSON, content, flag="--dest")
    return splits


def input_length(texts: Sequence[Sequence[int]]) -> int:
    """Number of tokens of ``<s> a </s>`` or ``<s> a </s> </s> b </s>``; the texts end with ``</s>``."""
    return sum(len(text) + 1 for text in texts)


def cut_pair(texts: Sequence[list[int]], longest: int) -> list[list[int]]:
    """Drop tokens from the end of the longer text (the first, if equal) until the input has ``longest`` tokens, 4 or more.

    fairseq's own ``--shorten-method truncate`` drops the end of a pair, often the whole second text.
    """
    lengths = [len(text) - 1 for text in texts]
    for _ in range(input_length(texts) - longest):
        lengths[lengths.index(max(lengths))] -= 1
    return [[*text[:length], text[-1]] for text, length in zip(texts, lengths, strict=True)]


def _write_rows(prefix: Path, rows: Sequence[Sequence[int]], vocabulary: int) -> None:
    builder = make_builder(f"{prefix}.bin", impl="mmap", vocab_size=vocabulary)
    for row in rows:
        builder.add_item(torch.tensor(row, dtype=torch.int64))
    builder.finalize(f"{prefix}.idx")


@dataclass(frozen=True)
class GlueRun:
    """The fine-tuning of a checkpoint on one task with one seed, in its own folder."""

    task: GlueTask
    data: Path  # the folder of the task
    record: dict[str, Any]  # of the folder
    seed: int
    settings: FineTuning
    folder: Path
    checkpoint: Path
    checkpoint_hash: str
    loaded: LoadedModel
    device: str = "cpu"
    precision: str = "float32"

    def check(self) -> None:
        """Raise UserError if the data do not fit the checkpoint, or if the folder holds a run of other settings or data."""
        limit = min(int(self.loaded.model.max_positions()), self.settings.max_length or sys.maxsize)
        if self.record.get("vocabulary_hash") != self.loaded.vocabulary_hash:
            what = "was prepared with another dict.txt than the first of --tasks"
            raise UserError(f"--data {self.data}: {what}; run glue prepare with one --data-bin and --overwrite")
        longest = max(split["longest"] for split in self.record["splits"].values())
        if longest > limit:
            what = f"has inputs of {longest} tokens, but checkpoint and recipe take {limit}"
            raise UserError(f"--data {self.data}: {what}; run glue prepare with --max-length {limit} --overwrite")
        path, wanted = self.folder / SETTINGS, self.identity()
        has_begun = path.is_file() and ((self.folder / RESULT).is_file() or any(self.folder.glob("*.pt")))
        found = read_json(path, "remove it", dict) if has_begun else wanted
        if differing := [key for key in wanted if found.get(key) != wanted[key]]:
            what = f"holds a run with another {', '.join(differing)}"
            raise UserError(f"--output {self.folder}: {what}; give another folder, or remove this one")

    def identity(self) -> dict[str, Any]:
        """Everything that determines the result; a result is reused only if this is the same."""
        data = {"task": self.task.name, "data": self.record, "checkpoint_hash": self.checkpoint_hash}
        return {**data, "seed": self.seed, "settings": asdict(self.settings), "precision": self.precision}

    def run(self) -> Result:
        """Train, and write the best epoch's dev scores to ``result.json``, unless it exists; UserError if training fails."""
        result = self.folder / RESULT
        if result.is_file():
            return dict(read_json(result, "remove it", dict))
        log, best = self.folder / "train.log", self.folder / "checkpoint_best.pt"
        with write_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            write_json(self.folder / SETTINGS, self.identity())
            with open(log, "ab") as stream:
                # the training ends if this process ends or is interrupted
                run = subprocess.run(
                    self.command(), stdout=stream, stderr=subprocess.STDOUT, preexec_fn=die_with_parent
                )
        if run.returncode or not best.is_file():
            what = f"fairseq-train ended with status {run.returncode}; see the last lines of {log}"
            raise UserError(f"{self.task.name} seed {self.seed}: {what}")
        with write_errors(self.folder):
            updates = strip_checkpoint(best, self.folder / "model.pt")
        logged = read_log(log)
        try:
            scores = {split: logged[split][updates] for split in self.task.dev_columns()}
        except KeyError:  # logging ignores a full disk
            what = f"holds no scores of update {updates}, the best one; remove {self.folder} and rerun"
            raise UserError(f"{log}: {what}") from None
        metrics = {split: {name: one[name] for name in MEASURED if name in one} for split, one in scores.items()}
        epoch = int(scores["valid"]["epoch"])
        found = {"task": self.task.name, "seed": self.seed, "epoch": epoch, "metrics": metrics}
        write_json(result, found, flag="--output")
        for path in (best, self.folder / "checkpoint_last.pt"):
            path.unlink(missing_ok=True)
        return found

    def command(self) -> list[str]:
        """The command line of fairseq-train, which validates and saves after each epoch, and resumes if it was stopped.

        The best epoch is the one with the highest dev accuracy, as in fairseq's recipes, or with the lowest dev loss for STS-B.
        """
        task, settings, loaded = self.task, self.settings, self.loaded
        # the last batch of an epoch may be smaller
        updates = settings.epochs * -(-self.record["splits"]["train"]["rows"] // settings.batch_size)
        best = ("--best-checkpoint-metric", "accuracy", "--maximize-best-checkpoint-metric")
        metric = metric_of("clear", task.name)
        flags: list[Any] = [
            self.data, "--user-dir", Path(fairseq_clear.__file__).parent, "--task", "sentence_prediction",
            "--criterion", "sentence_prediction", "--num-classes", len(task.labels) or 1,
            *(best if task.labels else ["--regression-target"]),
            *([f"--report-{metric.replace('_', '-')}"] if metric != "accuracy" else []),
            "--init-token", loaded.dictionary.bos(),
            # RoBERTa puts a second </s> between two texts. BERT does not, since its first segment ends with </s>.
            *(() if loaded.model.args.segments > 1 else ("--separator-token", loaded.dictionary.eos())),
            "--max-positions", int(loaded.model.max_positions()),
            "--valid-subset", ",".join(task.dev_columns()),
            "--arch", "clear_roberta", "--encoder-from", self.checkpoint,
            "--pooler-activation-fn", loaded.model.args.pooler_activation_fn,
            "--dropout", settings.dropout, "--attention-dropout", settings.dropout, "--pooler-dropout", settings.dropout,
            "--save-dir", self.folder, "--no-epoch-checkpoints",
            "--optimizer", "adam", "--adam-betas", settings.adam_betas, "--adam-eps", settings.adam_eps,
            "--weight-decay", settings.weight_decay, "--clip-norm", settings.clip_norm,
            "--lr", settings.lr, "--lr-scheduler", "polynomial_decay",
            "--warmup-updates", round(settings.warmup_share * updates), "--total-num-update", updates,
            "--max-update", updates, "--max-epoch", settings.epochs,
            "--batch-size", settings.batch_size, "--required-batch-size-multiple", 1,
            "--seed", self.seed, "--num-workers", 0, "--distributed-world-size", 1,
            "--log-format", "json", "--log-interval", 100,
            *PRECISIONS[self.precision], *(["--cpu"] if self.device == "cpu" else []),
        ]  # fmt: skip
        return [sys.executable, "-m", "fairseq_cli.train", *map(str, flags)]


def build_report(runs: Sequence[GlueRun], results: Sequence[Result], recipe: str, label: str) -> Report:
    """Build the report: a row with the median and one with the best score over the seeds, as in CERT Table 2.

    ``recipe`` determines the metric of each task in the table; the details hold all metrics. ``label`` names the encoder.
    """
    tasks, start, seeds = {run.task.name: run for run in runs}, runs[0], sorted({run.seed for run in runs})
    segments = start.loaded.model.args.segments
    form = f"<s> a </s> b </s> ({segments} segments)" if segments > 1 else "<s> a </s> </s> b </s> (no segments)"
    metrics = {name: metric_of(recipe, name) for name in tasks}
    protocol = {"recipe": recipe, "split": "dev", "metrics": metrics, "precision": start.precision, "input": form}
    described = {"checkpoint": str(start.checkpoint), "checkpoint_hash": start.checkpoint_hash}
    described["architecture"] = start.loaded.architecture
    details = {"runs": list(results), "settings": {name: asdict(run.settings) for name, run in tasks.items()}}
    middle, best = (table_scores(results, recipe, statistic) for statistic in (median, max))
    rows = [Row(f"{label} median of {len(seeds)}", middle, described, details=details)]
    rows.append(Row(f"{label} best of {len(seeds)}", best, described))
    files = {name: run.record["files"] for name, run in tasks.items()}
    return Report("glue", protocol, files, list(rows[0].scores), rows, seeds)


def table_scores(results: Sequence[Result], recipe: str, statistic: Callable[[list[float]], float]) -> dict[str, float]:
    """The statistic over the seeds for each column of the table, and the average over the tasks.

    A constant prediction, for which Pearson and Spearman are not defined, scores 0: a failed run is a result.
    """
    scores: dict[str, float] = {}
    averages = []
    for name in dict.fromkeys(result["task"] for result in results):
        found = [result["metrics"] for result in results if result["task"] == name]
        metric, columns = metric_of(recipe, name), GLUE_TASKS[name].dev_columns()
        part = {to: float(statistic([one[split].get(metric, 0.0) for one in found])) for split, to in columns.items()}
        scores |= part
        averages.append(mean(part.values()))  # MNLI's two columns count as one (CLEAR, caption of Table 1)
    return scores | ({AVERAGE: mean(averages)} if len(averages) > 1 else {})
