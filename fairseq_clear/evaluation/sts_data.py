"""Data sets of semantic textual similarity, as SentEval lays them out, and any table of two texts and a score."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_clear.errors import UserError
from fairseq_clear.files import read_columns, read_text_lines

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = [
    "AGGREGATIONS",
    "DEFAULT_TASKS",
    "METRICS",
    "STS_TASKS",
    "STS_YEARS",
    "Pairs",
    "StsData",
    "find_folder",
    "is_present",
    "read_sts",
    "read_sts_file",
]

# The subsets of each year, as SentEval has them: STS13 comes without SMT, whose licence forbids it.
STS_YEARS: dict[str, tuple[str, ...]] = {
    "STS12": ("MSRpar", "MSRvid", "SMTeuroparl", "surprise.OnWN", "surprise.SMTnews"),
    "STS13": ("FNWN", "headlines", "OnWN"),
    "STS14": ("deft-forum", "deft-news", "headlines", "images", "OnWN", "tweet-news"),
    "STS15": ("answers-forums", "answers-students", "belief", "headlines", "images"),
    "STS16": ("answer-answer", "headlines", "plagiarism", "postediting", "question-question"),
}
_STS_B = {"STS-B": "sts-test.csv", "STS-B-dev": "sts-dev.csv", "STS-B-train": "sts-train.csv"}
_SICK = {
    "SICK-R": ("SICK_test_annotated.txt",),
    "SICK-R-trial": ("SICK_trial.txt",),
    "SICK-R-train": ("SICK_train.txt",),
    "SICK-R-all": ("SICK_train.txt", "SICK_trial.txt", "SICK_test_annotated.txt"),
}
# Every task by name; STS-B and SICK-R alone mean the test split.
STS_TASKS: tuple[str, ...] = (*STS_YEARS, *_STS_B, *_SICK)
# The seven test sets of the field's tables.
DEFAULT_TASKS = (*STS_YEARS, "STS-B", "SICK-R")
METRICS = ("pearson", "spearman")
FILE_FORMATS = (
    "tab-separated text, text, score; STS-B's columns; a file with SICK's header; or STS.input.X.txt with STS.gs.X.txt"
)
# How the subsets of a year become one number.
AGGREGATIONS = ("all", "mean", "wmean")
# Where a folder of a data set may lie below the one that the user names: SentEval's tree, or parts of it.
_BELOW = ("", "STS", "sts", "downstream", "downstream/STS", "senteval")


@dataclass(frozen=True)
class Pairs:
    """Texts ``first[i]`` and ``second[i]`` with the gold ``scores[i]``, (N,) float64."""

    first: tuple[str, ...]
    second: tuple[str, ...]
    scores: "npt.NDArray[np.float64]"

    def __len__(self) -> int:
        return len(self.first)


@dataclass(frozen=True)
class StsData:
    """A task.

    Attributes:
        name: as in STS_TASKS, or that of the file.
        subsets: those of a year; one, named as the task, otherwise.
        hashes: file name -> SHA-256.
        unscored: pairs that were dropped, their gold line being blank.
    """

    name: str
    subsets: Mapping[str, Pairs]
    hashes: Mapping[str, str]
    unscored: int = 0

    def __len__(self) -> int:
        return sum(len(pairs) for pairs in self.subsets.values())

    def texts(self) -> list[str]:
        """Every text, both sides, in order; repeated ones too."""
        return [text for pairs in self.subsets.values() for text in (*pairs.first, *pairs.second)]


def read_sts(folder: str | Path, task: str) -> StsData:
    """Read a task of STS_TASKS.

    Args:
        folder: SentEval's data folder, any below it down to the task's own, or one with the tasks' folders in it.
        task: its name.

    Raises:
        UserError: no such task, a missing folder, subset or file, or a malformed line, with file and line.
    """
    if task not in STS_TASKS:
        raise UserError(f"{task}: no such STS task; valid are {', '.join(STS_TASKS)}")
    if task in STS_YEARS:
        return _read_year(find_folder(folder, f"{task}-en-test"), task)
    if task in _STS_B:
        files = [find_folder(folder, "STSBenchmark") / _STS_B[task]]
    else:
        home = find_folder(folder, "SICK")
        files = [home / name for name in _SICK[task]]
    reader = read_sts_benchmark if task in _STS_B else read_sick
    return StsData(task, {task: _joined([reader(file) for file in files])}, _hashes(files))


def is_present(folder: str | Path, task: str) -> bool:
    """Whether ``read_sts`` finds the task's folder and, where it is one of several splits in it, the split's files."""
    try:
        if task in STS_YEARS:
            return find_folder(folder, f"{task}-en-test").is_dir()
        if task in _STS_B:
            return (find_folder(folder, "STSBenchmark") / _STS_B[task]).is_file()
        return all((find_folder(folder, "SICK") / name).is_file() for name in _SICK[task])
    except UserError:
        return False


def read_sts_file(path: str | Path) -> StsData:
    """Read one file of any language: its form is told by its name and by its columns.

    - ``STS.input.X.txt``, with ``STS.gs.X.txt`` beside it (SemEval);
    - ``SICK*.txt``, with SICK's header;
    - tab separated with 7 columns or more: STS-B's, score and texts in columns 5, 6, 7;
    - tab separated with 3 columns: text, text, score.

    Raises:
        UserError: a missing file, or a malformed line, with file and line.
    """
    file = Path(path)
    if file.name.startswith("STS.input."):
        subset = file.name.removeprefix("STS.input.").removesuffix(".txt")
        pairs, unscored = _read_subset(file.parent, subset)
        files = (file, _gold_file(file.parent, subset))
        return StsData(file.stem, {subset: pairs}, _hashes(files), unscored)
    lines = read_text_lines(file)
    if not lines:
        raise UserError(f"{file}: is empty; give tab-separated lines of text, text, score")
    is_sick = lines[0].startswith("pair_ID\t")
    wide = len(lines[0].split("\t")) >= 7
    try:
        pairs = read_sick(file) if is_sick else read_sts_benchmark(file) if wide else _read_table(file, (2, 0, 1))
    except UserError as error:
        is_other_format = str(error).startswith(f"{file}:1:")  # not one bad line in a file of the right format
        raise UserError(f"{error}; expected are {FILE_FORMATS}" if is_other_format else str(error)) from None
    return StsData(file.stem, {file.stem: pairs}, _hashes((file,)))


def read_sts_benchmark(path: Path) -> Pairs:
    """``sts-{train,dev,test}.csv``: tabs, no quoting, 7 or 9 columns (two more name sources), no header."""
    return _read_table(path, (4, 5, 6))


def read_sick(path: Path) -> Pairs:
    """``SICK_*.txt``: pair_ID, sentence_A, sentence_B, relatedness_score, entailment_judgment, under a header."""
    return _read_table(path, (3, 1, 2), skip=1)


def find_folder(folder: str | Path, name: str) -> Path:
    """The folder of a data set in ``folder``, in one of the places SentEval's tree has for it, or ``folder`` itself.

    Raises:
        UserError: it is in none of them.
    """
    root = Path(folder)
    if root.name == name and root.is_dir():
        return root
    places = [root / below / name for below in _BELOW]
    found = next((place for place in places if place.is_dir()), None)
    if found is None:
        what = f"has no {name}, nor has any of {', '.join(_BELOW[1:])} in it" if root.is_dir() else "no such folder"
        raise UserError(f"{root}: {what}; give the folder of SentEval's data")
    return found


def _read_year(folder: Path, task: str) -> StsData:
    subsets, unscored = {}, 0
    for name in STS_YEARS[task]:
        subsets[name], dropped = _read_subset(folder, name)
        unscored += dropped
    files = [path for name in subsets for path in (folder / f"STS.input.{name}.txt", _gold_file(folder, name))]
    return StsData(task, subsets, _hashes(files), unscored)


def _gold_file(folder: Path, subset: str) -> Path:
    return folder / f"STS.gs.{subset}.txt"


def _read_subset(folder: Path, subset: str) -> tuple[Pairs, int]:
    source, gold = folder / f"STS.input.{subset}.txt", _gold_file(folder, subset)
    for path in (source, gold):
        if not path.is_file():
            raise UserError(f"{path}: this file of subset {subset} is missing; get the whole data set again")
    texts, golds = read_text_lines(source), read_text_lines(gold)
    if len(texts) != len(golds):
        raise UserError(
            f"{source}: {len(texts)} pairs, but {gold} has {len(golds)} lines (blank ones for pairs without a score); "
            "one of them is cut off"
        )
    numbered = [(number, line) for number, line in enumerate(texts, 1) if golds[number - 1].strip()]
    pairs = [read_columns(source, line, number, (0, 1)) for number, line in numbered]
    scores = [_score(gold, number, golds[number - 1].strip()) for number, _ in numbered]
    return _pairs(source, pairs, scores), len(texts) - len(pairs)


def _read_table(path: Path, columns: tuple[int, int, int], skip: int = 0) -> Pairs:
    """Score and two texts from these columns of every line after the first ``skip``; blank lines are passed over."""
    numbered = [(number, line) for number, line in enumerate(read_text_lines(path), 1) if line.strip()][skip:]
    rows = [read_columns(path, line, number, columns) for number, line in numbered]
    scores = [_score(path, number, row[0]) for (number, _), row in zip(numbered, rows, strict=True)]
    return _pairs(path, [row[1:] for row in rows], scores)


def _score(path: Path, number: int, text: str) -> float:
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        hint = "; if this is a header, remove it" if number == 1 else ""
        raise UserError(f"{path}:{number}: the score {text!r} is no number{hint}")
    return score


def _pairs(path: Path, texts: list[tuple[str, ...]], scores: list[float]) -> Pairs:
    import numpy as np

    if not texts:
        raise UserError(f"{path}: holds no scored pair")
    return Pairs(tuple(text[0] for text in texts), tuple(text[1] for text in texts), np.array(scores, np.float64))


def _joined(parts: list[Pairs]) -> Pairs:
    import numpy as np

    first = tuple(text for part in parts for text in part.first)
    second = tuple(text for part in parts for text in part.second)
    return Pairs(first, second, np.concatenate([part.scores for part in parts]))


def _hashes(files: Sequence[Path]) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
