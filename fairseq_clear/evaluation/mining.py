"""Mining of hard negatives: for each pair of a query and a passage, other texts that an encoder finds near to the query."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.encoders import CachedEncoder, Encoder
from fairseq_clear.evaluation.retrieval import Doubles, Numbers, pair_cosines, search
from fairseq_clear.evaluation.retrieval_data import MiningSettings, Pair
from fairseq_clear.files import hash_files
from fairseq_clear.models.encoding import Floats
from fairseq_clear.text.sentence_folders import DOCUMENT, QUERY, prompt_for


@dataclass(frozen=True)
class MinedNegatives:
    """Pairs and their hard negatives. K pairs of all have N negatives; the others are left out."""

    pairs: Sequence[Pair]  # all of them, with single spaces for all white space
    texts: Sequence[str]  # the candidates: each different passage of the pairs, then each further text
    kept: Numbers  # (K,) indices into ``pairs``, ascending
    negatives: Numbers  # (K, N) indices into ``texts``
    ranks: Numbers  # (K, N) ranks of the negatives; 1 is the nearest candidate
    similarities: Doubles  # (K, N) cosines of the negatives with the query
    positive_similarities: Doubles  # (K,) cosines of the positives with the query

    def columns(self) -> dict[str, list[str]]:
        """Texts of the K pairs: ``query``, ``positive``, ``negative1``, ``negative2`` and so on."""
        kept = [self.pairs[number] for number in self.kept.tolist()]
        columns = {"query": [query for query, _ in kept], "positive": [passage for _, passage in kept]}
        for number, column in enumerate(self.negatives.T.tolist(), 1):
            columns[f"negative{number}"] = [self.texts[text] for text in column]
        return columns

    def describe(self) -> dict[str, Any]:
        """Counts, and the mean similarity and rank of each column, as JSON values."""
        return {
            "counts": {"pairs": len(self.pairs), "kept": len(self.kept), "candidates": len(self.texts)},
            "mean_similarity": {
                "positive": float(self.positive_similarities.mean()),
                "negatives": self.similarities.mean(axis=0).tolist(),
            },
            "mean_rank": self.ranks.mean(axis=0).tolist(),
        }

    def write(self, folder: Path) -> dict[str, str]:
        """Write the columns to ``folder`` as aligned text files, ``query.txt`` and so on; return file -> SHA-256."""
        paths = []
        for name, texts in self.columns().items():
            paths.append(folder / f"{name}.txt")
            paths[-1].write_text("".join(f"{text}\n" for text in texts), encoding="utf-8", newline="\n")
        return hash_files(paths)


def mine_negatives(
    encoder: Encoder,
    pairs: Sequence[Pair],
    candidates: Iterable[str] = (),
    settings: MiningSettings | None = None,
    *,
    query_prefix: str | None = None,
    passage_prefix: str | None = None,
    device: torch.device | str = "cpu",
) -> MinedNegatives:
    """Find hard negatives of each pair among the passages of all pairs and further texts, by the cosine of their vectors.

    The query itself and all its positives are never its negatives. The vectors of all texts are kept in memory.

    Args:
        encoder: see ``encoders.Encoder``; a CachedEncoder is emptied.
        candidates: further texts; blank ones are ignored.
        settings: which candidates to choose (default: the nearest one).
        query_prefix, passage_prefix: are put before each query and each candidate (default: the encoder's prompts).
    """
    settings = settings or MiningSettings()
    settings.check()
    pairs = [(" ".join(query.split()), " ".join(passage.split())) for query, passage in pairs]
    further = (" ".join(text.split()) for text in candidates if text.strip())
    index_of = {text: number for number, text in enumerate(dict.fromkeys([*(text for _, text in pairs), *further]))}
    row_of = {query: row for row, query in enumerate(dict.fromkeys(query for query, _ in pairs))}
    cached, vectors = CachedEncoder.of(encoder), []
    for names, given, texts in ((QUERY, query_prefix, row_of), (DOCUMENT, passage_prefix, index_of)):
        vectors.append(cached.encode(list(texts), prompt=prompt_for(cached, names, given)))
        cached.forget()
    own: list[set[int]] = [set() for _ in row_of]  # for each query, itself and its positives
    for query, passage in pairs:
        own[row_of[query]].update((index_of[passage], index_of.get(query, index_of[passage])))
    width = min(settings.last_rank, len(index_of))
    numbers, scores = _nearest_others(vectors[0], vectors[1], own, width, device)  # (Q, width) each
    rows = np.array([row_of[query] for query, _ in pairs])  # (n,)
    positives = np.array([index_of[passage] for _, passage in pairs])  # (n,)
    positive = pair_cosines(vectors[0][rows], vectors[1][positives], device=device)  # (n,)
    allowed = ((numbers >= 0) & (np.arange(width) >= settings.first_rank - 1))[rows]  # (n, width)
    if settings.margin is not None:
        allowed &= scores[rows] < (positive - settings.margin)[:, None]
    kept = np.flatnonzero(allowed.sum(axis=1) >= settings.negatives)  # (K,)
    if not len(kept):
        raise UserError(
            f"none of the {len(pairs):,} pairs has {settings.negatives} negatives among {len(index_of):,} candidates; give "
            "more texts, lower --negatives or --margin, or choose among more ranks"
        )
    # the allowed candidates first, in the order of their ranks
    chosen = rows[kept, None], np.argsort(~allowed[kept], axis=1, kind="stable")[:, : settings.negatives]
    columns = numbers[chosen], chosen[1] + 1, scores[chosen], positive[kept]
    return MinedNegatives(pairs, list(index_of), kept, *columns)


def _nearest_others(
    queries: Floats, texts: Floats, own: Sequence[set[int]], width: int, device: torch.device | str
) -> tuple[Numbers, Doubles]:
    """Numbers, -1 where there are fewer, and cosines of the texts nearest to each query but its ``own``: (Q, width) each."""
    numbers, scores = np.full((len(own), width), -1), np.zeros((len(own), width))
    # queries with many own texts are apart from those with few, because their search is deeper
    sizes = np.array([2 ** (len(some) - 1).bit_length() for some in own])  # (Q,)
    for size in np.unique(sizes).tolist():
        rows = np.flatnonzero(sizes == size)
        nearest = search(queries[rows], [texts], min(width + size, len(texts)), device=device)
        found, cosines = nearest.passages.cpu().numpy(), nearest.scores.cpu().numpy()  # (R, depth)
        cells = [len(texts) * place + number for place, row in enumerate(rows.tolist()) for number in own[row]]
        is_own = np.isin(found + len(texts) * np.arange(len(rows))[:, None], cells)
        order = np.argsort(is_own, axis=1, kind="stable")[:, :width]  # the others first, in the order of their ranks
        found, cosines, is_own = (np.take_along_axis(column, order, axis=1) for column in (found, cosines, is_own))
        numbers[rows], scores[rows] = np.where(is_own, -1, found), cosines
    return numbers, scores
