"""Arrays of token ids: one text, or rows of different lengths in one flat array."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int64]
"""Token ids, or positions of tokens: (n,) int64."""
Bools = npt.NDArray[np.bool_]

# Rows of more tokens than this, on average, are copied one by one: an index of their positions would cost more.
LONG_ROW = 256


def ranges(starts: npt.NDArray[Any], lengths: npt.NDArray[Any]) -> Tokens:
    """Concatenate ``arange(start, start + length)`` over rows: (sum of lengths,)."""
    ends = lengths.cumsum()
    values = (starts + lengths - ends).repeat(lengths)
    values += np.arange(len(values))
    return values


def cells(rows: int, columns: int) -> tuple[Tokens, Tokens]:
    """The row and the column of each cell of a table, row after row: both (rows * columns,)."""
    return np.divmod(np.arange(rows * columns), columns)


@dataclass(frozen=True)
class Ragged:
    """R rows of token ids: row r is ``tokens[offsets[r]:offsets[r + 1]]``.

    Attributes:
        tokens: (T,) int64, all rows one after the other.
        offsets: (R + 1,) int64, ascending, from 0 to T.
    """

    tokens: Tokens
    offsets: Tokens

    @classmethod
    def of(cls, rows: Sequence[Tokens]) -> "Ragged":
        """Make a copy of rows."""
        tokens = np.concatenate([np.zeros(0, np.int64), *rows])
        return cls.of_lengths(tokens, np.array([len(row) for row in rows], np.int64))

    @classmethod
    def of_lengths(cls, tokens: Tokens, lengths: Tokens) -> "Ragged":
        """Divide ``tokens`` (T,) into rows of these lengths (R,), which sum to T."""
        offsets = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        return cls(tokens, offsets)

    @classmethod
    def copied(
        cls, tokens: npt.NDArray[Any], starts: Tokens, lengths: Tokens, *, first: Any = None, last: Any = None
    ) -> "Ragged":
        """Copy to each row the part of ``tokens`` at ``starts`` (R,), of ``lengths`` (R,).

        ``first`` is put before each row and ``last`` after it, if given: one token for all rows, or one for each row (R,).
        """
        before = int(first is not None)
        sizes = lengths + (before + (last is not None))
        if len(tokens) and int(lengths.sum()) <= LONG_ROW * len(lengths):
            # Also what is before and after each part, which first and last replace.
            found = cls.of_lengths(
                tokens.take(ranges(starts - before, sizes), mode="clip").astype(np.int64, copy=False), sizes
            )
        else:
            found = cls.of_lengths(np.empty(int(sizes.sum()), np.int64), sizes)
            there = found.offsets[:-1] + before
            for place, start, length in zip(there.tolist(), starts.tolist(), lengths.tolist(), strict=True):
                found.tokens[place : place + length] = tokens[start : start + length]
        if first is not None:
            found.tokens[found.offsets[:-1]] = first
        if last is not None:
            found.tokens[found.offsets[1:] - 1] = last
        return found

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> Tokens:
        return self.tokens[self.offsets[row] : self.offsets[row + 1]]

    @cached_property
    def lengths(self) -> Tokens:
        """(R,) number of tokens of each row."""
        return self.offsets[1:] - self.offsets[:-1]  # np.diff takes ten times as long

    @cached_property
    def rows(self) -> Tokens:
        """(T,) the row of each token."""
        return np.repeat(np.arange(len(self)), self.lengths)

    def select(self, rows: Tokens) -> "Ragged":
        """Copy these rows, in this order; a row may be given several times."""
        return Ragged.copied(self.tokens, self.offsets[rows], self.lengths[rows])

    def cut(self, most: int | Tokens) -> "Ragged":
        """Cut each row to ``most`` tokens, one number or one for each row (R,), keeping its last one."""
        if (self.lengths <= most).all():
            return self
        lengths = np.minimum(self.lengths, most)
        found = Ragged.copied(self.tokens, self.offsets[:-1], lengths)
        full = lengths > 0
        found.tokens[found.offsets[1:][full] - 1] = self.tokens[self.offsets[1:][full] - 1]
        return found

    def framed(self, first: int, last: int) -> "Ragged":
        """Put ``first`` before each row and ``last`` after it."""
        return Ragged.copied(self.tokens, self.offsets[:-1], self.lengths, first=first, last=last)

    def inserted(self, parts: Sequence[Tokens], which: Tokens) -> "Ragged":
        """Put one of ``parts``, number ``which`` (R,), behind the first token of each row; no row is empty."""
        heads = Ragged.copied(self.tokens, self.offsets[:-1], np.ones_like(self.lengths))
        rest = Ragged.copied(self.tokens, self.offsets[:-1] + 1, self.lengths - 1)
        joined = interleave([heads, Ragged.of(parts).select(which), rest])
        return Ragged.of_lengths(joined.tokens, joined.lengths.reshape(-1, 3).sum(axis=1))

    def padded(self, padding: int) -> Tokens:
        """Pad the rows on the right to one (R, longest) array."""
        lengths, width = self.lengths, int(self.lengths.max(initial=0))
        out = np.full((len(self), width), padding, np.int64)
        if len(self.tokens) > LONG_ROW * len(self):
            for row, (begin, length) in enumerate(zip(self.offsets.tolist(), lengths.tolist(), strict=False)):
                out[row, :length] = self.tokens[begin : begin + length]
            return out
        out[np.arange(width) < lengths[:, None]] = self.tokens  # faster than an index of all positions
        return out


def place_rows(size: int, parts: Sequence[tuple[Tokens, Ragged]]) -> Ragged:
    """Join batches to one of ``size`` rows, given the place of each of their rows in it."""
    lengths = np.zeros(size, np.int64)
    for rows, part in parts:
        lengths[rows] = part.lengths
    joined = Ragged.of_lengths(np.empty(int(lengths.sum()), np.int64), lengths)
    for rows, part in parts:
        joined.tokens[ranges(joined.offsets[rows], part.lengths)] = part.tokens
    return joined


def stack(parts: Sequence[Ragged]) -> Ragged:
    """Join batches, one after the other."""
    if len(parts) == 1:
        return parts[0]
    lengths = np.concatenate([part.lengths for part in parts])
    return Ragged.of_lengths(np.concatenate([part.tokens for part in parts]), lengths)


def interleave(parts: Sequence[Ragged]) -> Ragged:
    """Join batches of the same number of rows: first the first row of each, then the second of each, and so on."""
    size = len(parts) * len(parts[0])
    return place_rows(size, [(np.arange(n, size, len(parts)), part) for n, part in enumerate(parts)])


def as_tokens(item: Any) -> Tokens:
    """Convert an item of a data set, a tensor or an array, to token ids (n,)."""
    return np.asarray(item.numpy() if hasattr(item, "numpy") else item, np.int64)  # np.asarray of a tensor warns
