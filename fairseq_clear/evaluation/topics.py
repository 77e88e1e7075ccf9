"""Classifies 20 Newsgroups by topic: logistic regression on frozen vectors, scored by accuracy and macro-F1."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.sts_data import find_packed
from fairseq_clear.files import corpus_file, hash_file, read_lines, record_texts
from fairseq_clear.libraries import import_library

if TYPE_CHECKING:
    from fairseq_clear.evaluation.encoders import Encoder

__all__ = ["REMOVALS", "TopicData", "TopicResult", "evaluate_topics", "read_topics"]

# Lines that quote another post, by the rule of scikit-learn's fetch_20newsgroups.
_QUOTE = re.compile(r"(writes in|writes:|wrote:|says:|said:|^In article|^Quoted from|^\||^>)")
SPLITS = ("train", "test")
HINT = "a record has the texts `group` and `text`"


def remove_header(text: str) -> str:
    """Return the text after the first blank line."""
    return text.partition("\n\n")[2]


def remove_footer(text: str) -> str:
    """Return the text before the last line that is blank or dashes only, where a signature usually begins."""
    lines = text.strip().split("\n")
    for number in range(len(lines) - 1, -1, -1):
        if not lines[number].strip().strip("-"):
            return "\n".join(lines[:number]) if number > 0 else text
    return text


def remove_quotes(text: str) -> str:
    """Return the text without lines that quote or introduce a quotation."""
    return "\n".join(line for line in text.split("\n") if not _QUOTE.search(line))


# In the order in which scikit-learn applies them.
REMOVALS: dict[str, Callable[[str], str]] = {
    "headers": remove_header,
    "footers": remove_footer,
    "quotes": remove_quotes,
}


@dataclass(frozen=True)
class TopicData:
    """Texts and groups of each split, and the SHA-256 of each file."""

    texts: Mapping[str, Sequence[str]]
    groups: Mapping[str, Sequence[str]]
    hashes: Mapping[str, str]
    removed: tuple[str, ...] = ()


@dataclass(frozen=True)
class TopicResult:
    """Accuracy, macro-F1 and F1 of each group (x100) on the test split, and the number of texts of both splits."""

    accuracy: float
    macro_f1: float
    f1: Mapping[str, float]
    train: int
    test: int


def evaluate_topics(encoder: "Encoder", data: TopicData, *, strength: float = 1.0) -> TopicResult:
    """Train a classifier on the train split and score it on the test split.

    Args:
        encoder: see ``encoders.Encoder``.
        data: see ``read_topics``.
        strength: inverse regularisation C of scikit-learn's logistic regression.

    Raises:
        UserError: the training split has fewer than two groups, or not all groups of the test split.
    """
    import numpy as np

    from fairseq_clear.evaluation.classifiers import fit_classifier
    from fairseq_clear.evaluation.encoders import CachedEncoder
    from fairseq_clear.evaluation.senteval_data import Classifiers

    if not strength > 0:
        raise UserError(f"--strength {strength}: must be above 0")
    names = sorted(set(data.groups["train"]))
    if len(names) < 2:
        raise UserError("topics: the training split has fewer than two groups")
    index = {name: number for number, name in enumerate(names)}
    labels = {split: np.array([index.get(name, -1) for name in data.groups[split]], np.int64) for split in SPLITS}
    if (labels["test"] < 0).any():
        strange = data.groups["test"][int(np.argmin(labels["test"]))]
        raise UserError(f"topics: the test split has the group {strange!r}, which the training split lacks")
    cached = CachedEncoder.of(encoder)
    cached.embed([text for split in SPLITS for text in data.texts[split]])
    train = cached.encode(data.texts["train"]), labels["train"]
    predict = fit_classifier(Classifiers(kind="logistic"), len(names), strength, 0, train)
    predicted = predict(cached.encode(data.texts["test"]))
    f1_score = import_library("sklearn.metrics", "eval").f1_score
    each = f1_score(labels["test"], predicted, labels=range(len(names)), average=None, zero_division=0)
    scores = dict(zip(names, (100 * each).tolist(), strict=True))
    accuracy = 100 * float(np.mean(predicted == labels["test"]))
    return TopicResult(accuracy, float(np.mean(list(scores.values()))), scores, *(len(labels[s]) for s in SPLITS))


def read_topics(folder: str | Path, remove: Sequence[str] = ()) -> TopicData:
    """Read ``20news.{train,test}.jsonl`` (.gz, .xz) in ``folder`` or its ``corpora``.

    Each line is a JSON object with ``group`` and ``text``. ``remove`` has names from REMOVALS: headers contain addresses and
    subjects that give many groups away.

    Raises:
        UserError: a missing file, a malformed line (the message names file and line), or an unknown removal.
    """
    unknown = [name for name in remove if name not in REMOVALS]
    if unknown:
        raise UserError(f"--remove {unknown[0]}: valid are {', '.join(REMOVALS)}")
    removals = tuple(name for name in REMOVALS if name in remove)
    texts, groups, hashes = {}, {}, {}
    for split in SPLITS:
        path = find_packed(
            f"20news.{split}.jsonl",
            Path(folder),
            Path(folder) / "corpora",
            hint="give the folder of 20news.train.jsonl and 20news.test.jsonl (or .xz)",
        )
        numbered = [(number, line) for number, line in read_lines(corpus_file(path)) if line.strip()]
        records = [record_texts(line, ("group", "text"), path, number, hint=HINT) for number, line in numbered]
        if not records:
            raise UserError(f"{path}: holds no text")
        groups[split] = [group for group, _ in records]
        texts[split] = [reduce(lambda text, name: REMOVALS[name](text), removals, text) for _, text in records]
        hashes[path.name] = hash_file(path)
    return TopicData(texts, groups, hashes, removals)
