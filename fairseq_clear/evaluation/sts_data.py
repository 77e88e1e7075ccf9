"""Reads STS data sets in SentEval's folder layout, and tables of two texts and a score."""

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_clear.errors import UserError
from fairseq_clear.files import hash_files, read_text_lines

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# The subsets of each year in SentEval, which lacks SMT of STS13 because of its licence.
STS_YEARS: dict[str, tuple[str, ...]] = {
    "STS12": ("MSRpar", "MSRvid", "SMTeuroparl", "surprise.OnWN", "surprise.SMTnews"),
    "STS13": ("FNWN", "headlines", "OnWN"),
    "STS14": ("deft-forum", "deft-news", "headlines", "images", "OnWN", "tweet-news"),
    "STS15": ("answers-forums", "answers-students", "belief", "headlines", "images"),
    "STS16": ("answer-answer", "headlines", "plagiarism", "postediting", "question-question"),
}
# Columns of score, first and second text; lines of header. STS-B has 7 or 9 columns, no quoting and no header.
_STS_B_FORM: dict[str, Any] = {"columns": (4, 5, 6)}
_SICK_FORM: dict[str, Any] = {"columns": (3, 1, 2), "skip": 1}
_GLUE_FORM: dict[str, Any] = {"columns": (9, 7, 8), "skip": 1}
_SICK = ("SICK_train.txt", "SICK_trial.txt", "SICK_test_annotated.txt")
# Name -> folder, files and form. STS-B and SICK-R are the test splits. The files of a year are texts and scores in turn.
_TASKS: dict[str, tuple[str, tuple[str, ...], dict[str, Any]]] = {
    **{
        year: (f"{year}-en-test", tuple(f"STS.{side}.{name}.txt" for name in names for side in ("input", "gs")), {})
        for year, names in STS_YEARS.items()
    },
    "STS-B": ("STSBenchmark", ("sts-test.csv",), _STS_B_FORM),
    "STS-B-dev": ("STSBenchmark", ("sts-dev.csv",), _STS_B_FORM),
    "STS-B-train": ("STSBenchmark", ("sts-train.csv",), _STS_B_FORM),
    "SICK-R": ("SICK", _SICK[2:], _SICK_FORM),
    "SICK-R-trial": ("SICK", _SICK[1:2], _SICK_FORM),
    "SICK-R-train": ("SICK", _SICK[:1], _SICK_FORM),
    "SICK-R-all": ("SICK", _SICK, _SICK_FORM),
}
STS_TASKS = tuple(_TASKS)
# The seven test sets that published tables report.
DEFAULT_TASKS = (*STS_YEARS, "STS-B", "SICK-R")
METRICS = ("pearson", "spearman")
# How the subsets of a year are combined to one number.
AGGREGATIONS = ("all", "mean", "wmean")
# Possible places of a data set's folder in the folder that the user names: SentEval's tree, or one of its subfolders.
_BELOW = ("", "STS", "sts", "downstream", "downstream/STS", "data/downstream", "data/downstream/STS", "senteval")


@dataclass(frozen=True)
class Pairs:
    """Pairs of texts ``first[i]`` and ``second[i]`` with gold ``scores[i]``, (N,) float64."""

    first: tuple[str, ...]
    second: tuple[str, ...]
    scores: "npt.NDArray[np.float64]"

    def __len__(self) -> int:
        return len(self.first)


@dataclass(frozen=True)
class StsData:
    """Data of one STS task."""

    name: str  # of STS_TASKS, or the file's name without its suffix
    subsets: Mapping[str, Pairs]  # of a year; otherwise one with the task's name
    hashes: Mapping[str, str]  # file name -> SHA-256
    unscored: int = 0  # number of pairs that were dropped because their gold line is blank

    def __len__(self) -> int:
        return sum(len(pairs) for pairs in self.subsets.values())

    def texts(self) -> list[str]:
        """All texts of both sides, in order, with duplicates."""
        return [text for pairs in self.subsets.values() for text in (*pairs.first, *pairs.second)]


def read_sts(folder: str | Path, task: str) -> StsData:
    """Read one task.

    Args:
        folder: SentEval's data folder, any folder in it on the path to the task, or a folder that contains the tasks' folders.

    Raises:
        UserError: an unknown task, a missing folder or file, or a malformed line, with file and line.
    """
    if task not in STS_TASKS:
        raise UserError(f"{task}: no such STS task; valid are {', '.join(STS_TASKS)}")
    files = _files(folder, task)
    if task in STS_YEARS:
        return _read_subsets(task, files)
    return StsData(task, {task: _read_table(files, **_TASKS[task][2])}, hash_files(files))


def is_present(folder: str | Path, task: str) -> bool:
    """Whether the task's folder exists and, for a split of STS-B or SICK, whether its files do."""
    try:
        return all(task in STS_YEARS or file.is_file() for file in _files(folder, task))
    except UserError:
        return False


def _files(folder: str | Path, task: str) -> list[Path]:
    """The files of a task in its folder; they may be missing."""
    name, files, _ = _TASKS[task]
    home = find_folder(folder, name)
    return [home / file for file in files]


