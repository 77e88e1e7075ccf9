"""Divides text into training documents and held-out ones, and makes queries and passages of the latter."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path

import numpy as np

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.retrieval_data import Pair, pairs_of_documents
from fairseq_clear.files import write_json

__all__ = ["HeldOut", "divide_pairs", "hold_out"]

MOST_TEST, MOST_DEV = 1000, 200
MOST_VALID = 30  # documents of the validation loss, which reads all their sentences
FEWEST = 2  # pairs that retrieval needs
FEWEST_HELD_OUT = 10  # documents, unless that is more than half of them
COUNTS = "counts.json"


@dataclass(frozen=True)
class HeldOut:
    """Counts of documents and pairs."""

    documents: int  # of the text
    long_documents: int  # documents of several sentences
    dev: int  # pairs that choose the checkpoint and the recipe; 0 if there are too few
    test: int  # pairs that compare the encoders


def hold_out(text: Path, folder: Path, share: float, seed: int) -> HeldOut:
    """Write train.txt, valid.txt, dev.jsonl, test.jsonl and, last, counts.json to ``folder``.

    Of six held-out documents, one goes to dev and five to test, so at most MOST_DEV and MOST_TEST.

    Args:
        text: canonical text, as ``prepare --text-only`` writes it.
        folder: exists already.
        share: of the documents to hold out.
        seed: of the choice.

    Raises:
        UserError: the text is a single document.
    """
    lengths = _lengths(text)
    count = min(max(FEWEST_HELD_OUT, round(share * len(lengths))), MOST_DEV + MOST_TEST, len(lengths) // 2)
    chosen = np.random.default_rng(seed).permutation(len(lengths))[:count].tolist()
    dev_count = min(max(FEWEST, count // 6), count)
    documents = _divide(text, folder, valid=chosen[: min(MOST_VALID, dev_count)], held_out=chosen)
    parts = {"dev": chosen[:dev_count], "test": chosen[dev_count:]}
    pairs = {name: list(pairs_of_documents(documents[n] for n in some)) for name, some in parts.items()}
    return _write(folder, pairs, lengths)


def divide_pairs(pairs: list[Pair], text: Path, folder: Path, seed: int) -> HeldOut:
    """As ``hold_out`` for given pairs: a fifth, at most MOST_DEV, goes to dev.jsonl, the rest to test.jsonl.

    Raises:
        UserError: there are fewer than four pairs.
    """
    if len(pairs) < 2 * FEWEST:
        raise UserError(f"--pairs: {len(pairs)} pairs; give {2 * FEWEST} or more")
    rng, lengths = np.random.default_rng(seed), _lengths(text)
    order = rng.permutation(len(pairs)).tolist()
    count = min(max(FEWEST, len(pairs) // 5), MOST_DEV)
    divided = {"dev": [pairs[n] for n in sorted(order[:count])], "test": [pairs[n] for n in sorted(order[count:])]}
    valid = rng.permutation(len(lengths))[: min(MOST_VALID, len(lengths) // 2)].tolist()
    _divide(text, folder, valid=valid, held_out=valid)
    return _write(folder, divided, lengths)


def _lengths(text: Path) -> list[int]:
    """Number of sentences of each document; UserError if there is only one document."""
    lengths = [len(document) for document in _documents(text)]
    if len(lengths) < 2:
        raise UserError(
            f"the text is one document of {sum(lengths)} sentences, and some documents must be held out; put a blank line "
            "between documents, or add --document-start . if every line stands for itself"
        )
    return lengths


def _divide(text: Path, folder: Path, *, valid: list[int], held_out: list[int]) -> dict[int, list[str]]:
    """Write train.txt and valid.txt; return the documents of ``held_out``, which train.txt does not have, by number."""
    found: dict[int, list[str]] = {}
    for_valid, wanted = set(valid), set(held_out)
    with (
        open(folder / "train.txt", "w", encoding="utf-8") as train,
        open(folder / "valid.txt", "w", encoding="utf-8") as held,
    ):
        for number, document in enumerate(_documents(text)):
            if number in wanted:
                found[number] = document
            if number in for_valid or number not in wanted:
                (held if number in for_valid else train).write("\n".join(document) + "\n\n")
    return found


def _write(folder: Path, pairs: dict[str, list[Pair]], lengths: list[int]) -> HeldOut:
    """Write the pairs, none if there are too few, and the counts."""
    enough = all(len({passage for _, passage in some}) >= FEWEST for some in pairs.values())
    for name, some in pairs.items():
        with open(folder / f"{name}.jsonl", "w", encoding="utf-8") as file:
            for query, passage in some if enough else ():
                file.write(json.dumps({"query": query, "passage": passage}, ensure_ascii=False) + "\n")
    sizes = {name: len(some) if enough else 0 for name, some in pairs.items()}
    counts = HeldOut(len(lengths), sum(length > 1 for length in lengths), sizes["dev"], sizes["test"])
    write_json(folder / COUNTS, asdict(counts), flag="--dest")
    return counts


def _documents(text: Path) -> Iterator[list[str]]:
    """Yield the sentences of each document of canonical text."""
    with open(text, encoding="utf-8") as lines:
        for is_document, group in groupby((line.rstrip("\n") for line in lines), bool):
            if is_document:
                yield list(group)
