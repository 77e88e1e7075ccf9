"""Classifies labelled text: logistic regression on frozen vectors, scored by accuracy and macro-F1."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.sts_data import read_columns
from fairseq_clear.files import CorpusFile, hash_files, read_whole_lines, record_texts
from fairseq_clear.libraries import import_library

if TYPE_CHECKING:
    from fairseq_clear.evaluation.classifiers import Rows
    from fairseq_clear.evaluation.encoders import Encoder

STRENGTHS = (0.01, 0.1, 1.0, 10.0, 100.0)  # inverse regularisations C to choose from
# Parts of a post of 20 Newsgroups -> scikit-learn's function that removes it, in scikit-learn's order.
REMOVALS = {
    "headers": "strip_newsgroup_header",
    "footers": "strip_newsgroup_footer",
    "quotes": "strip_newsgroup_quoting",
}


@dataclass(frozen=True)
class LabelledText:
    """Texts and labels of ``train`` and, with a fixed split, of ``test``; file -> SHA-256; the parts that were removed."""

    texts: Mapping[str, Sequence[str]]
    labels: Mapping[str, Sequence[str]]
    hashes: Mapping[str, str]
    removed: tuple[str, ...] = ()


@dataclass(frozen=True)
class LabelScore:
    """Scores (x100) on the texts of the test split, or of one fold."""

    accuracy: float
    macro_f1: float  # mean of ``f1``
    f1: Mapping[str, float]  # label -> F1
    strength: float  # inverse regularisation C of the classifier
    train: int  # number of texts, as ``test``
    test: int


def read_labelled(
    train: Path,
    test: Path | None = None,
    *,
    text_field: str = "text",
    label_field: str = "label",
    remove: Sequence[str] = (),
) -> LabelledText:
    """Read labelled texts.

    Args:
        train, test: ``.jsonl`` with a record per line, or ``.tsv`` whose first line names the columns; also .gz and .xz.
        text_field, label_field: names of the fields. A label is a text or a whole number.
        remove: names from REMOVALS: headers contain addresses and subjects that give many groups away.

    Raises:
        UserError: a missing file, a malformed line (the message names file and line), or an unknown removal.
    """
    unknown = [name for name in remove if name not in REMOVALS]
    if unknown:
        raise UserError(f"--remove {unknown[0]}: valid are {', '.join(REMOVALS)}")
    removals = tuple(name for name in REMOVALS if name in remove)
    posts = import_library("sklearn.datasets._twenty_newsgroups", "eval") if removals else None
    paths = {"train": train} if test is None else {"train": train, "test": test}
    texts, labels = {}, {}
    for split, path in paths.items():
        read = _read_records if CorpusFile(path).is_jsonl else _read_table
        rows = list(read(path, text_field, label_field))
        if not rows:
            raise UserError(f"{path}: holds no text")
        texts[split] = [
            reduce(lambda text, name: getattr(posts, REMOVALS[name])(text), removals, text) for text, _ in rows
        ]
        labels[split] = [label for _, label in rows]
    return LabelledText(texts, labels, hash_files(list(paths.values())), removals)


def _read_records(path: Path, text_field: str, label_field: str) -> Iterator[tuple[str, str]]:
    for number, line in read_whole_lines(path):
        if line.strip():
            (text,), label = record_texts(line, (text_field,), path, number), json.loads(line).get(label_field)
            if not isinstance(label, str | int) or isinstance(label, bool) or label == "":
                raise UserError(
                    f"{path}:{number}: no label (text or whole number) in {label_field!r}; name its field with --label-field"
                )
            yield text, str(label)


def _read_table(path: Path, text_field: str, label_field: str) -> Iterator[tuple[str, str]]:
    if CorpusFile(path).kind != ".tsv":
        raise UserError(f"{path}: labelled texts are read from .jsonl and .tsv, also .gz and .xz; convert or rename it")
    names: list[str] = []
    for number, line in read_whole_lines(path):
        if not names:
            names = line.split("\t")
            for flag, field in (("--text-field", text_field), ("--label-field", label_field)):
                if field not in names:
                    raise UserError(f"{flag} {field}: {path}:{number} names only the columns {', '.join(names)}")
            columns = names.index(text_field), names.index(label_field)
        elif line.strip():
            if (found := line.count("\t") + 1) > len(names):
                raise UserError(
                    f"{path}:{number}: {found} tab-separated columns, but line 1 names {len(names)}; a text has no tabs"
                )
            text, label = read_columns(path, line, number, columns)
            if not label:
                raise UserError(f"{path}:{number}: the label is empty; give one, or drop the line")
            yield text, label


def evaluate_labelled(
    encoder: "Encoder", data: LabelledText, *, folds: int = 5, strength: float | None = None, seed: int = 1
) -> list[LabelScore]:
    """Train a classifier on the training texts and score it on the test texts, or on each of ``folds`` folds if there are none.

    Args:
        folds: number of folds; folds of the training texts also choose the regularisation.
        strength: inverse regularisation C of scikit-learn's logistic regression (default: the best of STRENGTHS).
        seed: seed of the folds.

    Raises:
        UserError: fewer than two labels, a label that occurs only in the test texts or in fewer texts than there are folds.
    """
    import numpy as np

    from fairseq_clear.evaluation.classifiers import choose_regularization, fit_classifier, stratified_folds
    from fairseq_clear.evaluation.encoders import CachedEncoder
    from fairseq_clear.evaluation.senteval_data import Classifiers

    names = sorted(set(data.labels["train"]))
    if len(names) < 2:
        raise UserError(
            f"--train: all {len(data.labels['train'])} texts have the label {names[0]!r}; give two labels or more"
        )
    strange = sorted(set(data.labels.get("test", ())) - set(names))
    if strange:
        raise UserError(f"--test: has the label {strange[0]!r}, which --train lacks")
    cached, settings = CachedEncoder.of(encoder), Classifiers(kind="logistic", folds=folds)
    cached.embed([text for texts in data.texts.values() for text in texts])
    rows = {
        split: (cached.encode(texts), np.array([names.index(label) for label in data.labels[split]], np.int64))
        for split, texts in data.texts.items()
    }
    f1_score = import_library("sklearn.metrics", "eval").f1_score

    def score(train: "Rows", test: "Rows") -> LabelScore:
        chosen = strength or choose_regularization(train, len(names), settings, seed, STRENGTHS, seed)[0]
        predicted = fit_classifier(settings, len(names), chosen, seed, train)(test[0])
        each = 100 * f1_score(test[1], predicted, labels=range(len(names)), average=None, zero_division=0)
        accuracy, f1 = 100 * float((predicted == test[1]).mean()), dict(zip(names, each.tolist(), strict=True))
        present = np.union1d(test[1], predicted)  # as scikit-learn's macro average
        return LabelScore(accuracy, float(each[present].mean()), f1, chosen, len(train[1]), len(test[1]))

    if "test" in rows:
        return [score(rows["train"], rows["test"])]
    vectors, labels = rows["train"]
    return [
        score((vectors[train], labels[train]), (vectors[held], labels[held]))
        for train, held in stratified_folds(vectors, labels, folds, seed)
    ]
