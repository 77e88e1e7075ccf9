"""Synonym substitution (CLEAR, sections 3.3 and 4.1, after Jia et al. 2019): alternatives for whole words."""

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from fairseq_clear.augmentations.base import Symbols, Tokens, round_randomly
from fairseq_clear.augmentations.synonym_table import SynonymTable, ranges, row_lengths
from fairseq_clear.augmentations.words import Words, read_words, table_of
from fairseq_clear.spec import KnobValue

__all__ = ["SynonymTable", "count_words", "grow_by_ratio", "substitute_words"]


def substitute_words(
    tokens: Tokens, rng: np.random.Generator, *, symbols: Symbols, ratio: float = 0.3
) -> tuple[Tokens, Tokens]:
    """Replace a share ``ratio`` of the words by one of their alternatives, drawn uniformly. (n,) to (m,) and (m,).

    The ratio is of all words (punctuation counts, specials do not), but the words are drawn among those that have
    alternatives: where these are fewer, all of them are replaced and the share is lower, as with CLEAR's list, which
    covers about 40 % of tokens. An alternative may have another number of pieces, and each piece has the first piece of
    the replaced word as its source.

    Results have at most n + ceil(ratio * n) tokens: where the draw exceeds that, longer alternatives are skipped, in
    random order, until it fits.
    """
    words = read_words(tokens, symbols)
    count = round_randomly(ratio * words.ordinary, rng)
    return replace_words(tokens, words, count, math.ceil(ratio * len(tokens)), rng, symbols)


def replace_words(
    tokens: Tokens, words: Words, count: int, budget: int, rng: np.random.Generator, symbols: Symbols
) -> tuple[Tokens, Tokens]:
    """Replace ``count`` of the words that have alternatives, or all of these, by one each; at most ``budget`` tokens more
    than before.
    """
    table = table_of(symbols)
    replaceable = (words.rows >= 0).nonzero()[0]
    # in random order, which also decides what is skipped
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
    """For each row of the table (R,) one of its alternatives, uniformly: (R,)."""
    return rng.integers(table.row_offsets[rows], table.row_offsets[rows + 1])


def grow_by_ratio(length: int, knobs: Mapping[str, KnobValue]) -> int:
    """The bound of ``substitute_words``: n + ceil(ratio * n)."""
    return length + math.ceil(float(knobs["ratio"]) * length)


def count_words(before: Tokens, after: Tokens, source: Tokens, symbols: Symbols) -> tuple[int, int]:
    """Words of ``before`` (n,), and how many of them ``after`` (m,) holds in another form, going by ``source`` (m,).

    A word is as it was when each of its pieces comes out exactly once, unchanged; a word of which nothing comes out
    was deleted, not substituted. Specials are no words.
    """
    if not len(before):
        return 0, 0
    words = read_words(before, symbols)
    old = source[source >= 0]
    came_out = np.bincount(old, minlength=len(before))  # (n,)
    changed = came_out != 1
    changed[old[before[old] != after[source >= 0]]] = True
    is_other = np.logical_or.reduceat(changed, words.starts) & np.logical_or.reduceat(
        came_out > 0, words.starts
    )  # (W,)
    return words.ordinary, int((is_other & ~words.is_special).sum())


def _fitting(growth: Tokens, excess: int) -> npt.NDArray[np.bool_]:
    """Which replacements to keep so that their growth sums to ``excess`` less: the first that grow go first."""
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
    # positions in the result of the pieces that are new, those of word chosen[0] first
    new = ranges(ends[chosen] - piece_counts, piece_counts)
    # kept words move by what the words before them have grown; what this says of a new piece is overwritten
    source = ranges(words.starts, new_lengths)  # (m,)
    source[new] = words.starts[chosen].repeat(piece_counts)
    result = tokens[source]
    result[new] = pieces
    return result, source
