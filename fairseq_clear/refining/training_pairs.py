"""Pairs of a query and a passage to train on: which of them compare encoders instead, and hard negatives for the others."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.encoders import Encoder
from fairseq_clear.evaluation.mining import mine_negatives
from fairseq_clear.evaluation.retrieval_data import MiningSettings, Pair
from fairseq_clear.output_folder import output_folder
from fairseq_clear.refining.holding_out import (
    MOST_OTHERS,
    MOST_VALID,
    HeldOut,
    below_title,
    count_held_out,
    find_titles,
    read_documents,
    split_pairs,
    write_held_out,
)

ROWS = "pairs.jsonl"  # what is trained on: a list of query, passage and given negatives on each line
FURTHER = "further.jsonl"  # documents without a title, among which hard negatives are found
QUERY, PASSAGE, NEGATIVE = "query", "passage", "negative"  # names of the files of rows
VALID_SHARE = 0.05  # of the training pairs, at most MOST_VALID of them, whose loss is shown
Row = tuple[str, ...]  # query, passage, hard negatives


def divide_training_pairs(
    rows: Iterable[Row], judged: list[Pair] | None, text: Path | None, folder: Path, share: float, seed: int
) -> HeldOut:
    """Write pairs.jsonl, further.jsonl, the question and, last, counts.json to ``folder``.

    No query and no passage of the comparison is trained on: a pair with one of them is left out, and so is a hard negative, and
    a document of the text that is one of them, with or without its title. White space is ignored. The titles
    of the other documents and what follows them are further pairs.

    Args:
        rows: query, passage and hard negatives of each pair; equal ones count once.
        judged: pairs to compare by; None holds out a share of the passages, with all pairs of their queries.
        text: canonical text, or None.
    """
    rows = list(dict.fromkeys(tuple(" ".join(part.split()) for part in row) for row in rows))
    held, negatives, rng = len(rows), min(len(row) - 2 for row in rows), np.random.default_rng(seed)
    if judged is None:
        passages = list(dict.fromkeys(row[1] for row in rows))
        chosen = {passages[n] for n in rng.permutation(len(passages))[: count_held_out(len(passages), share)]}
        asked = {row[0] for row in rows if row[1] in chosen}
        judged = [(row[0], row[1]) for row in rows if row[0] in asked]
        held -= len(judged)
    else:
        judged = [(" ".join(query.split()), " ".join(passage.split())) for query, passage in judged]
    taken = {_squeezed(part) for pair in judged for part in pair}
    free_rows = [row for row in rows if taken.isdisjoint(map(_squeezed, row[:2]))]
    rows = [(*row[:2], *(text for text in row[2:] if _squeezed(text) not in taken)) for row in free_rows]
    left_out = held - len(rows)
    documents = [] if text is None else read_documents(text)
    titled = find_titles(documents)
    # a passage of the comparison may be a whole document, or what is below its title
    free = [
        n
        for n, document in enumerate(documents)
        if taken.isdisjoint(map(_squeezed, (document[0], below_title(document), "".join(document))))
    ]
    left_out += len(documents) - len(free)
    known = {row[:2] for row in rows}
    of_titles = [(documents[n][0], below_title(documents[n])) for n in free if n in titled]
    further = [" ".join(documents[n]) for n in free if n not in titled]
    rows += [pair for pair in of_titles if pair not in known]
    if len(rows) < 2:
        raise UserError(
            f"--train-pairs: {len(rows)} pairs to train on; {len(judged):,} pairs compare encoders, and {left_out:,} have a "
            "query or a passage of those; give more pairs"
        )
    _write_lines(folder / ROWS, rows)
    _write_lines(folder / FURTHER, [[passage] for passage in further])
    divided, others = split_pairs(judged, rng)
    candidates = [*others, *further, *dict.fromkeys(row[1] for row in rows)]
    others = [candidates[n] for n in rng.permutation(len(candidates))[:MOST_OTHERS]]
    counted = {"pairs": len(rows), "left_out": left_out, "negatives": negatives}
    return write_held_out(folder, divided, others, documents, len(titled), **counted)


def write_rows(folder: Path, dest: Path, load: Callable[[], Encoder], count: int, margin: float, device: str) -> None:
    """Write query.txt, passage.txt, negative1.txt and so on to ``dest``: line n of each belongs to one pair.

    The given hard negatives of a pair come first. Where they are too few, others are mined among the passages of all pairs and
    the documents without a title. Pairs for which too few are found are left out.

    Args:
        folder: of ``divide_training_pairs``.
        load: returns the encoder that mines.
        count: number of hard negatives of each pair.
        margin: see ``MiningSettings``.
    """
    rows = _read_lines(folder / ROWS)
    short = sum(len(row) - 2 < count for row in rows)
    if short:
        further = [passage for (passage,) in _read_lines(folder / FURTHER)]
        settings, found, filled = MiningSettings(negatives=count, margin=margin), {}, []
        settings.last_rank = max(settings.last_rank, count)
        try:
            mined = mine_negatives(load(), [(row[0], row[1]) for row in rows], further, settings, device=device)
            found = dict(zip(mined.kept.tolist(), mined.negatives.tolist(), strict=True))
        except UserError:  # too few texts: the pairs that have all of theirs are left
            if short == len(rows):
                raise
        for n, row in enumerate(rows):
            texts = dict.fromkeys((*row[2:], *(mined.texts[number] for number in found.get(n, ()))))
            if len(texts) >= count:
                filled.append((*row[:2], *texts))
        print(
            f"# {len(filled):,} of {len(rows):,} pairs have {count} hard negatives; the others are left out", flush=True
        )
        rows = filled
    names = (QUERY, PASSAGE, *(f"{NEGATIVE}{n + 1}" for n in range(count)))
    with output_folder(dest, overwrite=False) as written:
        for name, column in zip(names, zip(*(row[: count + 2] for row in rows), strict=True), strict=True):
            (written / f"{name}.txt").write_text("".join(f"{one}\n" for one in column), encoding="utf-8")


def read_rows(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Return the passages of a folder of ``write_rows``, and the fields of PrepareSettings that align the others to them."""
    text, count = folder / f"{PASSAGE}.txt", len(list(folder.glob(f"{NEGATIVE}*.txt")))
    names = (QUERY, *(f"{NEGATIVE}{n + 1}" for n in range(count)))
    with open(text, encoding="utf-8") as lines:
        share = min(VALID_SHARE, MOST_VALID / sum(1 for _ in lines))
    paraphrases = tuple((name, folder / f"{name}.txt") for name in names)
    return text, {"paraphrase": paraphrases, "document_start": ".", "valid_share": float(f"{share:.3g}")}


def _squeezed(text: str) -> str:
    """The text without white space, which splitting into sentences changes."""
    return "".join(text.split())


def _write_lines(path: Path, rows: Iterable[Iterable[str]]) -> None:
    path.write_text("".join(f"{json.dumps(list(row))}\n" for row in rows))


def _read_lines(path: Path) -> list[Row]:
    return [tuple(json.loads(line)) for line in path.read_text().splitlines()]
