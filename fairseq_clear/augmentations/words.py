"""Finds the words of a text of pieces, and their rows of the synonym table."""

from functools import cached_property

import numpy as np
import numpy.typing as npt

from fairseq_clear.augmentations.base import Symbols, Tokens
from fairseq_clear.augmentations.synonym_table import SynonymTable

__all__ = ["Words", "read_words", "table_of"]


class Words:
    """The W words of a text (n,). Specials are words of their own, and not ordinary ones.

    Attributes:
        starts: (W,) positions where words begin.
        lengths: (W,) their numbers of pieces.
        is_special: (W,) bool.
        ordinary: how many are not special.
    """

    def __init__(self, tokens: Tokens, symbols: Symbols) -> None:
        self._tokens, self._table = tokens, table_of(symbols)
        is_special = tokens >= len(self._table.is_word_start)  # (n,)
        for symbol in (symbols.bos, symbols.eos, symbols.pad, symbols.delete):
            is_special |= tokens == symbol
        self.starts = self._table.word_starts(tokens, is_special)
        ends = np.empty_like(self.starts)
        ends[:-1], ends[-1:] = self.starts[1:], len(tokens)
        self.lengths: Tokens = ends - self.starts
        self.is_special: npt.NDArray[np.bool_] = is_special[self.starts]
        self.ordinary = len(self.starts) - int(np.count_nonzero(self.is_special))

    @cached_property
    def rows(self) -> Tokens:
        """(W,) rows of the table, -1 for a word without alternatives."""
        return self._table.find(self._tokens, self.starts)


# Two views are made of a text, and what was replaced in each is counted over it: four times the same question.
_last: tuple[bytes, Symbols, Words] | None = None


def read_words(tokens: Tokens, symbols: Symbols) -> Words:
    """The words of ``tokens`` (n,), those that a tokenizer never writes being special.

    The answer for the last text is remembered, and copies what it needs of it.
    """
    global _last
    text, last = tokens.tobytes(), _last
    if last is not None and last[0] == text and last[1] is symbols:
        return last[2]
    words = Words(tokens.copy(), symbols)
    _last = (text, symbols, words)
    return words


def table_of(symbols: Symbols) -> SynonymTable:
    """The table, which must be there."""
    if symbols.synonyms is None:
        raise ValueError("Symbols without a synonym table: give one; without rows it says where words begin")
    return symbols.synonyms
