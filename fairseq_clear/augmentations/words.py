"""Finds the words of a batch of tokenized texts, and their rows in the synonym table."""

from functools import cached_property

import numpy as np
import numpy.typing as npt

from fairseq_clear.augmentations.base import Symbols
from fairseq_clear.tokens import Ragged, Tokens


class Words:
    """The W words of a batch of R texts with T tokens. A special symbol counts as one word.

    ``<s>``, ``</s>``, ``<pad>``, ``<del>``, and ids outside the table are special symbols. The first token of a text always
    begins a word, because a block of text may begin inside one.

    Attributes:
        starts: (W,) positions in ``texts.tokens`` where words begin.
        lengths: (W,) number of pieces of each word.
        text_of: (W,) the text of each word.
        is_special: (W,) bool, whether the word is a special symbol.
        ordinary: (R,) number of words of each text that are not special.
    """

    @classmethod
    def of(cls, texts: Ragged, symbols: Symbols) -> "Words":
        """The words of a batch, which keeps them: a substitution and the count of what it changed both need them."""
        known, words = texts.__dict__.get("_words", (None, None))
        if known is not symbols:
            words = cls(texts, symbols)
            texts.__dict__["_words"] = symbols, words
        return words

    def __init__(self, texts: Ragged, symbols: Symbols) -> None:
        self._tokens, self._table = texts.tokens, symbols.table
        known = np.minimum(texts.tokens, len(self._table.is_word_start))  # (T,)
        is_special = symbols.are_special[known]  # (T,)
        begins = symbols.begin_words[known]
        begins[1:] |= is_special[:-1]
        begins[texts.offsets[:-1][texts.lengths > 0]] = True
        self.starts = np.flatnonzero(begins)
        self.lengths: Tokens = np.concatenate([self.starts[1:], [len(texts.tokens)]]) - self.starts
        self.text_of: Tokens = texts.rows[self.starts]
        self.is_special: npt.NDArray[np.bool_] = is_special[self.starts]
        self.ordinary: Tokens = np.bincount(self.text_of[~self.is_special], minlength=len(texts))

    @cached_property
    def rows(self) -> Tokens:
        """(W,) row of each word in the synonym table, -1 for a word without synonyms."""
        return self._table.find(self._tokens, self.starts)
