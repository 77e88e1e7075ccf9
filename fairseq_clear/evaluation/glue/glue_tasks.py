"""The tasks of GLUE (Wang et al. 2018, arXiv:1804.07461) in one table, and readers of their tsv files."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.sts_data import read_score
from fairseq_clear.files import read_text_lines, write_errors, write_whole

# Scores of STS-B are 0 to 5; models are trained on scores divided by 5, as in fairseq's preprocess_GLUE_tasks.sh.
MAXIMUM_SCORE = 5.0
_MNLI_SPLITS = {"train": "train.tsv", "valid": "dev_matched.tsv", "valid1": "dev_mismatched.tsv"}
_BINARY, _ENTAILMENT = ("0", "1"), ("entailment", "not_entailment")
_PAIR, _COLA = ("sentence1", "sentence2"), ("source", "label", "mark", "sentence")


@dataclass(frozen=True)
class GlueTask:
    """A task of GLUE."""

    name: str  # name on GLUE's leaderboard
    texts: tuple[str, ...]  # names of the columns of the one or two texts
    label: str  # name of the column of the label
    labels: tuple[str, ...]  # labels in the order of their class ids; empty if a score is predicted (STS-B)
    # fairseq's name of a split -> file; ``valid1`` is the mismatched dev set of MNLI
    splits: dict[str, str] = field(default_factory=lambda: {"train": "train.tsv", "valid": "dev.tsv"})
    header: tuple[str, ...] | None = None  # names of the columns of files without a header


GLUE_TASKS: dict[str, GlueTask] = {
    task.name: task
    for task in (
        GlueTask("CoLA", ("sentence",), "label", _BINARY, header=_COLA),
        GlueTask("SST-2", ("sentence",), "label", _BINARY),
        GlueTask("MRPC", ("#1 String", "#2 String"), "Quality", _BINARY),
        GlueTask("STS-B", _PAIR, "score", ()),
        GlueTask("QQP", ("question1", "question2"), "is_duplicate", _BINARY),
        GlueTask("MNLI", _PAIR, "gold_label", ("contradiction", "entailment", "neutral"), _MNLI_SPLITS),
        GlueTask("QNLI", ("question", "sentence"), "label", _ENTAILMENT),
        GlueTask("RTE", _PAIR, "label", _ENTAILMENT),
        GlueTask("WNLI", _PAIR, "label", _BINARY),
    )
}


def read_examples(
    glue_dir: Path, task: GlueTask, split: str, *, drop_malformed: bool = False
) -> tuple[tuple[list[str], ...], list[str], int]:
    """Read the file of one split, ``glue_dir/TASK/FILE``.

    Quotes have no special meaning. A text may be empty, but each line must have as many columns as the header.

    Args:
        split: fairseq's name of the split.
        drop_malformed: leave out malformed lines, as fairseq's script does for QQP.

    Returns:
        One list of N texts for each of the one or two inputs; N labels, or scores as text; number of lines left out.

    Raises:
        UserError: a missing file or column, or a malformed line; the message names file and line.
    """
    path = glue_dir / task.name / task.splits[split]
    lines = list(enumerate(read_text_lines(path), 1))
    header = lines.pop(0)[1].split("\t") if lines and task.header is None else task.header or ()
    names, wanted = [name.strip() for name in header], (*task.texts, task.label)
    for name in wanted if lines else ():
        if name not in names:
            raise UserError(f"{path}:1: the header has no column {name!r} ({', '.join(names)}); is this {task.name}?")
    rows = []
    for number, line in lines:
        try:
            cells = line.split("\t")
            if len(cells) != len(names):
                what = f"{len(cells)} tab-separated columns, not {len(names)} as the first line has"
                raise UserError(f"{path}:{number}: {what}")
            row = [cells[names.index(name)].strip() for name in wanted]
            if not task.labels:
                read_score(path, number, row[-1], 0, MAXIMUM_SCORE)
            elif row[-1] not in task.labels:
                what = f"label {row[-1]!r} is not one of {task.name}: {', '.join(task.labels)}"
                raise UserError(f"{path}:{number}: {what}")
            rows.append(row)
        except UserError as error:
            if not drop_malformed:
                raise UserError(f"{error}; --drop-malformed leaves such lines out") from None
    if not rows:
        raise UserError(f"{path}: holds no well-formed example; is this {task.name}?")
    *texts, labels = (list(column) for column in zip(*rows, strict=True))
    return tuple(texts), labels, len(lines) - len(rows)


def write_texts(task: GlueTask, glue_dir: Path, path: Path, *, drop_malformed: bool) -> tuple[int, int]:
    """Write the training texts of a task as a text file that ``fairseq-clear prepare`` reads, with each text as a document.

    Texts that occur twice are written twice; empty texts are left out. On an error, nothing is written.

    Returns:
        Number of texts written, number of malformed lines left out.
    """
    texts, _, dropped = read_examples(glue_dir, task, "train", drop_malformed=drop_malformed)
    rows = [text for row in zip(*texts, strict=True) for text in row]
    lines = [line for text in rows if (line := re.sub(r"[\0\r]", " ", text).strip())]
    with write_errors(path, "--dest"), write_whole(path) as stream:
        stream.write("\n\n".join(lines).encode() + b"\n")
    return len(lines), dropped