def read_sts_file(path: str | Path) -> StsData:
    """Read a file of pairs in any language. Its name and its columns determine its format:

    - ``STS.input.X.txt`` with ``STS.gs.X.txt`` in the same folder: SemEval;
    - SICK's or GLUE's header in the first line: SICK, or STS-B as GLUE has it;
    - 7 to 9 tab-separated columns: STS-B, with score and texts in columns 5, 6, 7;
    - 3 tab-separated columns: text, text, score.

    Raises:
        UserError: a missing file, or a malformed line, with file and line.
    """
    file = Path(path)
    if file.name.startswith("STS.input."):
        return _read_subsets(file.stem, [file, file.with_name(file.name.replace("STS.input.", "STS.gs.", 1))])
    first = next(filter(str.strip, read_text_lines(file)), "")  # blank lines are ignored
    form = _STS_B_FORM if first.count("\t") >= 6 else {"columns": (2, 0, 1)}
    form = _SICK_FORM if first.startswith("pair_ID\t") else form
    form = _GLUE_FORM if first.startswith("index\tgenre\t") else form
    if form is _STS_B_FORM and first.count("\t") > 8:
        columns = first.count("\t") + 1
        raise UserError(
            f"{path}: {columns} columns; STS-B has 7 to 9, and in GLUE's form 10 with a line of their names"
        )
    return StsData(file.stem, {file.stem: _read_table([file], **form)}, hash_files([file]))


def find_folder(folder: str | Path, name: str) -> Path:
    """Find a data set's folder: ``folder`` itself, or at one of its places in SentEval's tree; UserError if it is missing."""
    root = Path(folder)
    if root.name == name and root.is_dir():
        return root
    places = [root / below / name for below in _BELOW]
    found = next((place for place in places if place.is_dir()), None)
    if found is None:
        what = f"has no {name}, nor have {', '.join(_BELOW[1:])} in it" if root.is_dir() else "no such folder"
        raise UserError(f"{root}: {what}; give the folder of SentEval's data")
    return found


def _read_subsets(name: str, files: Sequence[Path]) -> StsData:
    """Read the subsets of a year from the files of their texts and of their scores, in turn."""
    subsets, unscored = {}, 0
    for source, gold in zip(files[::2], files[1::2], strict=True):
        subset = source.name.removeprefix("STS.input.").removesuffix(".txt")
        for path in (source, gold):
            if not path.is_file():
                raise UserError(f"{path}: this file of subset {subset} is missing; download the data set again")
        texts, golds = read_text_lines(source), read_text_lines(gold)
        if len(texts) != len(golds):
            raise UserError(
                f"{source}: {len(texts)} pairs, but {gold} has {len(golds)} lines (blank ones for pairs without a score); "
                "one of them is cut off"
            )
        numbered = [(number, line) for number, line in enumerate(texts, 1) if golds[number - 1].strip()]
        pairs = [read_columns(source, line, number, (0, 1)) for number, line in numbered]
        scores = [read_score(gold, number, golds[number - 1].strip()) for number, _ in numbered]
        subsets[subset] = _pairs(source, pairs, scores)
        unscored += len(texts) - len(pairs)
    return StsData(name, subsets, hash_files(files), unscored)


def _read_table(paths: Sequence[Path], *, columns: tuple[int, int, int], skip: int = 0) -> Pairs:
    """Read score and two texts from these columns of all files, without the first ``skip`` lines of each and blank lines."""
    texts, scores = [], []
    for path in paths:
        numbered = [(number, line) for number, line in enumerate(read_text_lines(path), 1) if line.strip()]
        for number, line in numbered[:skip]:
            if re.fullmatch(r"\s*[\d.]+\s*", "".join(line.split("\t")[columns[0] : columns[0] + 1])):
                raise UserError(
                    f"{path}:{number}: is a scored pair; the line of the columns' names before it is missing"
                )
        for number, line in numbered[skip:]:
            score, first, second = read_columns(path, line, number, columns)
            texts.append((first, second))
            scores.append(read_score(path, number, score))
        if not numbered[skip:]:
            raise UserError(f"{path}: holds no scored pair")
    return _pairs(paths[-1], texts, scores)


def read_score(path: Path, number: int, text: str) -> float:
    """Read the score of line ``number``; UserError if it is not a finite number."""
    with suppress(ValueError):
        if math.isfinite(score := float(text)):
            return score
    hint = "; if this is a header, remove it" if number == 1 else ""
    raise UserError(f"{path}:{number}: the score {text!r} is not a number{hint}")


def _pairs(path: Path, texts: Sequence[tuple[str, ...]], scores: list[float]) -> Pairs:
    import numpy as np

    if not texts:
        raise UserError(f"{path}: holds no scored pair")
    return Pairs(tuple(text[0] for text in texts), tuple(text[1] for text in texts), np.array(scores, np.float64))


def read_columns(path: str | Path, line: str, number: int, columns: tuple[int, ...]) -> tuple[str, ...]:
    """Split line ``number`` at tabs and return these columns, counted from 0, stripped. Quotes have no special meaning.

    Raises:
        UserError: the line has fewer columns; the message names file and line.
    """
    fields = line.split("\t")
    if len(fields) <= max(columns):
        raise UserError(
            f"{path}:{number}: {len(fields)} tab-separated columns, but column {max(columns) + 1} is needed; "
            "is this file cut off, or of another format?"
        )
    return tuple(fields[column].strip() for column in columns)
