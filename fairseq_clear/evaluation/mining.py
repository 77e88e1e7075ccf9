"""Mining of hard negatives: for each pair of a query and a passage, other texts that an encoder finds near to the query."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.encoders import CachedEncoder, Encoder, Floats
from fairseq_clear.evaluation.retrieval import Doubles, Numbers, pair_cosines, search
from fairseq_clear.evaluation.retrieval_data import MiningSettings, Pair
from fairseq_clear.files import hash_file

__all__ = ["MinedNegatives", "mine_negatives"]


@dataclass(frozen=True)
class MinedNegatives:
    """Pairs and their hard negatives. K pairs of all have N negatives; the others are left out.

    Attributes:
        pairs: all pairs, with single spaces for all white space.
        texts: the candidates: each different passage of the pairs, then each further text.
        kept: (K,) indices into ``pairs``, ascending.
        negatives: (K, N) indices into ``texts``.
        ranks: (K, N) ranks of the negatives; 1 is the nearest candidate.
        similarities: (K, N) cosines of the negatives with the query.
        positive_similarities: (K,) cosines of the positives with the query.
    """

    pairs: Sequence[Pair]
    texts: Sequence[str]
    kept: Numbers
    negatives: Numbers
    ranks: Numbers
    similarities: Doubles
    positive_similarities: Doubles

    def columns(self) -> Iterator[tuple[str, Iterable[str]]]:
        """Yield (name, texts of the K pairs): ``query``, ``positive``, ``negative1``, ``negative2`` and so on."""
        yield "query", (self.pairs[number][0] for number in self.kept.tolist())
        yield "positive", (self.pairs[number][1] for number in self.kept.tolist())
        for column, numbers in enumerate(self.negatives.T, 1):
            yield f"negative{column}", (self.texts[number] for number in numbers.tolist())

    def write(self, folder: Path) -> dict[str, str]:
        """Write the columns to ``folder`` as aligned text files, ``query.txt`` and so on; return file -> SHA-256."""
        hashes = {}
        for name, texts in self.columns():
            path = folder / f"{name}.txt"
            with path.open("w", encoding="utf-8", newline="\n") as stream:
                stream.writelines(f"{text}\n" for text in texts)
            hashes[path.name] = hash_file(path)
        return hashes


def mine_negatives(
    encoder: Encoder,
    pairs: Sequence[Pair],
    candidates: Iterable[str] = (),
    settings: MiningSettings | None = None,
    *,
    query_prefix: str = "",
    passage_prefix: str = "",
    device: torch.device | str = "cpu",
) -> MinedNegatives:
    """Find hard negatives of each pair among the passages of all pairs and further texts, by the cosine of their vectors.

    The query itself and all its positives are never its negatives. The vectors of all texts are kept in memory.

    Args:
        encoder: see ``encoders.Encoder``; a CachedEncoder is emptied.
        pairs: queries and their passages; a query may have several.
        candidates: further texts; blank ones are ignored.
        settings: which candidates to choose (default: the nearest one).
        query_prefix, passage_prefix: are put before each query and each candidate.
        device: where to search.

    Raises:
        UserError: settings contradict each other, the encoder does not return finite vectors of one dimension, or no pair has
            enough negatives.
    """
    settings = settings or MiningSettings()
    settings.check()
    pairs = [(one_line(query), one_line(passage)) for query, passage in pairs]
    further = (text for text in map(one_line, candidates) if text)
    index_of = {text: number for number, text in enumerate(dict.fromkeys([*(text for _, text in pairs), *further]))}
    row_of = {query: row for row, query in enumerate(dict.fromkeys(query for query, _ in pairs))}
    queries, vectors = _encode(
        CachedEncoder.of(encoder),
        [query_prefix + query for query in row_of],
        [passage_prefix + text for text in index_of],
    )
    by_query = own_texts(pairs, index_of)
    own = [by_query[query] for query in row_of]
    depth = min(settings.last_rank + max(map(len, own), default=0), len(index_of))
    nearest = search(queries, [vectors], depth, device=device)
    numbers, scores = nearest.passages.cpu().numpy(), nearest.scores.cpu().numpy()  # (Q, depth)
    ranks = rank_others(numbers, own, len(index_of))
    rows = np.array([row_of[query] for query, _ in pairs])  # (n,)
    positives = np.array([index_of[passage] for _, passage in pairs])  # (n,)
    positive = pair_cosines(queries[rows], vectors[positives], device=device)  # (n,)
    columns, is_kept = _choose(ranks[rows], scores[rows], positive, settings)
    if not is_kept.any():
        raise UserError(
            f"none of the {len(pairs):,} pairs has {settings.negatives} negatives among {len(index_of):,} candidates; give "
            "more --candidates, or choose among more with --last-rank, --margin and --max-similarity"
        )
    kept = np.flatnonzero(is_kept)
    chosen = rows[kept, None], columns[kept]
    found = numbers[chosen], ranks[chosen], scores[chosen], positive[kept]
    return MinedNegatives(pairs, list(index_of), kept, *found)


def _encode(cached: CachedEncoder, queries: Sequence[str], candidates: Sequence[str]) -> tuple[Floats, Floats]:
    """Return the vectors (Q, D) of the queries and (N, D) of the candidates; the encoder does not keep them."""
    vectors = []
    for texts in (queries, candidates):
        vectors.append(cached.encode(texts))
        cached.forget()
    if vectors[0].shape[1] != vectors[1].shape[1]:
        raise UserError(
            f"encoder {cached.name}: vectors of queries have dimension {vectors[0].shape[1]}, those of candidates "
            f"{vectors[1].shape[1]}"
        )
    return vectors[0], vectors[1]


def one_line(text: str) -> str:
    """Replace all white space, such as line breaks, by single spaces, as a file with a text per line needs it."""
    return " ".join(text.split())


def own_texts(pairs: Iterable[Pair], index_of: dict[str, int]) -> dict[str, set[int]]:
    """For each query, the candidates that cannot be its negatives: its positives, and the query itself."""
    own: dict[str, set[int]] = {}
    for query, passage in pairs:
        own.setdefault(query, {index_of[query]} if query in index_of else set()).add(index_of[passage])
    return own


def _choose(
    ranks: Numbers, scores: Doubles, positive: Doubles, wanted: MiningSettings
) -> tuple[Numbers, npt.NDArray[np.bool_]]:
    """Choose N candidates of each pair.

    Args:
        ranks: (n, depth), ascending; 0 for entries that are not candidates.
        scores: (n, depth) cosines.
        positive: (n,) cosines of the positives.
        wanted: which candidates to choose.

    Returns:
        Their columns (n, N), and whether there are N (n,).
    """
    allowed = (ranks >= wanted.first_rank) & (ranks <= wanted.last_rank)
    if wanted.margin is not None:
        allowed &= scores < (positive - wanted.margin)[:, None]
    if wanted.max_similarity is not None:
        allowed &= scores <= wanted.max_similarity
    order: Doubles = ranks.astype(np.float64)
    if wanted.sample == "random":  # a number for each rank, so that draws do not depend on the depth
        rng = np.random.default_rng(wanted.seed)
        draws = rng.random((len(ranks), wanted.last_rank - wanted.first_rank + 1))
        order = np.take_along_axis(draws, np.where(allowed, ranks - wanted.first_rank, 0), axis=1)
    columns = np.argsort(np.where(allowed, order, np.inf), axis=1, kind="stable")[:, : wanted.negatives]
    return columns, allowed.sum(axis=1) >= wanted.negatives


def rank_others(numbers: Numbers, own: Sequence[set[int]], count: int) -> Numbers:
    """Rank the candidates of each query from 1. Its own texts get 0.

    Args:
        numbers: (Q, depth) indices of candidates, nearest first.
        own: for each query, the indices to leave out.
        count: number of all candidates.
    """
    cells = numbers + count * np.arange(len(numbers))[:, None]
    others = ~np.isin(cells, [count * row + number for row, some in enumerate(own) for number in some])
    ranks: Numbers = np.where(others, others.cumsum(axis=1), 0)
    return ranks
