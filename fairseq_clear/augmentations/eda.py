"""Easy data augmentation (EDA, Wei and Zou 2019, arXiv:1901.11196), which CERT's Table 4 compares with back-translation.

The synonym table says where words begin. Punctuation marks are words. Special symbols such as ``</s>`` are not; no
operation changes them. A word without a row in the table has no synonyms; this replaces the paper's stop-word list. Swap and
deletion only need to know where words begin.
"""

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from fairseq_clear.augmentations.base import Edited, Symbols, apply_by_row, compose, round_randomly
from fairseq_clear.augmentations.substitution import PLACE, SIZE, WORD, Words, draw_alternatives, replace_words
from fairseq_clear.seeding import Draws, floor_of
from fairseq_clear.spec import KnobValue
from fairseq_clear.tokens import Ragged, Tokens, ranges

# An operation may always add this many tokens, so that a word of a short text can be replaced by a longer one.
LEAST_GROWTH = 4
# Operations that draw synonyms; only these can make a text longer.
DRAWING = frozenset({"sr", "ri"})
BETWEEN, CHOICE = range(WORD + 1, WORD + 3)  # further purposes of the draws


def apply_eda(
    texts: Ragged, draws: Draws, *, symbols: Symbols, alpha: float = 0.1, ops: str = "sr-ri-rs-rd", draw: str = "one"
) -> Edited:
    """Apply synonym replacement, random insertion, random swap or random deletion.

    CERT: "EDA randomly chooses and performs one of the following operations" for each sentence; ``draw=all`` performs
    all of ``ops``, one after the other. The first three change max(1, alpha * words) words, rounded randomly; the last
    removes each word with probability alpha. ``alpha=0`` changes nothing.

    Args:
        alpha: share of the words to change.
        ops: names from OPERATIONS, joined by ``-``.
        draw: apply ``one`` of ``ops``, or ``all``.
    """
    names, source = ops.split("-"), np.arange(len(texts.tokens))
    if alpha == 0:
        return texts, source
    if draw == "one":
        choice = floor_of(draws.per_row(CHOICE), len(names))
        views, source = apply_by_row(
            texts, draws, choice, [partial(OPERATIONS[name], symbols=symbols, alpha=alpha) for name in names]
        )
        return views, source
    for number, name in enumerate(names):
        texts, step = OPERATIONS[name](texts, draws.fold(number), symbols, alpha)
        source = compose(source, step)
    return texts, source


def grow_by_operations(length: int, knobs: Mapping[str, KnobValue]) -> int:
    """Maximum length of a result of ``apply_eda``: replacement and insertion add up to ``_budgets`` tokens each."""
    growing = sum(name in DRAWING for name in str(knobs["ops"]).split("-"))
    if knobs["draw"] == "one":
        growing = min(growing, 1)
    for _ in range(growing if knobs["alpha"] else 0):
        length += int(_budgets(length, float(knobs["alpha"])))
    return length


def draws_synonyms(knobs: Mapping[str, KnobValue]) -> bool:
    """Whether one of ``ops`` draws synonyms; the other operations only need to know where words begin."""
    return not DRAWING.isdisjoint(str(knobs["ops"]).split("-"))


def _replace(texts: Ragged, draws: Draws, symbols: Symbols, alpha: float) -> Edited:
    """Synonym replacement: replace random words by one of their synonyms."""
    words = Words.of(texts, symbols)
    counts = _counts(alpha, words.ordinary, draws)
    return replace_words(texts, words, counts, _budgets(texts.lengths, alpha), draws, symbols)


