"""Synonym substitution (CLEAR, sections 3.3 and 4.1, after Jia et al. 2019): alternatives for whole words."""

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from fairseq_clear.augmentations.base import Symbols, Tokens, round_randomly
from fairseq_clear.augmentations.synonym_table import SynonymTable, ranges, row_lengths
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
    starts, is_special = find_words(tokens, symbols)
    words = len(starts) - int(is_special.sum())
    count = round_randomly(ratio * words, rng)
    return replace_words(tokens, starts, count, math.ceil(ratio * len(tokens)), rng, symbols)


def replace_words(
    tokens: Tokens, starts: Tokens, count: int, budget: int, rng: np.random.Generator, symbols: Symbols
) -> tuple[Tokens, Tokens]:
    """Replace ``count`` of the words (W,) that have alternatives, or all of these, by one each; at most ``budget`` tokens
    more than before.
    """
    table = table_of(symbols)
    lengths = np.diff(starts, append=len(tokens))  # (W,)
    rows = table.find(tokens, starts)  # (W,)
    replaceable = np.flatnonzero(rows >= 0)
    # in random order, which also decides what is skipped
    chosen = rng.choice(replaceable, min(len(replaceable), count), replace=False)  # (count,)
    alternatives = draw_alternatives(rows[chosen], rng, table)  # (count,)
    new_lengths = row_lengths(table.alternative_offsets, alternatives)  # (count,)
    kept = _fits(new_lengths - lengths[chosen], budget)
    chosen, alternatives, new_lengths = chosen[kept], alternatives[kept], new_lengths[kept]
    return _splice(
        tokens,
        starts,
        lengths,
        chosen,
        ranges(table.alternative_offsets[alternatives], new_lengths),
        new_lengths,
        table,
    )


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
    starts, is_special = find_words(before, symbols)
    old = source >= 0
    came_out = np.bincount(source[old], minlength=len(before))  # (n,)
    changed = came_out != 1
    changed[source[old][before[source[old]] != after[old]]] = True
    is_other = np.logical_or.reduceat(changed, starts) & np.logical_or.reduceat(came_out > 0, starts)  # (W,)
    is_word = ~is_special[starts]
    return int(is_word.sum()), int((is_other & is_word).sum())


def table_of(symbols: Symbols) -> SynonymTable:
    """The table, which must be there."""
    if symbols.synonyms is None:
        raise ValueError("substitution needs Symbols with a synonym table")
    return symbols.synonyms


def find_words(tokens: Tokens, symbols: Symbols) -> tuple[Tokens, npt.NDArray[np.bool_]]:
    """Where words begin (W,), and which tokens are special (n,): those that a tokenizer never writes."""
    table = table_of(symbols)
    is_special = tokens >= len(table.is_word_start)
    for symbol in (symbols.bos, symbols.eos, symbols.pad, symbols.delete):
        is_special |= tokens == symbol
    return table.word_starts(tokens, is_special), is_special


def _fits(growth: Tokens, budget: int) -> npt.NDArray[np.bool_]:
    """Which replacements to keep so that their growth sums to at most ``budget``: the first that grow go first."""
    kept = np.ones(len(growth), np.bool_)
    excess = int(growth.sum()) - budget
    if excess > 0:
        growing = np.flatnonzero(growth > 0)
        dropped = int(np.searchsorted(np.cumsum(growth[growing]), excess)) + 1
        kept[growing[:dropped]] = False
    return kept


def _splice(
    tokens: Tokens,
    starts: Tokens,
    lengths: Tokens,
    chosen: Tokens,
    pieces: Tokens,
    piece_counts: Tokens,
    table: SynonymTable,
) -> tuple[Tokens, Tokens]:
    """Put the alternatives in the place of the words ``chosen``."""
    new_lengths = lengths.copy()  # (W,)
    new_lengths[chosen] = piece_counts
    # positions in the result of the pieces that are new, those of word chosen[0] first
    ends = np.cumsum(new_lengths)
    new = ranges((ends - new_lengths)[chosen], piece_counts)
    is_old = np.ones(int(ends[-1]), np.bool_)  # (m,)
    is_old[new] = False
    was_kept = np.ones(len(tokens), np.bool_)
    was_kept[ranges(starts[chosen], lengths[chosen])] = False
    source = np.empty(len(is_old), np.int64)
    source[is_old] = np.flatnonzero(was_kept)
    source[new] = np.repeat(starts[chosen], piece_counts)
    result = tokens[source]
    result[new] = table.alternative_pieces[pieces]
    return result, source
