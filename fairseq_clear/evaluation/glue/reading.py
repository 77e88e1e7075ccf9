"""GLUE's tsv files: columns found by the header's names, and a malformed line named instead of shifted."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.glue.tasks import MAXIMUM_SCORE, GlueTask
from fairseq_clear.files import read_text_lines, write_whole

__all__ = ["Examples", "find_task_folder", "read_examples", "write_texts"]


@dataclass(frozen=True)
class Examples:
    """One split.

    Attributes:
        texts: one list of N texts for each input.
        labels: N of the task's labels, or scores as they are written; None where the split has none.
        dropped: lines that were malformed and left out.
    """

    texts: tuple[list[str], ...]
    labels: list[str] | None
    dropped: int = 0

    def __len__(self) -> int:
        return len(self.texts[0])

    def part(self, begin: int, end: int) -> "Examples":
        """Rows ``begin`` to ``end``, the latter excluded."""
        labels = None if self.labels is None else self.labels[begin:end]
        return Examples(tuple(column[begin:end] for column in self.texts), labels)


def find_task_folder(glue_dir: Path, task: GlueTask) -> Path:
    """The task's folder below ``glue_dir``, whatever case its name has there.

    Raises:
        UserError: it is missing.
    """
    present = {path.name.lower(): path for path in sorted(glue_dir.iterdir())} if glue_dir.is_dir() else {}
    for name in task.folders:
        if name.lower() in present and present[name.lower()].is_dir():
            return present[name.lower()]
    what = f"has no folder {' or '.join(task.folders)}" if glue_dir.is_dir() else "no such folder"
    raise UserError(f"--glue-dir {glue_dir}: {what}; it is the folder with a folder for each task, as GLUE is packed")


def read_examples(path: Path, task: GlueTask, split: str, *, drop_malformed: bool = False) -> Examples:
    """Read one file.

    Quotes are characters like others. A text may be empty; a line may not have more or fewer columns than the header.

    Args:
        path: of the file.
        task: what its columns are called.
        split: fairseq's name of it; test splits have no labels.
        drop_malformed: leave malformed lines of labelled files out and count them, as fairseq's own script does for
            QQP. Test files are never thinned: the server wants a prediction for every line.

    Raises:
        UserError: a missing file or column, or a malformed line, with file and line.
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
    """The texts and, if ``task`` is given, its label, checked."""
    fields = line.split("\t")
    if len(fields) != width:
        raise UserError(f"{path}:{number}: {len(fields)} tab-separated columns, not {width} as the first line has")
    row = [fields[column].strip() for column in columns]
    if task is None:
        return row
    if task.is_regression:
        _check_score(path, number, row[-1])
    elif row[-1] not in task.labels:
        raise UserError(f"{path}:{number}: label {row[-1]!r} is none of {task.name}'s: {', '.join(task.labels)}")
    return row


def _check_score(path: Path, number: int, text: str) -> None:
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if not 0 <= score <= MAXIMUM_SCORE:
        raise UserError(f"{path}:{number}: the score {text!r} is no number from 0 to {MAXIMUM_SCORE:g}")


def write_texts(
    task: GlueTask, glue_dir: Path, path: Path, splits: Sequence[str], *, is_joined: bool, drop_malformed: bool
) -> tuple[int, int]:
    """Write the texts of a task, without labels, as a text file that ``fairseq-clear prepare`` reads.

    Each text is a document of one line, with a blank line between two documents. Texts that occur twice are written
    twice; only empty texts are left out.

    Args:
        task: which.
        glue_dir: the GLUE folder, with one folder per task.
        path: the file to write; it appears whole or not at all.
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
    try:
        with write_whole(path) as stream:
            stream.write("\n\n".join(lines).encode() + b"\n")
    except OSError as error:
        raise UserError(f"--dest {path}: cannot write it ({error.strerror or error})") from None
    return len(lines), dropped
