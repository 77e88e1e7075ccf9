"""Easy data augmentation (EDA, Wei and Zou 2019, arXiv:1901.11196), which CERT's Table 4 compares with back-translation.

The synonym table says where words begin. Punctuation marks are words. Special symbols such as ``</s>`` are not; no
operation changes them. A word without a row in the table has no synonyms; this replaces the paper's stop-word list. Swap and
deletion only need to know where words begin.
"""

import math
from collections.abc import Callable, Mapping

import numpy as np

from fairseq_clear.augmentations.base import Symbols, round_randomly
from fairseq_clear.augmentations.substitution import draw_alternatives, replace_words
from fairseq_clear.augmentations.synonym_table import ranges, row_lengths
from fairseq_clear.augmentations.words import read_words, table_of
from fairseq_clear.spec import KnobValue
from fairseq_clear.tokens import Tokens

# An operation may always add this many tokens, so that a word of a short text can be replaced by a longer one.
LEAST_GROWTH = 4
# Operations that draw synonyms; only these can make a text longer.
DRAWING = frozenset({"sr", "ri"})


def apply_eda(
    tokens: Tokens,
    rng: np.random.Generator,
    *,
    symbols: Symbols,
    alpha: float = 0.1,
    ops: str = "sr-ri-rs-rd",
    draw: str = "one",
) -> tuple[Tokens, Tokens]:
    """Apply synonym replacement, random insertion, random swap or random deletion.

    CERT: "EDA randomly chooses and performs one of the following operations" for each sentence; ``draw=all`` performs
    all of ``ops``, one after the other. The first three change max(1, alpha * words) words, rounded randomly; the last
    removes each word with probability alpha. ``alpha=0`` changes nothing.

    Args:
        tokens: (n,) token ids.
        rng: source of all random draws.
        symbols: must have a synonym table.
        alpha: share of the words to change.
        ops: names from OPERATIONS, joined by ``-``.
        draw: apply ``one`` of ``ops``, or ``all``.

    Returns:
        The view (m,), and for each of its tokens the position (m,) in ``tokens`` that it comes from, -1 if it is new.
    """
    names = ops.split("-")
    if draw == "one":
        names = [names[int(rng.integers(len(names)))]]
    source = np.arange(len(tokens))
    for name in names if alpha > 0 else ():
        tokens, step_source = OPERATIONS[name](tokens, rng, symbols, alpha)
        source = np.where(step_source >= 0, source[step_source], -1)
    return tokens.copy(), source


def grow_by_operations(length: int, knobs: Mapping[str, KnobValue]) -> int:
    """Maximum length of a result of ``apply_eda``: replacement and insertion add up to ``_budget`` tokens each."""
    growing = sum(name in DRAWING for name in str(knobs["ops"]).split("-"))
    if knobs["draw"] == "one":
        growing = min(growing, 1)
    for _ in range(growing):
        length += _budget(length, float(knobs["alpha"]))
    return length


def draws_synonyms(knobs: Mapping[str, KnobValue]) -> bool:
    """Whether one of ``ops`` draws synonyms; the other operations only need to know where words begin."""
    return not DRAWING.isdisjoint(str(knobs["ops"]).split("-"))


def _replace(tokens: Tokens, rng: np.random.Generator, symbols: Symbols, alpha: float) -> tuple[Tokens, Tokens]:
    """Synonym replacement: replace random words by one of their synonyms."""
    words = read_words(tokens, symbols)
    count = _count(alpha, words.ordinary, rng)
    return replace_words(tokens, words, count, _budget(len(tokens), alpha), rng, symbols)


def _insert(tokens: Tokens, rng: np.random.Generator, symbols: Symbols, alpha: float) -> tuple[Tokens, Tokens]:
    """Random insertion: insert synonyms of random words of the text at random places between words, or at an end.

    Insertions that would exceed the budget are skipped.
    """
    table, words = table_of(symbols), read_words(tokens, symbols)
    rows = words.rows[words.rows >= 0]
    source = np.arange(len(tokens))
    if not len(rows):
        return tokens, source
    count = _count(alpha, words.ordinary, rng)
    drawn = draw_alternatives(rng.choice(rows, count), rng, table)  # (count,)
    places = np.append(words.starts, len(tokens))[rng.integers(len(words.starts) + 1, size=count)]  # (count,)
    lengths = row_lengths(table.alternative_offsets, drawn)
    fits = np.cumsum(lengths) <= _budget(len(tokens), alpha)
    drawn, places, lengths = drawn[fits], places[fits], lengths[fits]
    pieces = table.alternative_pieces[ranges(table.alternative_offsets[drawn], lengths)]
    # np.insert keeps the order of pieces inserted at the same place
    before = np.repeat(places, lengths)
    return np.insert(tokens, before, pieces), np.insert(source, before, -1)


def _swap(tokens: Tokens, rng: np.random.Generator, symbols: Symbols, alpha: float) -> tuple[Tokens, Tokens]:
    """Random swap: swap two random words, several times."""
    words = read_words(tokens, symbols)
    places = np.flatnonzero(~words.is_special)
    order = np.arange(len(words.starts))
    for _ in range(_count(alpha, len(places), rng) if len(places) > 1 else 0):
        pair = rng.choice(places, 2, replace=False, shuffle=False)
        order[pair] = order[pair[::-1]]
    source = ranges(words.starts[order], words.lengths[order])
    return tokens[source], source


def _delete(tokens: Tokens, rng: np.random.Generator, symbols: Symbols, alpha: float) -> tuple[Tokens, Tokens]:
    """Random deletion: remove each word with probability alpha. If none would be left, keep one, drawn uniformly."""
    words = read_words(tokens, symbols)
    is_word = ~words.is_special
    stays = ~is_word | (rng.random(len(is_word)) >= alpha)
    if is_word.any() and not (stays & is_word).any():
        stays[rng.choice(np.flatnonzero(is_word))] = True
    source = np.flatnonzero(np.repeat(stays, words.lengths))
    return tokens[source], source


def _count(alpha: float, words: int, rng: np.random.Generator) -> int:
    return min(words, max(1, round_randomly(alpha * words, rng)))


def _budget(length: int, alpha: float) -> int:
    return max(LEAST_GROWTH, math.ceil(alpha * length)) if alpha > 0 else 0


OPERATIONS: dict[str, Callable[[Tokens, np.random.Generator, Symbols, float], tuple[Tokens, Tokens]]] = {
    "sr": _replace,
    "ri": _insert,
    "rs": _swap,
    "rd": _delete,
}
