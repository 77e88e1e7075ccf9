"""The synonym table: words and their alternatives as arrays, in which all words of a text are looked up at once."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fairseq_clear.tokens import Ragged, ranges

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

    def __post_init__(self) -> None:
        words = ((self.word_offsets, self.word_pieces), (self.alternative_offsets, self.alternative_pieces))
        for offsets, pieces in (*words, (self.row_offsets, self.alternative_offsets[1:])):
            if not len(offsets) or offsets[0] != 0 or offsets[-1] != len(pieces) or (np.diff(offsets) < 1).any():
                raise ValueError("the offsets of the synonym table do not fit its rows, or a row is empty")
        if len(self.row_offsets) != len(self.word_offsets):
            raise ValueError("the synonym table has not one row of alternatives for each word")
        for _, pieces in words:
            if len(pieces) and not 0 <= pieces.min() <= pieces.max() < len(self.is_word_start):
                raise ValueError("the synonym table holds a piece that is not in its vocabulary")
        _, keys, _ = self._index
        if (keys[1:] == keys[:-1]).any():
            raise ValueError("a word stands twice in the synonym table")

    @cached_property
    def _index(self) -> tuple[Integers, npt.NDArray[np.bytes_], Integers]:
        """The rows in the order of their keys, the keys, and the row of each piece that is a word, or -1."""
        words = Ragged(self.word_pieces, self.word_offsets)
        keys, single = (
            _keys(words, int(words.lengths.max(initial=1))),
            np.full(len(self.is_word_start) + 1, -1, np.int64),
        )
        order, rows = np.argsort(keys, kind="stable"), np.flatnonzero(words.lengths == 1)
        single[self.word_pieces[self.word_offsets[rows]]] = rows
        return order, keys[order], single

    @classmethod
    def build(
        cls, rows: Mapping[tuple[int, ...], list[tuple[int, ...]]], is_word_start: npt.NDArray[np.bool_]
    ) -> "SynonymTable":
        """Build a table from ``{word: [alternative, ...]}``, all as pieces; words without alternatives are left out."""
        kept = {word: alternatives for word, alternatives in rows.items() if alternatives}
        words = _join(kept)
        alternatives = _join([alternative for row in kept.values() for alternative in row])
        row_offsets = np.cumsum([0, *map(len, kept.values())])
        return cls(is_word_start, words.tokens, words.offsets, row_offsets, alternatives.tokens, alternatives.offsets)

    def __len__(self) -> int:
        """The number of words that have alternatives."""
        return len(self.word_offsets) - 1

    def find(self, tokens: Integers, starts: Integers) -> Integers:
        """The row of each word of ``tokens`` (n,), words beginning at ``starts`` (W,): (W,) int64, -1 for none."""
        order, keys, single = self._index
        longest = keys.dtype.itemsize // 4
        lengths = np.diff(starts, append=len(tokens))  # (W,)
        # most words have one piece, whose row needs no search; the last entry is for ids beyond the vocabulary
        found: Integers = single[np.minimum(tokens[starts], len(single) - 1)]
        found[lengths > 1] = -1
        several = np.flatnonzero((lengths > 1) & (lengths <= longest))
        if len(several):
            sizes = lengths[several]
            wanted = _keys(Ragged.of_lengths(tokens[ranges(starts[several], sizes)], sizes), longest)
            place = np.minimum(np.searchsorted(keys, wanted), len(self) - 1)
            found[several] = np.where(keys[place] == wanted, order[place], -1)
        return found


def row_lengths(offsets: Integers, rows: Integers) -> Integers:
    """Lengths of the given rows (R,), from offsets (rows + 1,), without the lengths of the other rows."""
    lengths: Integers = offsets[rows + 1] - offsets[rows]
    return lengths


def _keys(words: Ragged, longest: int) -> npt.NDArray[np.bytes_]:
    """Words of at most ``longest`` pieces as byte strings of equal length, which numpy sorts and searches: (words,)."""
    pieces = np.zeros((len(words), longest), np.uint32)
    padded = words.padded(-1)
    pieces[:, : padded.shape[1]] = padded + 1
    return pieces.view(f"S{4 * longest}")[:, 0]


def _join(words: Iterable[tuple[int, ...]]) -> Ragged:
    return Ragged.of([np.array(word, np.int64) for word in words])
