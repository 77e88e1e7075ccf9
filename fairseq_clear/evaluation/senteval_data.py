"""Reads SentEval's transfer and probing tasks, and holds the settings of its classifiers. Does not import torch.

As in SentEval, texts are split at white space and joined by single spaces, and MR, CR, SUBJ, MPQA, TREC and SNLI are read as
Latin-1. UTF-8 in them, and the ``M-i`` that ``cat -v`` left in MR and CR, are not repaired.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.sts_data import find_folder, read_columns
from fairseq_clear.files import hash_files, read_text_lines
from fairseq_clear.settings import check_settings, setting

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Labels = npt.NDArray[np.int64]

OPTIMIZERS = {"adam": "Adam", "rmsprop": "RMSprop", "sgd": "SGD"}  # flag -> class of torch.optim
LATIN = "latin-1"
ENTAILMENT = ("CONTRADICTION", "NEUTRAL", "ENTAILMENT")
SNLI = ("entailment", "neutral", "contradiction")
TREC = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
# Task -> file of positive texts (label 1), file of negative texts (label 0).
_BINARY = {
    "MR": ("rt-polarity.pos", "rt-polarity.neg"),
    "CR": ("custrev.pos", "custrev.neg"),
    "SUBJ": ("subj.objective", "subj.subjective"),
    "MPQA": ("mpqa.pos", "mpqa.neg"),
}
PROBING_TASKS: dict[str, str] = {
    "Length": "sentence_length.txt",
    "WordContent": "word_content.txt",
    "Depth": "tree_depth.txt",
    "TopConstituents": "top_constituents.txt",
    "BigramShift": "bigram_shift.txt",
    "Tense": "past_present.txt",
    "SubjNumber": "subj_number.txt",
    "ObjNumber": "obj_number.txt",
    "OddManOut": "odd_man_out.txt",
    "CoordinationInversion": "coordination_inversion.txt",
}


@dataclass(frozen=True)
class Split:
    """Texts with labels (N,) from 0; ``second`` are the second texts of pairs."""

    first: tuple[str, ...]
    labels: "Labels"
    second: tuple[str, ...] | None = None

    def texts(self) -> tuple[str, ...]:
        """The texts of both sides."""
        return self.first + (self.second or ())


@dataclass(frozen=True)
class TaskData:
    """Data of one task. Its splits (``all``, or ``train`` and ``test``, with or without ``dev``) decide how it is validated."""

    name: str
    splits: Mapping[str, Split]
    classes: int
    hashes: Mapping[str, str]

    def texts(self) -> list[str]:
        """All texts of all splits."""
        return [text for split in self.splits.values() for text in split.texts()]


def read_task(folder: str | Path, name: str) -> TaskData:
    """Read a transfer or probing task.

    Args:
        folder: SentEval's data folder, its ``downstream`` or ``probing``, or a folder that contains the tasks' folders.

    Raises:
        UserError: a missing file, or a malformed line, with file and line.
    """
    paths = _files(Path(folder), name)
    if name in PROBING_TASKS:
        splits, classes = _read_probing(paths[0])
    else:
        _, files, classes, reader = TRANSFER_TASKS[name]
        splits = {split: reader(paths[0].parent, names, classes) for split, names in files.items()}
    hashes = hash_files(paths)
    for part, split in splits.items():
        if not split.first:
            raise UserError(f"{name}: its {part} split holds no text ({', '.join(hashes)})")
        if part in ("all", "train") and len(set(split.labels.tolist())) < 2:
            raise UserError(
                f"{name}: its {part} split has texts of only one label ({', '.join(hashes)}); give texts of two or more labels"
            )
    return TaskData(name, splits, classes, hashes)


def is_task_present(folder: str | Path, name: str) -> bool:
    """Whether the task's folder has all its files (SICK without its test split is not present)."""
    try:
        return all(path.is_file() for path in _files(Path(folder), name))
    except UserError:
        return False


def _files(folder: Path, name: str) -> list[Path]:
    """The files of a task; they may be missing."""
    if name in PROBING_TASKS:
        places = (folder / "probing", folder / "data" / "probing")
        return [next((place for place in places if place.is_dir()), folder) / PROBING_TASKS[name]]
    directory, files, _, _ = TRANSFER_TASKS[name]
    home = find_folder(folder, directory)
    return [home / file for names in files.values() for file in names]


def _read_binary(home: Path, files: Sequence[str], classes: int) -> Split:
    parts = [read_text_lines(home / file, LATIN) for file in files]
    return _split((line for part in parts for line in part), [1] * len(parts[0]) + [0] * len(parts[1]))


