"""Word and span deletion, and reordering (CLEAR, section 3.3). Spans are disjoint, of equal length and uniformly placed.

Deletion keeps the length of a text: each deleted token becomes a ``<del>``, and only the end of the chain collapses runs of
them. A reorder step that follows therefore still measures its spans as shares of the original length.
"""

import numpy as np

from fairseq_clear.augmentations.base import Symbols, round_randomly
from fairseq_clear.tokens import Tokens


def delete_words(
    tokens: Tokens, rng: np.random.Generator, *, symbols: Symbols, ratio: float = 0.7
) -> tuple[Tokens, Tokens]:
    """Replace a share ``ratio`` of the tokens, drawn without replacement, by ``<del>``; tokens (n,) to (n,).

    CLEAR deletes tokens, not whole words, under this name.
    """
    count = min(len(tokens), round_randomly(ratio * len(tokens), rng))
    return _delete(tokens, rng.choice(len(tokens), count, replace=False, shuffle=False), symbols)


def delete_spans(
    tokens: Tokens, rng: np.random.Generator, *, symbols: Symbols, spans: int = 5, ratio: float = 0.05
) -> tuple[Tokens, Tokens]:
    """Replace ``spans`` disjoint spans, each a share ``ratio`` of the text, by ``<del>``; tokens (n,) to (n,).

    Texts too short for all spans get fewer (see ``span_shape``).
    """
    count, span_length = span_shape(len(tokens), spans, ratio, 1, rng)
    starts = place_spans(len(tokens), count, span_length, rng)
    return _delete(tokens, span_positions(starts, span_length).ravel(), symbols)


def _delete(tokens: Tokens, positions: Tokens, symbols: Symbols) -> tuple[Tokens, Tokens]:
    deleted, source = tokens.copy(), np.arange(len(tokens))
    deleted[positions] = symbols.delete
    source[positions] = -1
    return deleted, source


def reorder_spans(
    tokens: Tokens, rng: np.random.Generator, *, symbols: Symbols, pairs: int = 5, ratio: float = 0.05
) -> tuple[Tokens, Tokens]:
    """Draw 2 * ``pairs`` disjoint spans, each a share ``ratio`` of the text, pair them at random and swap each pair.

    Tokens (n,) to (n,). Texts too short for all pairs get fewer (see ``span_shape``).
    """
    count, span_length = span_shape(len(tokens), pairs, ratio, 2, rng)
    starts = place_spans(len(tokens), 2 * count, span_length, rng)
    positions = span_positions(starts, span_length)[rng.permutation(2 * count)]  # (2 * pairs, span_length)
    source = np.arange(len(tokens))
    # rows i and i + pairs of the shuffled spans are swapped
    source[positions] = np.roll(positions, count, axis=0)
    return tokens[source], source


def place_spans(length: int, spans: int, span_length: int, rng: np.random.Generator) -> Tokens:
    """Draw the starts of ``spans`` disjoint spans, ascending. Every placement has the same probability; spans may touch.

    If each span is shrunk to one slot, a placement is a choice of ``spans`` slots out of length - spans * span_length + spans,
    and every such choice is a placement. (Drawing the starts one by one and rejecting overlaps is not uniform.)

    Returns:
        (spans,) int64.

    Raises:
        ValueError: the spans do not fit.
    """
    slots = length - spans * span_length + spans
    if spans < 0 or span_length < 1 or slots < spans:
        raise ValueError(f"{spans} spans of {span_length} tokens do not fit into {length}")
    chosen = np.sort(rng.choice(slots, spans, replace=False, shuffle=False))  # (spans,)
    starts: Tokens = chosen + np.arange(spans) * (span_length - 1)  # (spans,)
    return starts


def span_shape(length: int, units: int, ratio: float, per_unit: int, rng: np.random.Generator) -> tuple[int, int]:
    """Choose how many units of ``per_unit`` spans a text gets, and how long the spans are: (units, span length).

    A span has ratio * length tokens, rounded randomly. If that is less than one token, spans are single tokens, and instead
    their number is reduced, rounded randomly. In both cases the expected number of tokens in spans is units * per_unit *
    ratio * length, for a text of 30 tokens as for one of 512. Units that do not fit are left out.
    """
    share = ratio * length
    if share < 1:
        span_length, units = 1, min(units, round_randomly(units * share, rng))
    else:
        span_length = round_randomly(share, rng)
    return min(units, length // (per_unit * span_length)), span_length


def span_positions(starts: Tokens, span_length: int) -> Tokens:
    """Return the positions (spans, span_length) that each span covers."""
    return starts[:, None] + np.arange(span_length)
