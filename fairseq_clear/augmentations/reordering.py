"""Reordering (CLEAR, section 3.3): pairs of spans change places."""

import numpy as np

from fairseq_clear.augmentations.base import Symbols, Tokens
from fairseq_clear.augmentations.spans import place_spans, span_positions, span_shape


def reorder_spans(
    tokens: Tokens, rng: np.random.Generator, *, symbols: Symbols, pairs: int = 5, ratio: float = 0.05
) -> tuple[Tokens, Tokens]:
    """Draw 2 * ``pairs`` disjoint spans, each a share ``ratio`` of the text, pair them at random and swap each pair.

    (n,) to (n,) and (n,). Texts too short for all pairs get fewer (see ``span_shape``).
    """
    count, span_length = span_shape(len(tokens), pairs, ratio, 2, rng)
    starts = place_spans(len(tokens), 2 * count, span_length, rng)
    positions = span_positions(starts, span_length)[rng.permutation(2 * count)]  # (2 * pairs, span_length)
    source = np.arange(len(tokens))
    # row i and row i + pairs of the shuffled spans are a pair
    source[positions] = np.roll(positions, count, axis=0)
    return tokens[source], source
