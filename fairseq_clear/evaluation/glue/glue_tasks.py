"""The tasks of GLUE (Wang et al. 2018, arXiv:1804.07461) in one table, and readers of their tsv files."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.sts_data import read_score
from fairseq_clear.files import read_text_lines, write_errors, write_whole

# Scores of STS-B are 0 to 5; models are trained on scores divided by 5, as in fairseq's preprocess_GLUE_tasks.sh.
MAXIMUM_SCORE = 5.0

_SPLITS = {"train": "train.tsv", "valid": "dev.tsv", "test": "test.tsv"}
_MNLI_SPLITS = {
    "train": "train.tsv",
    "valid": "dev_matched.tsv",
    "valid1": "dev_mismatched.tsv",
    "test": "test_matched.tsv",
    "test1": "test_mismatched.tsv",
}
_ENTAILMENT = ("entailment", "not_entailment")
_BINARY = ("0", "1")


@dataclass(frozen=True)
class GlueTask:
    """A task of GLUE."""

    name: str  # name on GLUE's leaderboard
    texts: tuple[str, ...]  # names of the columns of the one or two texts
    label: str  # name of the column of the label
    labels: tuple[str, ...]  # labels in the order of their class ids; empty if a score is predicted
    # fairseq's name of a split -> file; ``valid1`` and ``test1`` are the mismatched sets of MNLI
    splits: Mapping[str, str] = field(default_factory=lambda: _SPLITS)
    # split whose file has no header -> names of its columns
    headless: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    folders: tuple[str, ...] = ()  # possible names of the task's folder (default: the task's name)
    # file of the submission -> split (default: ``TASK.tsv`` -> ``test``)
    submission: Mapping[str, str] = field(default_factory=dict)
    evaluated_as: str = ""  # the task whose model predicts this one; another task only if this one has no training data

    def __post_init__(self) -> None:
        defaults = {"folders": (self.name,), "submission": {f"{self.name}.tsv": "test"}, "evaluated_as": self.name}
        for name, default in defaults.items():
            object.__setattr__(self, name, getattr(self, name) or default)

    @property
    def is_regression(self) -> bool:
        """Whether the task predicts a score (STS-B)."""
        return not self.labels

    @property
    def outputs(self) -> int:
        """Width of the classification head."""
        return len(self.labels) or 1


_PAIR = ("sentence1", "sentence2")
_COLA = ("source", "label", "mark", "sentence")
_NLI = ("contradiction", "entailment", "neutral")

GLUE_TASKS: dict[str, GlueTask] = {
    task.name: task
    for task in (
        GlueTask("CoLA", ("sentence",), "label", _BINARY, headless={"train": _COLA, "valid": _COLA}),
        GlueTask("SST-2", ("sentence",), "label", _BINARY),
        GlueTask("MRPC", ("#1 String", "#2 String"), "Quality", _BINARY),
        GlueTask("STS-B", _PAIR, "score", ()),
        GlueTask("QQP", ("question1", "question2"), "is_duplicate", _BINARY),
        GlueTask(
            "MNLI", _PAIR, "gold_label", _NLI,
            splits=_MNLI_SPLITS, submission={"MNLI-m.tsv": "test", "MNLI-mm.tsv": "test1"},
        ),
        GlueTask("QNLI", ("question", "sentence"), "label", _ENTAILMENT),
        GlueTask("RTE", _PAIR, "label", _ENTAILMENT),
        GlueTask("WNLI", _PAIR, "label", _BINARY),
        # the diagnostic set has neither training data nor labels; the model of MNLI predicts it
        GlueTask(
            "AX", _PAIR, "", _NLI,
            splits={"test": "diagnostic.tsv"}, folders=("AX", "diagnostic"), evaluated_as="MNLI",
        ),
    )
}  # fmt: skip


def choose_tasks(names: Sequence[str]) -> list[GlueTask]:
    """Return the tasks of these names, in the order of the table; case does not matter; UserError for another name."""
    known = {name.lower(): name for name in GLUE_TASKS}
    for name in names:
        if name.lower() not in known:
            raise UserError(f"--tasks {name}: no such task of GLUE; valid are {', '.join(GLUE_TASKS)}")
    wanted = {known[name.lower()] for name in names}
    return [task for name, task in GLUE_TASKS.items() if name in wanted]


@dataclass(frozen=True)
class Examples:
    """The examples of one split."""

    texts: tuple[list[str], ...]  # one list of N texts for each of the one or two inputs
    labels: list[str] | None  # N labels, or scores as text; None if the split has no labels
    dropped: int = 0  # number of malformed lines that were left out

    def __len__(self) -> int:
        return len(self.texts[0])

    def part(self, begin: int, end: int) -> "Examples":
        """Return the examples ``begin`` to ``end``, end exclusive."""
        labels = None if self.labels is None else self.labels[begin:end]
        return Examples(tuple(column[begin:end] for column in self.texts), labels)


def find_task_folder(glue_dir: Path, task: GlueTask) -> Path:
    """Find the folder of a task in ``glue_dir``; the case of its name does not matter; UserError if it is missing."""
    present = {path.name.lower(): path for path in sorted(glue_dir.iterdir())} if glue_dir.is_dir() else {}
    for name in task.folders:
        if name.lower() in present and present[name.lower()].is_dir():
            return present[name.lower()]
    what = f"has no folder {' or '.join(task.folders)}" if glue_dir.is_dir() else "no such folder"
    raise UserError(
        f"--glue-dir {glue_dir}: {what}; give the folder that holds one folder per task, as in GLUE's archive"
    )


def read_examples(path: Path, task: GlueTask, split: str, *, drop_malformed: bool = False) -> Examples:
    """Read the file of one split.

    Quotes have no special meaning. A text may be empty, but each line must have as many columns as the header.

    Args:
        task: the task, which has the names of the columns.
        split: fairseq's name of the split; test splits have no labels.
        drop_malformed: leave out malformed lines of files with labels and count them, as fairseq's script does for QQP.
            Test files are always read whole, as the server expects a prediction for each line.

    Raises:
        UserError: a missing file or column, or a malformed line; the message names file and line.
    """
    lines = read_text_lines(path)
    header = task.headless.get(split)
    first = 0 if header is not None else 1
    if len(lines) <= first:
        raise UserError(f"{path}: holds no examples")
    names = list(header) if header is not None else [name.strip() for name in lines[0].split("\t")]
    has_labels = not split.startswith("test")
    wanted = [*task.texts, *([task.label] if has_labels else [])]
    for name in wanted:
        if name not in names:
            raise UserError(f"{path}:1: the header has no column {name!r} ({', '.join(names)}); is this {task.name}?")
    columns = [names.index(name) for name in wanted]
    rows, dropped = [], 0
    for number, line in enumerate(lines[first:], first + 1):
        try:
            rows.append(_row(path, number, line, len(names), columns, task if has_labels else None))
        except UserError as error:
            if not drop_malformed or not has_labels:
                hint = "; --drop-malformed leaves such lines out" if has_labels else ""
                raise UserError(f"{error}{hint}") from None
            dropped += 1
    if not rows:
        raise UserError(f"{path}: every line is malformed; is this {task.name}?")
    texts = tuple([row[column] for row in rows] for column in range(len(task.texts)))
    return Examples(texts, [row[-1] for row in rows] if has_labels else None, dropped)


def _row(path: Path, number: int, line: str, width: int, columns: list[int], task: GlueTask | None) -> list[str]:
    """The texts of a line and, if ``task`` is given, its label, checked."""
    fields = line.split("\t")
    if len(fields) != width:
        raise UserError(f"{path}:{number}: {len(fields)} tab-separated columns, not {width} as the first line has")
    row = [fields[column].strip() for column in columns]
    if task is None:
        return row
    if task.is_regression:
        read_score(path, number, row[-1], 0, MAXIMUM_SCORE)
    elif row[-1] not in task.labels:
        raise UserError(f"{path}:{number}: label {row[-1]!r} is not one of {task.name}: {', '.join(task.labels)}")
    return row


def write_texts(
    task: GlueTask, glue_dir: Path, path: Path, splits: Sequence[str], *, is_joined: bool, drop_malformed: bool
) -> tuple[int, int]:
    """Write the texts of a task, without labels, as a text file that ``fairseq-clear prepare`` reads.

    Each text is a document of one line, with a blank line between two documents. Texts that occur twice are written
    twice; only empty texts are left out.

    Args:
        glue_dir: the GLUE folder, with one folder per task.
        path: the file to write; on an error, nothing is written.
        splits: ``train``, ``dev`` (both dev sets of MNLI).
        is_joined: write the two texts of a pair as one line, joined by a space.
        drop_malformed: leave out malformed lines and count them.

    Returns:
        Number of texts written, number of malformed lines left out.

    Raises:
        UserError: a missing file or column, a malformed line, or ``path`` cannot be written.
    """
    folder = find_task_folder(glue_dir, task)
    prefixes = tuple("valid" if split == "dev" else split for split in splits)
    texts: list[str] = []
    dropped = 0
    for split, name in task.splits.items():
        if split.startswith(prefixes):
            examples = read_examples(folder / name, task, split, drop_malformed=drop_malformed)
            dropped += examples.dropped
            for row in zip(*examples.texts, strict=True):
                texts += [" ".join(row)] if is_joined else row
    lines = [line for text in texts if (line := re.sub(r"[\0\r]", " ", text).strip())]
    with write_errors(path, "--dest"), write_whole(path) as stream:
        stream.write("\n\n".join(lines).encode() + b"\n")
    return len(lines), dropped
