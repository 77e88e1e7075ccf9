"""Retrieval: exact search for the passages nearest to a query, in blocks, and the metrics of the rankings."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.encoders import CachedEncoder, Encoder, Floats
from fairseq_clear.evaluation.reports import Row
from fairseq_clear.evaluation.retrieval_data import BASELINES, RetrievalData, term_weights
from fairseq_clear.text.sentence_folders import DOCUMENT, QUERY, prompt_for

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

Doubles = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]
METRICS = ("MRR@10", "nDCG@10", "MAP@100", "recall@1", "recall@5", "recall@10", "recall@100")
DEPTH = 100  # passages of a ranking
EXAMPLES, SHOWN = 3, 3  # queries that a report shows, and passages of each
RESAMPLES = 1000
CONFIDENCE = 0.95
QUERIES_PER_BLOCK, PASSAGES_PER_BLOCK = 256, 32768
PASSAGES_AT_ONCE = 65536  # encoded, searched and forgotten before the next ones


class Nearest:
    """The passages with the highest scores for each query, found so far.

    Of passages with equal scores, the one with the lowest number is first. K is the depth.

    Attributes:
        scores: (Q, K) float64, highest first.
        passages: (Q, K) int64, their numbers; -1 where there are fewer than K.
    """

    def __init__(self, queries: int, depth: int, device: torch.device | str = "cpu") -> None:
        self.scores = torch.full((queries, depth), -math.inf, dtype=torch.float64, device=device)
        self.passages = torch.full((queries, depth), -1, dtype=torch.int64, device=device)

    def add(self, queries: slice, rows: Tensor, passages: Tensor, scores: Tensor) -> None:
        """Merge further candidates, sorted by row and then by passage. Their numbers are higher than those added before.

        Args:
            queries: to which the candidates belong.
            rows, passages, scores: (N,) number of the query within ``queries``, number of the passage, float64 score.
        """
        kept, depth = self.scores[queries], self.scores.shape[1]
        better = scores > kept[rows, -1]
        rows, passages, scores = rows[better], passages[better], scores[better]
        if not len(rows):
            return
        counts = torch.bincount(rows, minlength=len(kept))
        slots = depth + torch.arange(len(rows), device=rows.device) - (counts.cumsum(0) - counts)[rows]
        merged = kept.new_full((len(kept), depth + int(counts.max())), -math.inf)
        numbers = merged.new_full(merged.shape, -1, dtype=torch.int64)
        merged[:, :depth], numbers[:, :depth] = kept, self.passages[queries]
        merged[rows, slots], numbers[rows, slots] = scores, passages
        merged, order = merged.sort(dim=1, descending=True, stable=True)  # keeps the order of equal scores
        self.scores[queries] = merged[:, :depth]
        self.passages[queries] = numbers.gather(1, order[:, :depth])


def search(
    queries: Floats, passages: Iterable[Floats], depth: int = DEPTH, *, device: torch.device | str = "cpu"
) -> Nearest:
    """Search exactly for the passages with the highest cosine. Memory does not grow with the number of passages.

    A block of cosines is computed in float32. Those that may be among the highest are computed again in float64 and rounded to
    12 decimals, so that neither the ranking nor its ties depend on the sizes of the blocks.

    Args:
        queries: (Q, D).
        passages: parts (N, D) of the passages' vectors, in their order; each is used once.

    Raises:
        UserError: a vector contains NaN or infinity, or passages have another dimension than queries.
    """
    wanted = _unit(queries, device)  # (Q, D)
    nearest, first = Nearest(len(wanted), depth, device), 0
    for part in passages:
        if part.shape[1] != wanted.shape[1]:
            raise UserError(f"vectors of passages have dimension {part.shape[1]}, those of queries {wanted.shape[1]}")
        for begin in range(0, len(part), PASSAGES_PER_BLOCK):
            block = _unit(part[begin : begin + PASSAGES_PER_BLOCK], device)  # (P, D)
            for row in range(0, len(wanted), QUERIES_PER_BLOCK):
                some = slice(row, row + QUERIES_PER_BLOCK)
                rows, columns = _candidates(wanted[some], block, nearest.scores[some, -1:], depth)
                counts = torch.bincount(rows, minlength=len(wanted[some])).tolist()
                # for most passages, as of an encoder whose vectors are all alike, a copy of the chosen ones takes longest
                whole = block.double() if 2 * max(counts) > len(block) else block
                parts = zip(wanted[some].double(), columns.split(counts), strict=True)
                scores = torch.cat([_products(whole, own, query) for query, own in parts]).round(decimals=12)
                nearest.add(some, rows, first + columns, scores)
            first += len(block)
    return nearest


def _products(passages: Tensor, chosen: Tensor, query: Tensor) -> Tensor:
    if 2 * len(chosen) > len(passages):
        return (passages @ query)[chosen]
    return passages[chosen].double() @ query


def _unit(vectors: Floats, device: torch.device | str) -> Tensor:
    if not np.isfinite(vectors).all():
        raise UserError("retrieval: a vector contains NaN or infinity; check the encoder it comes from")
    given = torch.from_numpy(np.ascontiguousarray(vectors)).to(device)  # (N, D)
    norms = torch.linalg.vector_norm(given, dim=1, keepdim=True, dtype=torch.float64)
    return torch.div(given, norms.clamp(min=1e-12), out=torch.empty_like(given))  # divides in float64


def _candidates(queries: Tensor, passages: Tensor, floor: Tensor, depth: int) -> tuple[Tensor, Tensor]:
    """Return rows and columns, sorted, of all cosines that may exceed ``floor`` (Q, 1) and be among the ``depth`` highest."""
    cosines = queries @ passages.T  # (Q, P)
    slack = queries.shape[1] * 2.0**-23  # twice the bound of the rounding error of a product of unit vectors
    if queries.is_cuda:
        slack += 2.0**-9  # of TF32, which some containers switch on
    chosen = cosines > (floor - slack).float()
    if len(passages) > depth and int(chosen.count_nonzero()) > 4 * depth * len(queries):
        lowest = cosines.topk(depth, dim=1).values[:, -1:]
        chosen &= cosines >= lowest - 2 * slack
    rows, columns = chosen.nonzero(as_tuple=True)
    return rows, columns


def pair_cosines(queries: Floats, passages: Floats, *, device: torch.device | str = "cpu") -> Doubles:
    """Return the cosine (N,) of each query (N, D) with the passage (N, D) of its row, as ``search`` computes it."""
    products = _unit(queries, device).double() * _unit(passages, device)  # (N, D)
    return products.sum(dim=1).round(decimals=12).cpu().numpy()


def search_terms(queries: "csr_matrix", passages: "csr_matrix", depth: int = DEPTH) -> Numbers:
    """Rank passages by the inner products of sparse rows (Q, V) and (P, V), as ``search`` does: (Q, depth).

    Passages with a score of 0 are not found; -1 takes their places.
    """
    ranked, columns = np.full((queries.shape[0], depth), -1, np.int64), passages.T.tocsr()  # (V, P)
    for row, query in zip(ranked, queries, strict=True):
        products = query @ columns
        found = products.indices[np.lexsort((products.indices, -products.data))][:depth]
        row[: len(found)] = found
    return ranked


def score_rankings(ranked: Numbers, relevant: Sequence[Mapping[int, int]]) -> Doubles:
    """Compute the metrics of each query, 0 to 1, as trec_eval does.

    MRR@10 is 1 / rank of the first relevant passage, 0 if that rank is above 10. nDCG@10 has the gain itself as numerator and
    log2(rank + 1) as denominator. MAP@100 and recall divide by the number of all relevant passages. A query without a relevant
    passage scores 0.

    Args:
        ranked: (Q, K) numbers of the passages, best first; -1 for none.
        relevant: for each query, number of a passage -> gain, 1 or more.

    Returns:
        (Q, 7), in the order of METRICS.
    """
    gains, best = np.zeros((len(relevant), DEPTH)), np.zeros((len(relevant), 10))
    for row, highest, numbers, judged in zip(gains, best, ranked[:, :DEPTH].tolist(), relevant, strict=True):
        row[: len(numbers)] = [judged.get(number, 0) for number in numbers]
        highest[: len(judged)] = sorted(judged.values(), reverse=True)[:10]
    ranks = np.arange(1, DEPTH + 1)
    found = gains > 0
    hits = found.cumsum(axis=1)  # (Q, 100)
    total = np.array([max(1, len(judged)) for judged in relevant])
    discounts = np.log2(ranks[:10] + 1)
    ideal = (best / discounts).sum(axis=1)
    columns = [
        (found & (hits == 1))[:, :10] @ (1 / ranks[:10]),
        (gains[:, :10] / discounts).sum(axis=1) / np.where(ideal > 0, ideal, 1),
        (found * hits / ranks).sum(axis=1) / total,
        *(hits[:, depth - 1] / total for depth in (1, 5, 10, 100)),
    ]
    return np.stack(columns, axis=1)


def bootstrap(values: Doubles, seed: int, *, resamples: int = RESAMPLES) -> Doubles:
    """Return the percentile intervals of the means (2, M) of values (Q, M): queries are drawn again, with replacement."""
    rng = np.random.default_rng(seed)
    draws = (rng.integers(len(values), size=len(values)) for _ in range(resamples))
    means = np.stack([values[rows].mean(axis=0) for rows in draws])  # (resamples, M)
    return np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=0)


def evaluate_retrieval(
    encoder: Encoder,
    data: RetrievalData,
    *,
    query_prefix: str | None = None,
    passage_prefix: str | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Row:
    """Search the passages for each query by the cosine of their vectors, and score the rankings.

    Args:
        encoder: see ``encoders.Encoder``; a CachedEncoder keeps the vectors of at most PASSAGES_AT_ONCE passages.
        query_prefix, passage_prefix: are put before each query and each passage (default: the encoder's prompts).
        seed: of the bootstrap and of the examples.

    Returns:
        The row of a report: the metrics, x100; half the widths of their 95 % bootstrap intervals over queries; and as details
        the ``intervals``, for each query the rank of the first relevant passage (``ranks``; 0 if it is not among the first
        100), and for EXAMPLES queries the SHOWN nearest passages and whether they are right (``examples``).

    Raises:
        UserError: the encoder does not return finite vectors of one dimension.
    """
    cached = CachedEncoder.of(encoder)
    query, passage = (
        prompt_for(cached, names, given) for names, given in ((QUERY, query_prefix), (DOCUMENT, passage_prefix))
    )
    if query or passage:
        cached.notes |= {"prompts": {"query": query or "", "passage": passage or ""}}
    queries = cached.encode(data.queries, prompt=query)  # (Q, D)

    def parts() -> Iterator[Floats]:
        for begin in range(0, len(data.passages), PASSAGES_AT_ONCE):
            if len(data.passages) > PASSAGES_AT_ONCE:
                cached.forget()
            yield cached.encode(data.passages[begin : begin + PASSAGES_AT_ONCE], prompt=passage)

    ranked = search(queries, parts(), DEPTH + 1, device=device).passages.cpu().numpy()
    return _score(ranked, data, seed, cached.name, cached.describe())


def score_baseline(baseline: str, data: RetrievalData, *, seed: int = 0) -> Row:
    """Score TF-IDF or BM25, see ``retrieval_data.term_weights``."""
    ranked = search_terms(*term_weights(baseline, data.queries, data.passages), DEPTH + 1)
    return _score(ranked, data, seed, str(BASELINES[baseline]["baseline"]), BASELINES[baseline])


def without_own(ranked: Numbers, data: RetrievalData) -> Numbers:
    """Return the first 100 of the 101 nearest passages (Q, 101), without the one that is the query itself."""
    own = np.array(data.identical if len(data.identical) else [-1] * len(ranked), np.int64)[:, None]
    last = np.argsort(ranked == own, axis=1, kind="stable")
    return np.take_along_axis(ranked, last, axis=1)[:, :DEPTH]


def _score(ranked: Numbers, data: RetrievalData, seed: int, label: str, encoder: Mapping[str, Any]) -> Row:
    """Score the 101 nearest passages (Q, 101), without the one that is the query itself."""
    ranked = without_own(ranked, data)
    values = 100 * score_rankings(ranked, data.relevant)  # (Q, 7)
    low, high = bootstrap(values, seed)
    right = [[number in judged for number in row] for row, judged in zip(ranked.tolist(), data.relevant, strict=True)]
    ranks = [row.index(True) + 1 if True in row else 0 for row in right]
    examples = []
    for query in sorted(np.random.default_rng(seed).permutation(len(ranked))[:EXAMPLES].tolist()):
        found = [data.passages[number] for number in ranked[query, :SHOWN].tolist() if number >= 0]
        example = {"query": data.queries[query], "rank": ranks[query], "passages": found}
        examples.append(example | {"right": right[query][: len(found)]})
    columns = (values.mean(axis=0), (high - low) / 2, np.stack([low, high], axis=1))
    scores, halves, intervals = (dict(zip(METRICS, column.tolist(), strict=True)) for column in columns)
    return Row(label, scores, encoder, halves, {"intervals": intervals, "ranks": ranks, "examples": examples})
