"""Disjoint spans of equal length, uniformly placed: span deletion and reordering (CLEAR, section 3.3) draw them."""

import numpy as np

from fairseq_clear.augmentations.base import Tokens, round_randomly


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
    """The positions that each span covers: (spans, span_length)."""
    return starts[:, None] + np.arange(span_length)
