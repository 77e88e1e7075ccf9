"""Synonym substitution (CLEAR, sections 3.3 and 4.1, after Jia et al. 2019): replaces whole words by alternatives."""

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from fairseq_clear.augmentations.base import Symbols, round_randomly
from fairseq_clear.augmentations.synonym_table import SynonymTable, ranges, row_lengths
from fairseq_clear.augmentations.words import Words, read_words, table_of
from fairseq_clear.spec import KnobValue
from fairseq_clear.tokens import Tokens

__all__ = ["SynonymTable", "count_words", "grow_by_ratio", "substitute_words"]


def substitute_words(
    tokens: Tokens, rng: np.random.Generator, *, symbols: Symbols, ratio: float = 0.3
) -> tuple[Tokens, Tokens]:
    """Replace a share ``ratio`` of the words by uniformly drawn alternatives; tokens (n,) to (m,).

    The ratio is a share of all words (punctuation counts, special symbols do not), but only words that have alternatives can
    be replaced. The share is lower if too few words have alternatives; CLEAR's list covers about 40 % of tokens. An alternative
    may have more or fewer pieces than the word. The source of each new piece is the first piece of the replaced word.

    The result has at most n + ceil(ratio * n) tokens. Replacements that lengthen the text are skipped, in random order, until
    the result fits.
    """
    words = read_words(tokens, symbols)
    count = round_randomly(ratio * words.ordinary, rng)
    return replace_words(tokens, words, count, math.ceil(ratio * len(tokens)), rng, symbols)


def replace_words(
    tokens: Tokens, words: Words, count: int, budget: int, rng: np.random.Generator, symbols: Symbols
) -> tuple[Tokens, Tokens]:
    """Replace up to ``count`` words by one of their alternatives; the text grows by at most ``budget`` tokens."""
    table = table_of(symbols)
    replaceable = (words.rows >= 0).nonzero()[0]
    # In random order, because _fitting drops the first replacements.
    chosen = rng.choice(replaceable, min(len(replaceable), count), replace=False)  # (count,)
    alternatives = draw_alternatives(words.rows[chosen], rng, table)  # (count,)
    new_lengths = row_lengths(table.alternative_offsets, alternatives)  # (count,)
    excess = int(new_lengths.sum() - words.lengths[chosen].sum()) - budget
    if excess > 0:
        kept = _fitting(new_lengths - words.lengths[chosen], excess)
        chosen, alternatives, new_lengths = chosen[kept], alternatives[kept], new_lengths[kept]
    pieces = table.alternative_pieces[ranges(table.alternative_offsets[alternatives], new_lengths)]
    return _splice(tokens, words, chosen, pieces, new_lengths)


def draw_alternatives(rows: Tokens, rng: np.random.Generator, table: SynonymTable) -> Tokens:
    """Draw one alternative uniformly for each of the table's ``rows`` (R,); returns (R,)."""
    return rng.integers(table.row_offsets[rows], table.row_offsets[rows + 1])


def grow_by_ratio(length: int, knobs: Mapping[str, KnobValue]) -> int:
    """Return the maximum length of the result of ``substitute_words``: n + ceil(ratio * n)."""
    return length + math.ceil(float(knobs["ratio"]) * length)


def count_words(before: Tokens, after: Tokens, source: Tokens, symbols: Symbols) -> tuple[int, int]:
    """Count the words of ``before`` (n,), and the words replaced in ``after`` (m,), given its ``source`` positions (m,).

    A word is unchanged if each of its pieces occurs exactly once in the result. A word with no piece in the result counts
    as deleted, not as replaced. Special symbols are not words.
    """
    if not len(before):
        return 0, 0
    words = read_words(before, symbols)
    old = source[source >= 0]
    came_out = np.bincount(old, minlength=len(before))  # (n,)
    changed = came_out != 1
    changed[old[before[old] != after[source >= 0]]] = True
    is_left = np.logical_or.reduceat(came_out > 0, words.starts)  # (W,)
    is_replaced = np.logical_or.reduceat(changed, words.starts) & is_left  # (W,)
    return words.ordinary, int((is_replaced & ~words.is_special).sum())


def _fitting(growth: Tokens, excess: int) -> npt.NDArray[np.bool_]:
    """Return which replacements to keep: drop the first ones that add tokens, until at least ``excess`` tokens are saved."""
    kept = np.ones(len(growth), np.bool_)
    growing = np.flatnonzero(growth > 0)
    dropped = int(np.searchsorted(np.cumsum(growth[growing]), excess)) + 1
    kept[growing[:dropped]] = False
    return kept


def _splice(
    tokens: Tokens, words: Words, chosen: Tokens, pieces: Tokens, piece_counts: Tokens
) -> tuple[Tokens, Tokens]:
    """Replace the words ``chosen`` by ``pieces``."""
    new_lengths = words.lengths.copy()  # (W,)
    new_lengths[chosen] = piece_counts
    ends = new_lengths.cumsum()
    # Positions of the new pieces in the result, in the order of ``chosen``.
    new = ranges(ends[chosen] - piece_counts, piece_counts)
    # Kept words are shifted by the growth of the words before them. The entries for new pieces are overwritten below.
    source = ranges(words.starts, new_lengths)  # (m,)
    source[new] = words.starts[chosen].repeat(piece_counts)
    result = tokens[source]
    result[new] = pieces
    return result, source