def _read_sst(home: Path, files: Sequence[str], classes: int) -> Split:
    """A line of SST2 is text, tab, label; a line of SST5 is label, space, text."""
    path = home / files[0]
    texts, labels = [], []
    for number, line in _lines(path):
        if classes == 2:
            text, label = read_columns(path, line, number, (0, 1))
        else:
            label, _, text = line.strip().partition(" ")
        labels.append(_label(path, number, label, [str(value) for value in range(classes)]))
        texts.append(text)
    return _split(texts, labels)


def _read_trec(home: Path, files: Sequence[str], classes: int) -> Split:
    path = home / files[0]
    texts, labels = [], []
    for number, line in _lines(path, LATIN):
        coarse, colon, rest = line.partition(":")
        if not colon:
            raise UserError(f"{path}:{number}: no colon; TREC's lines are COARSE:fine question")
        labels.append(_label(path, number, coarse.strip(), TREC))
        texts.append(rest.partition(" ")[2])
    return _split(texts, labels)


def _read_snli(home: Path, files: Sequence[str], classes: int) -> Split:
    first, second = (read_text_lines(home / file, LATIN) for file in files[:2])
    path = home / files[2]
    labels = [_label(path, number, line.strip(), SNLI) for number, line in _lines(path)]
    for file, side in zip(files, (first, second), strict=False):
        if len(side) != len(labels):
            raise UserError(f"{home / file}: {len(side)} lines, but {path} has {len(labels)}; one of them is cut off")
    return _split(first, labels, second)


def _read_pairs(
    home: Path, files: Sequence[str], classes: int, *, columns: tuple[int, int, int], names: Sequence[str]
) -> Split:
    """Read two texts and a label from these columns; the first line is a header."""
    path = home / files[0]
    header, *lines = _lines(path) or [(1, "")]
    if set(header[1].split("\t")[columns[2] : columns[2] + 1]) & set(names):
        raise UserError(f"{path}:1: is a pair with its label; the line of the columns' names before it is missing")
    rows = [(number, read_columns(path, line, number, columns)) for number, line in lines]
    labels = [_label(path, number, row[2], names) for number, row in rows]
    return _split((row[0] for _, row in rows), labels, [row[1] for _, row in rows])


def _read_probing(path: Path) -> tuple[dict[str, Split], int]:
    """Read lines of split (tr, va, te), label and text; return splits and classes, numbered in alphabetical order."""
    names = {"tr": "train", "va": "dev", "te": "test"}
    rows: dict[str, list[tuple[int, str, str]]] = {"train": [], "dev": [], "test": []}
    for number, line in _lines(path):
        split, label, text = read_columns(path, line, number, (0, 1, 2))
        if split not in names:
            raise UserError(f"{path}:{number}: the split {split!r} is not one of {', '.join(names)}")
        rows[names[split]].append((number, label, text))
    labels = sorted({label for _, label, _ in rows["train"]})
    splits = {}
    for split, part in rows.items():
        numbers = [_label(path, number, label, labels) for number, label, _ in part]
        splits[split] = _split((text for _, _, text in part), numbers)
    return splits, len(labels)


def _split(first: Iterable[str], labels: Sequence[int], second: Iterable[str] | None = None) -> Split:
    """The texts with single spaces, sorted by number of words and then by label as SentEval does: its folds depend on this."""
    import numpy as np

    sides = [[" ".join(text.split()) for text in side] for side in (first, second) if side is not None]
    words = [[len(text.split()) for text in side] for side in sides]
    keys = list(zip(*words, labels, strict=True))
    order = sorted(range(len(keys)), key=keys.__getitem__)
    texts, *others = (tuple(side[index] for index in order) for side in sides)
    return Split(texts, np.array(labels, np.int64)[order], *others)


def _lines(path: Path, encoding: str = "utf-8") -> list[tuple[int, str]]:
    """Numbered lines, without blank ones."""
    return [(number, line) for number, line in enumerate(read_text_lines(path, encoding), 1) if line.strip()]


def _label(path: Path, number: int, label: str, names: Sequence[str]) -> int:
    if label not in names:
        raise UserError(f"{path}:{number}: the label {label!r} is not one of {', '.join(names[:20])}")
    return names.index(label)


