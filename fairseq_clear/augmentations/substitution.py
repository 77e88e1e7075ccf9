"""Synonym substitution (CLEAR, sections 3.3 and 4.1, after Jia et al. 2019): replaces whole words by alternatives."""

import math
from collections.abc import Mapping
from functools import cached_property

import numpy as np

from fairseq_clear.augmentations.base import Edited, Symbols, round_randomly
from fairseq_clear.augmentations.synonym_table import SynonymTable
from fairseq_clear.seeding import Draws, Floats, floor_of
from fairseq_clear.spec import KnobValue
from fairseq_clear.tokens import Bools, Ragged, Tokens, ranges

SIZE, PLACE, WORD = range(3)  # purposes of the draws


class Words:
    """The W words of a batch of R texts with T tokens. A special symbol counts as one word.

    ``<s>``, ``</s>``, ``<pad>``, ``<del>``, ``<mask>``, and ids outside the table are special symbols. The first token of a
    text always begins a word, because a block of text may begin inside one.

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
        self._begins = begins
        self.lengths: Tokens = np.concatenate([self.starts[1:], [len(texts.tokens)]]) - self.starts
        self.text_of: Tokens = texts.rows[self.starts]
        self.is_special: Bools = is_special[self.starts]
        ordinary = self.text_of[~self.is_special] if self.is_special.any() else self.text_of
        self.ordinary: Tokens = np.bincount(ordinary, minlength=len(texts))

    @cached_property
    def word_of(self) -> Tokens:
        """(T,) the word of each token."""
        return self._begins.cumsum() - 1

    @cached_property
    def rows(self) -> Tokens:
        """(W,) row of each word in the synonym table, -1 for a word without synonyms."""
        return self._table.find(self._tokens, self.starts)


def substitute_words(texts: Ragged, draws: Draws, *, symbols: Symbols, ratio: float = 0.3) -> Edited:
    """Replace a share ``ratio`` of the words by uniformly drawn alternatives.

    The ratio is a share of all words (punctuation counts, special symbols do not), but only words that have alternatives can
    be replaced. The share is lower if too few words have alternatives; CLEAR's list covers about 40 % of tokens. An alternative
    may have more or fewer pieces than the word. The source of each new piece is the first piece of the replaced word.

    The view of a text with n tokens has at most n + ceil(ratio * n) tokens. Replacements that lengthen the text are skipped,
    in random order, until the result fits.
    """
    words = Words.of(texts, symbols)
    counts = round_randomly(ratio * words.ordinary, draws.per_row(SIZE))
    return replace_words(texts, words, counts, np.ceil(ratio * texts.lengths).astype(np.int64), draws, symbols)


def replace_words(
    texts: Ragged, words: Words, counts: Tokens, budgets: Tokens, draws: Draws, symbols: Symbols
) -> Edited:
    """Replace up to ``counts`` (R,) words by one of their alternatives; a text grows by at most its budget (R,)."""
    table = symbols.table
    replaceable = np.flatnonzero(words.rows >= 0)
    sizes = np.bincount(words.text_of[replaceable], minlength=len(texts))  # (R,)
    rows, slots, ranks = draws.choose(PLACE, np.minimum(counts, sizes), sizes)  # sorted by text, then in random order
    chosen = replaceable[(sizes.cumsum() - sizes)[rows] + slots]  # (K,) words
    alternatives = draw_alternatives(words.rows[chosen], draws.uniform(WORD, rows, ranks), table)
    new_lengths = table.piece_counts(alternatives)
    kept = _fitting(new_lengths - words.lengths[chosen], rows, budgets)
    return _splice(texts, words, chosen[kept], alternatives[kept], new_lengths[kept], table)


def draw_alternatives(rows: Tokens, u: Floats, table: SynonymTable) -> Tokens:
    """Draw an alternative (K,) for each of the table's ``rows`` (K,), given uniform numbers ``u`` (K,)."""
    first, last = table.row_offsets[rows], table.row_offsets[rows + 1]
    return first + floor_of(u, last - first)


def grow_by_ratio(length: int, knobs: Mapping[str, KnobValue]) -> int:
    """Return the maximum length of the result of ``substitute_words``: n + ceil(ratio * n)."""
    return length + math.ceil(float(knobs["ratio"]) * length)


def count_words(before: Ragged, after: Ragged, source: Tokens, symbols: Symbols) -> tuple[Tokens, Tokens]:
    """Count the words of each text, and the words replaced in its view, given ``source``: both (R,).

    A word is unchanged if each of its pieces occurs exactly once in the view. A word with no piece in the view counts as
    deleted, not as replaced. Special symbols are not words.
    """
    words = Words.of(before, symbols)
    if not len(words.starts):
        return words.ordinary, np.zeros_like(words.ordinary)
    is_old = source >= 0
    old, pieces = (source, after.tokens) if is_old.all() else (source[is_old], after.tokens[is_old])
    came_out = np.bincount(old, minlength=len(before.tokens))  # (T,)
    changed = came_out != 1
    changed[old] |= before.tokens[old] != pieces  # also right for pieces that come out twice, which are changed
    is_replaced, is_left = np.zeros((2, len(words.starts)), np.bool_)  # (W,)
    is_replaced[words.word_of[np.flatnonzero(changed)]] = True
    is_left[words.word_of[old]] = True
    is_replaced &= is_left & ~words.is_special
    return words.ordinary, np.bincount(words.text_of[np.flatnonzero(is_replaced)], minlength=len(before))


def _fitting(growth: Tokens, rows: Tokens, budgets: Tokens) -> Bools:
    """Return which replacements (K,) to keep, so that no text grows by more than its budget (R,).

    If a text would, its first replacements that add tokens are dropped until it fits. Replacements are sorted by text.
    """
    excess = np.bincount(rows, growth, len(budgets)).astype(np.int64) - budgets  # (R,)
    if not (excess > 0).any():
        return np.ones(len(growth), np.bool_)
    saved = np.maximum(growth, 0).cumsum() - np.maximum(growth, 0)  # by the replacements before, over all texts
    first = np.searchsorted(rows, rows)  # the first replacement of the same text
    return (growth <= 0) | (saved - saved[first] >= excess[rows])


def _splice(
    texts: Ragged, words: Words, chosen: Tokens, alternatives: Tokens, piece_counts: Tokens, table: SynonymTable
) -> Edited:
    """Replace the words ``chosen`` (K,) by ``alternatives`` (K,), which have ``piece_counts`` (K,) pieces."""
    lengths = words.lengths.copy()  # (W,)
    lengths[chosen] = piece_counts
    ends = lengths.cumsum()
    # Kept words are shifted by the growth of the words before them. The entries for new pieces are overwritten below.
    source = ranges(words.starts, lengths)
    new = ranges(ends[chosen] - piece_counts, piece_counts)
    source[new] = words.starts[chosen].repeat(piece_counts)
    tokens = texts.tokens[source]
    tokens[new] = table.alternative_pieces[ranges(table.alternative_offsets[alternatives], piece_counts)]
    growth = np.bincount(words.text_of[chosen], piece_counts - words.lengths[chosen], len(texts)).astype(np.int64)
    return Ragged.of_lengths(tokens, texts.lengths + growth), source