def _insert(texts: Ragged, draws: Draws, symbols: Symbols, alpha: float) -> Edited:
    """Random insertion: insert synonyms of random words of the text at random places between words, or at an end.

    Insertions from the first that would exceed the budget are skipped.
    """
    table, words, size = symbols.table, Words.of(texts, symbols), len(texts)
    found = np.flatnonzero(words.rows >= 0)
    sizes = np.bincount(words.text_of[found], minlength=size)  # (R,) words with synonyms
    counts = np.where(sizes > 0, _counts(alpha, words.ordinary, draws), 0)
    rows = np.repeat(np.arange(size), counts)
    number = np.arange(len(rows)) - (counts.cumsum() - counts)[rows]
    chosen = found[(sizes.cumsum() - sizes)[rows] + floor_of(draws.uniform(PLACE, rows, number), sizes[rows])]
    drawn = draw_alternatives(words.rows[chosen], draws.uniform(WORD, rows, number), table)
    spaces = np.bincount(words.text_of, minlength=size)  # (R,) words, so places but the end
    place = floor_of(draws.uniform(BETWEEN, rows, number), spaces[rows] + 1)
    at_end = place == spaces[rows]
    word = np.where(at_end, 0, (spaces.cumsum() - spaces)[rows] + place)
    places = np.where(at_end, texts.offsets[rows + 1], words.starts[word])  # positions in texts.tokens
    lengths = table.piece_counts(drawn)
    total = lengths.cumsum()
    before = total - lengths
    fits = total - before[np.searchsorted(rows, rows)] <= _budgets(texts.lengths, alpha)[rows]
    # by text, place and number: the end of a text is the position where the next one begins
    order = np.flatnonzero(fits)[np.lexsort((number[fits], places[fits], rows[fits]))]
    rows, places, drawn, lengths = rows[order], places[order], drawn[order], lengths[order]
    new = np.zeros(len(texts.tokens) + int(lengths.sum()), np.bool_)
    new[ranges(places + lengths.cumsum() - lengths, lengths)] = True
    tokens, source = np.empty(len(new), np.int64), np.full(len(new), -1)
    tokens[new] = table.alternative_pieces[ranges(table.alternative_offsets[drawn], lengths)]
    tokens[~new], source[~new] = texts.tokens, np.arange(len(texts.tokens))
    growth = np.bincount(rows, lengths, size).astype(np.int64)
    return Ragged.of_lengths(tokens, texts.lengths + growth), source


def _swap(texts: Ragged, draws: Draws, symbols: Symbols, alpha: float) -> Edited:
    """Random swap: swap two random words, several times."""
    words = Words.of(texts, symbols)
    ordinary, sizes = np.flatnonzero(~words.is_special), words.ordinary
    first = sizes.cumsum() - sizes
    counts = np.where(sizes > 1, _counts(alpha, sizes, draws), 0)
    order, number = np.arange(len(words.starts)), ranges(np.zeros_like(counts), counts)
    rows = np.repeat(np.arange(len(counts)), counts)
    ones = floor_of(draws.uniform(PLACE, rows, number), sizes[rows])
    twos = floor_of(draws.uniform(WORD, rows, number), sizes[rows] - 1)
    twos += twos >= ones
    ones, twos = ordinary[first[rows] + ones], ordinary[first[rows] + twos]
    for n in range(int(counts.max(initial=0))):  # a swap may move what an earlier one has moved
        at = number == n
        one, two = ones[at], twos[at]
        order[one], order[two] = order[two], order[one]
    source = ranges(words.starts[order], words.lengths[order])
    return Ragged(texts.tokens[source], texts.offsets), source


def _delete(texts: Ragged, draws: Draws, symbols: Symbols, alpha: float) -> Edited:
    """Random deletion: remove each word with probability alpha. If none would be left, keep one, drawn uniformly."""
    words = Words.of(texts, symbols)
    first = np.searchsorted(words.text_of, words.text_of)  # the first word of each one's text
    u = draws.uniform(PLACE, words.text_of, np.arange(len(words.text_of)) - first)
    stays = words.is_special | (u >= alpha)
    left = np.bincount(words.text_of[stays & ~words.is_special], minlength=len(texts))
    lost = np.flatnonzero((words.ordinary > 0) & (left == 0))
    kept = floor_of(draws.per_row(WORD)[lost], words.ordinary[lost])
    ordinary = np.flatnonzero(~words.is_special)
    stays[ordinary[(words.ordinary.cumsum() - words.ordinary)[lost] + kept]] = True
    source = np.flatnonzero(np.repeat(stays, words.lengths))
    lengths = np.bincount(words.text_of[stays], words.lengths[stays], len(texts)).astype(np.int64)
    return Ragged.of_lengths(texts.tokens[source], lengths), source


def _counts(alpha: float, words: Tokens, draws: Draws) -> Tokens:
    """The number of words to change of each text (R,)."""
    return np.minimum(words, np.maximum(1, round_randomly(alpha * words, draws.per_row(SIZE))))


def _budgets(lengths: Tokens | int, alpha: float) -> Tokens:
    """Tokens that an operation may add to texts of these lengths (R,), or of one length."""
    return np.maximum(LEAST_GROWTH, np.ceil(alpha * lengths)).astype(np.int64)


OPERATIONS: dict[str, Callable[..., Edited]] = {
    "sr": _replace,
    "ri": _insert,
    "rs": _swap,
    "rd": _delete,
}