Reader = Callable[[Path, Sequence[str], int], Split]
_SPLITS = ("train", "dev", "test")
_SICK = {"train": ("SICK_train.txt",), "dev": ("SICK_trial.txt",), "test": ("SICK_test_annotated.txt",)}
_MRPC = partial(_read_pairs, columns=(3, 4, 0), names=("0", "1"))
_SST = {split: (f"sentiment-{split}",) for split in _SPLITS}
# Name -> (folder, files of each split, classes, reader).
TRANSFER_TASKS: dict[str, tuple[str, Mapping[str, tuple[str, ...]], int, Reader]] = {
    **{name: (name, {"all": files}, 2, _read_binary) for name, files in _BINARY.items()},
    "SST2": ("SST/binary", _SST, 2, _read_sst),
    "SST5": ("SST/fine", _SST, 5, _read_sst),
    "TREC": ("TREC", {"train": ("train_5500.label",), "test": ("TREC_10.label",)}, 6, _read_trec),
    "MRPC": ("MRPC", {split: (f"msr_paraphrase_{split}.txt",) for split in ("train", "test")}, 2, _MRPC),
    "SICK-E": ("SICK", _SICK, 3, partial(_read_pairs, columns=(1, 2, 4), names=ENTAILMENT)),
    "SNLI": ("SNLI", {split: (f"s1.{split}", f"s2.{split}", f"labels.{split}") for split in _SPLITS}, 3, _read_snli),
}
# Tasks with a trained regressor -> the names of their splits in sts_data.
REGRESSIONS = {
    "SICK-R": {"train": "SICK-R-train", "dev": "SICK-R-trial", "test": "SICK-R"},
    "STS-B": {"train": "STS-B-train", "dev": "STS-B-dev", "test": "STS-B"},
}
# Tasks without training: mean of the subsets' Spearman correlations, as in DeCLUTR's summary.
SIMILARITIES = ("STS12", "STS13", "STS14", "STS15", "STS16")
DOWNSTREAM_TASKS = (*TRANSFER_TASKS, *REGRESSIONS, *SIMILARITIES)


@dataclass(frozen=True)
class Classifiers:
    """Kind of classifier, and how it is trained and validated. ``logistic`` uses only ``folds``.

    The help texts give SentEval's name of a setting in brackets.
    """

    kind: str = setting(
        "mlp: SentEval's network; logistic: scikit-learn's logistic regression",
        "mlp",
        flag="--classifier",
        choices=("mlp", "logistic"),
    )
    folds: int = setting("number of folds in cross-validation [kfold]", 10, least=2)
    hidden: int = setting("width of the hidden layer, 0 for none [nhid]", 0, least=0, metavar="D")
    optimizer: str = setting("optimizer, with torch's default settings [optim]", "adam", choices=sorted(OPTIMIZERS))
    batch_size: int = setting(
        "rows per update of the classifier [batch_size]", 64, flag="--classifier-batch-size", least=1
    )
    tenacity: int = setting(
        "evaluations without a better held-out accuracy that are tolerated, over the whole training [tenacity]",
        5,
        least=0,
    )
    epoch_size: int = setting("passes over the training rows between two evaluations [epoch_size]", 4, least=1)
    max_epoch: int = setting("maximum number of passes over the training rows [max_epoch]", 200, least=1)
    dropout: float = setting("dropout probability on the hidden layer [dropout]", 0.0, metavar="P")

    def __post_init__(self) -> None:
        check_settings(self)
        if not 0 <= self.dropout < 1:
            raise UserError(f"--dropout {self.dropout}: must be 0 or more and below 1")
        if self.dropout and not self.hidden and self.kind == "mlp":
            raise UserError(
                f"--dropout {self.dropout}: has no effect without a hidden layer; give --hidden, or leave it out"
            )

    def describe(self) -> dict[str, Any]:
        """The settings for a report, without those that the kind does not read."""
        if self.kind == "logistic":
            return {"classifier": "logistic (scikit-learn, lbfgs)", "folds": self.folds}
        described = asdict(self)
        return {"classifier": described.pop("kind"), **described}


# Published protocols: settings and seeds.
PRESETS: dict[str, tuple[Classifiers, tuple[int, ...]]] = {
    # SentEval's README: the settings of its published tables
    "senteval": (Classifiers(), (1111,)),
    # SimCSE evaluation.py --mode test: equal to SentEval's
    "simcse": (Classifiers(), (1111,)),
    # Kim et al. 2021, appendix A.3, table 9
    "self-guided": (Classifiers(hidden=50), (1, 2, 3, 4, 1234, 2345, 3456, 7890)),
    # SentEval with usepytorch=False
    "logistic": (Classifiers(kind="logistic"), (1111,)),
    # SentEval's prototyping configuration, SimCSE's --mode dev and fasttest: faster and lower
    "prototype": (Classifiers(folds=5, optimizer="rmsprop", batch_size=128, tenacity=3, epoch_size=2), (1111,)),
}
