"""The synonym table: words and their alternatives as arrays, in which all words of a text are looked up at once."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fairseq_clear.tokens import ranges

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class SynonymTable:
    """Alternatives of words, as pieces of one vocabulary, in compressed rows: flat arrays and the offsets of their rows.

    Row r holds the word ``word_pieces[word_offsets[r]:word_offsets[r + 1]]`` and the alternatives
    ``row_offsets[r]`` to ``row_offsets[r + 1]``; number a has the pieces
    ``alternative_pieces[alternative_offsets[a]:alternative_offsets[a + 1]]``.

    Attributes:
        is_word_start: (vocabulary,) bool, whether a word begins at this piece.
        word_pieces, word_offsets, row_offsets: (.,), (rows + 1,), (rows + 1,) int64.
        alternative_pieces, alternative_offsets: (.,), (alternatives + 1,) int64.

    Raises:
        ValueError: the arrays do not fit together, a word or an alternative is empty, or a word occurs twice.
    """

    is_word_start: npt.NDArray[np.bool_]
    word_pieces: Integers
    word_offsets: Integers
    row_offsets: Integers
    alternative_pieces: Integers
    alternative_offsets: Integers
    _multipliers: npt.NDArray[np.uint64] = field(init=False, repr=False, compare=False)
    _sorted_hashes: npt.NDArray[np.uint64] = field(init=False, repr=False, compare=False)
    _sorted_rows: Integers = field(init=False, repr=False, compare=False)
    _single: Integers = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._check()
        lengths = np.diff(self.word_offsets)  # (rows,)
        longest = int(lengths.max(initial=1))
        # Two different words practically never have the same hash. If they do, other multipliers give different hashes.
        for attempt in range(4):
            multipliers = hash_multipliers(longest, attempt)
            hashes = _hash_words(self.word_pieces, self.word_offsets[:-1], lengths, multipliers)  # (rows,)
            order = np.argsort(hashes, kind="stable")
            if not (hashes[order][1:] == hashes[order][:-1]).any():
                break
        else:
            raise ValueError("a word stands twice in the synonym table")
        object.__setattr__(self, "_multipliers", multipliers)
        object.__setattr__(self, "_sorted_hashes", hashes[order])
        object.__setattr__(self, "_sorted_rows", order)
        single = np.full(len(self.is_word_start) + 1, -1, np.int64)
        rows = np.flatnonzero(lengths == 1)
        single[self.word_pieces[self.word_offsets[rows]]] = rows
        object.__setattr__(self, "_single", single)

    @classmethod
    def build(
        cls, rows: Mapping[tuple[int, ...], list[tuple[int, ...]]], is_word_start: npt.NDArray[np.bool_]
    ) -> "SynonymTable":
        """Build a table from ``{word: [alternative, ...]}``, all as pieces; words without alternatives are left out."""
        kept = {word: alternatives for word, alternatives in rows.items() if alternatives}
        flat = [alternative for alternatives in kept.values() for alternative in alternatives]
        return cls(
            is_word_start=is_word_start,
            word_pieces=_concatenate(list(kept)),
            word_offsets=_offsets(list(map(len, kept))),
            row_offsets=_offsets(list(map(len, kept.values()))),
            alternative_pieces=_concatenate(flat),
            alternative_offsets=_offsets(list(map(len, flat))),
        )

    def __len__(self) -> int:
        """The number of words that have alternatives."""
        return len(self.word_offsets) - 1

    def find(self, tokens: Integers, starts: Integers) -> Integers:
        """The row of each word of ``tokens`` (n,), words beginning at ``starts`` (W,): (W,) int64, -1 for none."""
        lengths = np.diff(starts, append=len(tokens))  # (W,)
        # most words have one piece, whose row needs no search; the last entry is for ids beyond the vocabulary
        found: Integers = self._single[np.minimum(tokens[starts], len(self._single) - 1)]
        found[lengths > 1] = -1
        several = np.flatnonzero((lengths > 1) & (lengths <= len(self._multipliers)))
        if not len(several) or not len(self):
            return found
        lengths = lengths[several]
        here = ranges(starts[several], lengths)
        hashes = _hash_words(tokens[here], np.cumsum(lengths) - lengths, lengths, self._multipliers)
        place = np.minimum(np.searchsorted(self._sorted_hashes, hashes), len(self) - 1)
        rows: Integers = self._sorted_rows[place]
        is_row = (self._sorted_hashes[place] == hashes) & (row_lengths(self.word_offsets, rows) == lengths)
        candidates = np.flatnonzero(is_row)
        if len(candidates):
            # A word of the text may have the hash of another word, so the pieces are compared too.
            lengths = lengths[candidates]
            here = ranges(starts[several[candidates]], lengths)
            there = ranges(self.word_offsets[rows[candidates]], lengths)
            is_equal = np.logical_and.reduceat(tokens[here] == self.word_pieces[there], np.cumsum(lengths) - lengths)
            is_row[candidates] = is_equal
        found[several] = np.where(is_row, rows, -1)
        return found

    def _check(self) -> None:
        rows = ((self.word_offsets, self.word_pieces), (self.alternative_offsets, self.alternative_pieces))
        for offsets, pieces in (*rows, (self.row_offsets, self.alternative_offsets[1:])):
            if not len(offsets) or offsets[0] != 0 or offsets[-1] != len(pieces) or (np.diff(offsets) < 1).any():
                raise ValueError("the offsets of the synonym table do not fit its rows, or a row is empty")
        if len(self.row_offsets) != len(self.word_offsets):
            raise ValueError("the synonym table has not one row of alternatives for each word")
        for pieces in (self.word_pieces, self.alternative_pieces):
            if len(pieces) and not 0 <= pieces.min() <= pieces.max() < len(self.is_word_start):
                raise ValueError("the synonym table holds a piece that is not in its vocabulary")


def row_lengths(offsets: Integers, rows: Integers) -> Integers:
    """Lengths of the given rows (R,), from offsets (rows + 1,), without the lengths of the other rows."""
    lengths: Integers = offsets[rows + 1] - offsets[rows]
    return lengths


def hash_multipliers(length: int, attempt: int) -> npt.NDArray[np.uint64]:
    """One odd multiplier for each position in a word: (length,)."""
    rng = np.random.default_rng(attempt)
    return rng.integers(2**63, size=length, dtype=np.uint64) * np.uint64(2) + np.uint64(1)


def _hash_words(
    tokens: Integers, starts: Integers, lengths: Integers, multipliers: npt.NDArray[np.uint64]
) -> npt.NDArray[np.uint64]:
    """Hash each word: the sum of (piece + 1) * multiplier of its position, modulo 2^64: (words,).

    The hash of a word with more pieces than there are multipliers has no meaning; no row of the table is as long.
    """
    if not len(starts):
        return np.zeros(0, np.uint64)
    position = np.arange(len(tokens)) - np.repeat(starts, lengths)  # (n,)
    weights = multipliers[np.minimum(position, len(multipliers) - 1)]
    hashes: npt.NDArray[np.uint64] = np.add.reduceat((tokens.astype(np.uint64) + np.uint64(1)) * weights, starts)
    return hashes


def _concatenate(sequences: list[tuple[int, ...]]) -> Integers:
    return np.array([piece for sequence in sequences for piece in sequence], np.int64)


def _offsets(lengths: list[int]) -> Integers:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.array(lengths, np.int64))])
