"""The synonym table: words and their alternatives as arrays, in which all words of a text are looked up at once."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fairseq_clear.tokens import Bools, Ragged, Tokens


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

    is_word_start: Bools
    word_pieces: Tokens
    word_offsets: Tokens
    row_offsets: Tokens
    alternative_pieces: Tokens
    alternative_offsets: Tokens

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
        single, levels = self._index
        if sum(int((rows >= 0).sum()) for rows in (single, *(rows for _, rows in levels))) < len(self):
            raise ValueError("a word stands twice in the synonym table")

    @cached_property
    def _index(self) -> tuple[Tokens, list[tuple[Tokens, Tokens]]]:
        """A prefix tree of the words, level by level.

        Returns:
            The row of each piece that is a word, else -1. For 2, 3, ... pieces: the sorted keys of the beginnings of words (the
            number of the beginning that is one piece shorter, and the last piece), and the row of each, or -1.
        """
        lengths, rows = np.diff(self.word_offsets), np.arange(len(self))
        node, levels = self.word_pieces[self.word_offsets[:-1]], []
        single = np.full(len(self.is_word_start) + 1, -1, np.int64)
        single[node[lengths == 1]] = rows[lengths == 1]
        for length in range(2, int(lengths.max(initial=1)) + 1):
            longer = lengths[rows] >= length
            rows = rows[longer]
            pieces = self.word_pieces[self.word_offsets[rows] + length - 1]
            keys, node = np.unique(node[longer] << 32 | pieces, return_inverse=True)
            of_keys, ends = np.full(len(keys), -1, np.int64), lengths[rows] == length
            of_keys[node[ends]] = rows[ends]
            levels.append((keys, of_keys))
        return single, levels

    @classmethod
    def build(cls, rows: Mapping[tuple[int, ...], list[tuple[int, ...]]], is_word_start: Bools) -> "SynonymTable":
        """Build a table from ``{word: [alternative, ...]}``, all as pieces; words without alternatives are left out."""
        kept = {word: alternatives for word, alternatives in rows.items() if alternatives}
        words = _join(kept)
        alternatives = _join([alternative for row in kept.values() for alternative in row])
        row_offsets = np.cumsum([0, *map(len, kept.values())])
        return cls(is_word_start, words.tokens, words.offsets, row_offsets, alternatives.tokens, alternatives.offsets)

    def __len__(self) -> int:
        """The number of words that have alternatives."""
        return len(self.word_offsets) - 1

    def piece_counts(self, alternatives: Tokens) -> Tokens:
        """Number of pieces of each of these alternatives (A,)."""
        return self.alternative_offsets[alternatives + 1] - self.alternative_offsets[alternatives]

    def find(self, tokens: Tokens, starts: Tokens) -> Tokens:
        """The row of each word of ``tokens`` (n,), words beginning at ``starts`` (W,): (W,) int64, -1 for none."""
        single, levels = self._index
        lengths = np.concatenate([starts[1:], [len(tokens)]]) - starts  # (W,)
        # most words have one piece, whose row needs no search; the last entry is for ids beyond the vocabulary
        node = tokens[starts]
        found: Tokens = single[np.minimum(node, len(single) - 1)]
        words = np.flatnonzero(lengths > 1)
        found[words], node = -1, node[words]
        for length, (keys, rows) in enumerate(levels, 2):
            if not len(words):
                break
            wanted = node << 32 | tokens[starts[words] + length - 1]
            place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
            is_known, is_whole = keys[place] == wanted, lengths[words] == length
            found[words[is_known & is_whole]] = rows[place[is_known & is_whole]]
            goes_on = is_known & ~is_whole
            words, node = words[goes_on], place[goes_on]
        return found


def _join(words: Iterable[tuple[int, ...]]) -> Ragged:
    return Ragged.of([np.array(word, np.int64) for word in words])
