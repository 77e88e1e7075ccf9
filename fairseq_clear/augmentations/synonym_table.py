"""The synonym table: words and their alternatives as arrays, in which all words of a text are looked up at once."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fairseq_clear.seeding import Draws, Keys
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
        single, *_, keys, _ = self._index
        if (np.diff(self.word_offsets) == 1).sum() > (single >= 0).sum() or (keys[1:] == keys[:-1]).any():
            raise ValueError("a word stands twice in the synonym table")

    @cached_property
    def _index(self) -> tuple[Tokens, np.uint64, Tokens, Keys, Tokens]:
        """The row of each piece that is a word, else -1; for words of several pieces, ``rest``, ``buckets``, keys and rows.

        Keys are sorted; those with ``key >> rest == b`` are at ``buckets[b]`` to ``buckets[b + 1]``, which most b do not have.
        """
        lengths = np.diff(self.word_offsets)
        single = np.full(len(self.is_word_start) + 1, -1, np.int64)  # the last entry is for ids beyond the vocabulary
        alone, rows = np.flatnonzero(lengths == 1), np.flatnonzero(lengths > 1)
        single[self.word_pieces[self.word_offsets[alone]]] = alone
        keys = self._keys(self.word_pieces, self.word_offsets[rows], lengths[rows])
        order, bits = np.argsort(keys), len(keys).bit_length() + 3
        rest = np.uint64(64 - bits)
        buckets = np.searchsorted(keys[order] >> rest, np.arange((1 << bits) + 1, dtype=np.uint64))
        return single, rest, buckets, keys[order], rows[order]

    @cached_property
    def _factors(self) -> Keys:
        """(most pieces of a word,) random odd numbers."""
        longest = int(np.diff(self.word_offsets).max(initial=1))
        return Draws(np.zeros(1, np.uint64)).bits(0, np.zeros(longest, np.int64), np.arange(longest)) | np.uint64(1)

    def _keys(self, tokens: Tokens, starts: Tokens, lengths: Tokens) -> Keys:
        """A 64-bit hash of each word (W,); different words have the same with probability 2**-64."""
        places = np.arange(lengths.max(initial=0))[:, None]  # in the word
        pieces = tokens.take(starts + places, mode="clip")
        pieces += 1  # so that a piece 0 differs from none
        pieces *= places < lengths
        products = pieces.view(np.uint64)
        products *= self._factors[: len(places), None]
        return products.sum(axis=0)

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
        single, rest, buckets, keys, rows = self._index
        lengths = np.concatenate([starts[1:], [len(tokens)]]) - starts  # (W,)
        # most words have one piece, whose row needs no search
        found: Tokens = single[np.minimum(tokens[starts], len(single) - 1)]
        words = np.flatnonzero(lengths > 1)
        found[words] = -1
        words = words[lengths[words] <= len(self._factors)]
        wanted = self._keys(tokens, starts[words], lengths[words])
        bucket = wanted >> rest
        place, end = buckets[bucket], buckets[bucket + np.uint64(1)]
        while len(words):
            goes_on = place < end
            words, wanted, place, end = words[goes_on], wanted[goes_on], place[goes_on], end[goes_on]
            is_found = keys[place] == wanted
            found[words[is_found]] = rows[place[is_found]]
            place += 1
            end = end * ~is_found
        return found


def _join(words: Iterable[tuple[int, ...]]) -> Ragged:
    return Ragged.of([np.array(word, np.int64) for word in words])
