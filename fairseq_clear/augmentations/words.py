"""Finds the words of a tokenized text, and their rows in the synonym table."""

from functools import cached_property

import numpy as np
import numpy.typing as npt

from fairseq_clear.augmentations.base import Symbols
from fairseq_clear.augmentations.synonym_table import SynonymTable
from fairseq_clear.tokens import Tokens

__all__ = ["Words", "read_words", "table_of"]


class Words:
    """The W words of a text of n tokens. A special symbol counts as one word.

    Attributes:
        starts: (W,) positions where words begin.
        lengths: (W,) number of pieces of each word.
        is_special: (W,) bool, whether the word is a special symbol.
        ordinary: number of words that are not special.
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
        """(W,) row of each word in the synonym table, -1 for a word without synonyms."""
        return self._table.find(self._tokens, self.starts)


# A text is read four times: for each of its two views, once to make the view and once to count the replaced words.
_last: tuple[bytes, Symbols, Words] | None = None


def read_words(tokens: Tokens, symbols: Symbols) -> Words:
    """Find the words of ``tokens`` (n,). The result for the last text is cached; it holds a copy of the tokens.

    ``<s>``, ``</s>``, ``<pad>``, ``<del>``, and ids outside the table are special symbols.
    """
    global _last
    text, last = tokens.tobytes(), _last
    if last is not None and last[0] == text and last[1] is symbols:
        return last[2]
    words = Words(tokens.copy(), symbols)
    _last = (text, symbols, words)
    return words


def table_of(symbols: Symbols) -> SynonymTable:
    """Return the synonym table; ValueError if there is none."""
    if symbols.synonyms is None:
        raise ValueError("Symbols has no synonym table; give one (a table without rows still marks where words begin)")
    return symbols.synonyms
