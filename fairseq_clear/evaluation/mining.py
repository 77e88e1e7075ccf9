"""Mining of hard negatives: for each pair of a query and a passage, other texts that an encoder finds near to the query."""

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from tqdm import tqdm

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.encoders import CachedEncoder, Encoder, Floats
from fairseq_clear.evaluation.retrieval import (
    PASSAGES_AT_ONCE,
    PASSAGES_PER_BLOCK,
    Doubles,
    Numbers,
    pair_cosines,
    search,
)
from fairseq_clear.evaluation.retrieval_data import MiningSettings, Pair
from fairseq_clear.files import hash_file

__all__ = ["MinedNegatives", "mine_negatives"]

PAIRS_PER_BLOCK = 32768
CELLS_PER_BLOCK = 2**23  # pairs x ranks that are in memory at a time
Block = tuple[Numbers, Numbers, Numbers, Doubles, Doubles]  # the arrays of MinedNegatives for a block of pairs


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
    folder: Path | None = None,
    pairs_per_block: int = PAIRS_PER_BLOCK,
) -> MinedNegatives:
    """Find hard negatives of each pair among the passages of all pairs and further texts, by the cosine of their vectors.

    The query itself and all its positives are never its negatives. Vectors of the candidates are kept on disk, so memory grows
    with the texts alone.

    Args:
        encoder: see ``encoders.Encoder``; a CachedEncoder is emptied.
        pairs: queries and their passages; a query may have several.
        candidates: further texts; blank ones are ignored.
        settings: which candidates to choose (default: the nearest one).
        query_prefix, passage_prefix: are put before each query and each candidate.
        device: where to search.
        folder: in which a temporary file of vectors is written (default: that of the system).
        pairs_per_block: pairs whose queries are searched together; it changes speed and memory, not the result.

    Raises:
        UserError: settings contradict each other, the encoder does not return finite vectors of one dimension, or no pair has
            enough negatives.
    """
    settings = settings or MiningSettings()
    settings.check()
    cached = CachedEncoder.of(encoder)
    pairs = [(one_line(query), one_line(passage)) for query, passage in pairs]
    further = (text for text in map(one_line, candidates) if text)
    index_of = {text: number for number, text in enumerate(dict.fromkeys([*(text for _, text in pairs), *further]))}
    size = max(1, min(pairs_per_block, CELLS_PER_BLOCK // (settings.last_rank + 1)))
    starts = range(0, len(pairs), size)
    with tempfile.TemporaryDirectory(prefix=".mining.", dir=folder) as work:
        vectors = _store_vectors(Path(work) / "candidates", cached, [passage_prefix + text for text in index_of])
        total, hidden = len(starts) * len(index_of), None if cached.progress else True
        with tqdm(total=total, unit="candidate", desc="searching", disable=hidden, leave=False) as bar:
            miner = _Miner(cached, vectors, index_of, settings, own_texts(pairs, index_of), query_prefix, device, bar)
            blocks = [miner.mine(pairs[start : start + size], start) for start in starts]
    found = MinedNegatives(pairs, list(index_of), *map(np.concatenate, zip(*blocks, strict=True)))
    if not len(found.kept):
        raise UserError(
            f"none of the {len(pairs):,} pairs has {settings.negatives} negatives among {len(index_of):,} candidates; give "
            "more --candidates, or choose among more with --last-rank, --margin and --max-similarity"
        )
    return found


def one_line(text: str) -> str:
    """Replace all white space, such as line breaks, by single spaces, as a file with a text per line needs it."""
    return " ".join(text.split())


def own_texts(pairs: Iterable[Pair], index_of: dict[str, int]) -> dict[str, set[int]]:
    """For each query, the candidates that cannot be its negatives: its positives, and the query itself."""
    own: dict[str, set[int]] = {}
    for query, passage in pairs:
        own.setdefault(query, {index_of[query]} if query in index_of else set()).add(index_of[passage])
    return own


def _store_vectors(path: Path, encoder: CachedEncoder, texts: Sequence[str]) -> Floats:
    """Encode texts a part at a time; return their vectors (N, D), mapped from a file. The encoder's cache is emptied."""
    with path.open("wb") as stream:
        for begin in range(0, len(texts), PASSAGES_AT_ONCE):
            encoder.encode(texts[begin : begin + PASSAGES_AT_ONCE]).tofile(stream)
            encoder.forget()
    return np.memmap(path, np.float32, "r+").reshape(len(texts), -1)


@dataclass
class _Miner:
    """Mines blocks of pairs, in their order."""

    encoder: CachedEncoder
    vectors: Floats  # (N, D) of the candidates
    index_of: dict[str, int]
    settings: MiningSettings
    own: dict[str, set[int]]
    prefix: str
    device: torch.device | str
    bar: "tqdm[object]"

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.settings.seed)

    def mine(self, pairs: Sequence[Pair], first: int) -> Block:
        """Search the candidates for the queries of pairs, the first of which is number ``first``, and choose the negatives."""
        row_of = {query: row for row, query in enumerate(dict.fromkeys(query for query, _ in pairs))}
        rows = np.array([row_of[query] for query, _ in pairs])  # (n,)
        positives = np.array([self.index_of[passage] for _, passage in pairs])  # (n,)
        own = [self.own[query] for query in row_of]
        depth = min(self.settings.last_rank + max(map(len, own)), len(self.index_of))
        queries = self.encoder.encode([self.prefix + query for query in row_of])  # (Q, D)
        self.encoder.forget()
        if queries.shape[1] != self.vectors.shape[1]:
            raise UserError(
                f"encoder {self.encoder.name}: vectors of queries have dimension {queries.shape[1]}, those of candidates "
                f"{self.vectors.shape[1]}"
            )
        nearest = search(queries, self.parts(), depth, device=self.device)
        numbers, scores = nearest.passages.cpu().numpy(), nearest.scores.cpu().numpy()  # (Q, depth)
        ranks = rank_others(numbers, own, len(self.index_of))
        positive = pair_cosines(queries[rows], self.vectors[positives], device=self.device)  # (n,)
        columns, is_kept = self.choose(ranks[rows], scores[rows], positive)
        kept = np.flatnonzero(is_kept)
        chosen = (rows[kept, None], columns[kept].reshape(len(kept), self.settings.negatives))
        return first + kept, numbers[chosen], ranks[chosen], scores[chosen], positive[kept]

    def parts(self) -> Iterator[Floats]:
        """Yield the vectors of the candidates in order, in parts (n, D)."""
        for begin in range(0, len(self.vectors), PASSAGES_PER_BLOCK):
            part = np.array(self.vectors[begin : begin + PASSAGES_PER_BLOCK])
            yield part
            self.bar.update(len(part))

    def choose(self, ranks: Numbers, scores: Doubles, positive: Doubles) -> tuple[Numbers, npt.NDArray[np.bool_]]:
        """Choose N candidates of each pair.

        Args:
            ranks: (n, depth), ascending; 0 for entries that are not candidates.
            scores: (n, depth) cosines.
            positive: (n,) cosines of the positives.

        Returns:
            Their columns (n, N), and whether there are N (n,).
        """
        wanted = self.settings
        allowed = (ranks >= wanted.first_rank) & (ranks <= wanted.last_rank)
        if wanted.margin is not None:
            allowed &= scores < (positive - wanted.margin)[:, None]
        if wanted.max_similarity is not None:
            allowed &= scores <= wanted.max_similarity
        order: Doubles = ranks.astype(np.float64)
        if wanted.sample == "random":  # a number for each rank, so that draws depend on neither depth nor blocks
            draws = self.rng.random((len(ranks), wanted.last_rank - wanted.first_rank + 1))
            order = np.take_along_axis(draws, np.where(allowed, ranks - wanted.first_rank, 0), axis=1)
        columns = np.argsort(np.where(allowed, order, np.inf), axis=1, kind="stable")[:, : wanted.negatives]
        return columns, allowed.sum(axis=1) >= wanted.negatives


def rank_others(numbers: Numbers, own: Sequence[set[int]], count: int) -> Numbers:
    """Rank the candidates of each query from 1, without those of its own, which get 0.

    Args:
        numbers: (Q, depth) indices of candidates, nearest first.
        own: for each query, the indices to leave out.
        count: number of all candidates.
    """
    cells = numbers + count * np.arange(len(numbers))[:, None]
    others = ~np.isin(cells, [count * row + number for row, some in enumerate(own) for number in some])
    ranks: Numbers = np.where(others, others.cumsum(axis=1), 0)
    return ranks
