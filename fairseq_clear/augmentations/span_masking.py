"""Spans that become one ``<mask>`` each: a random span (Mirror-BERT), and slices (Investigating Views).

``mask_span``: Liu et al. 2021 (arXiv:2104.08027), section 2.1. The paper replaces a random span of k = 5 characters in one
of the two copies of a text; its public code (cambridgeltl/mirror-bert) leaves texts of fewer than 30 characters as they
are. Training data are tokens here, so the span consists of whole tokens: an English word piece has about as many
characters. ``--augment-texts positives`` leaves the other copy as it is.

``mask_slices``: Nguyen, *Investigating Views for Contrastive Learning of Language Representations*. The poster describes
the view only by examples: "I <MASK> the bakery <MASK> loaf of bread", "I went to <MASK> to buy a <MASK>", "It was <MASK>
crispy and <MASK>". Read here as: two disjoint slices, placed uniformly, each a fifth of the text (2 + 3 of 11 and 1 + 1 of
6 words are gone), and each becomes one ``<mask>``, whatever its length; slices that touch become one. The symbol is the
pretrained encoder's own ``<mask>``, as printed, not CLEAR's ``<del>``.
"""

import numpy as np

from fairseq_clear.augmentations.base import Symbols, round_randomly
from fairseq_clear.augmentations.synonym_table import ranges
from fairseq_clear.tokens import Tokens


def mask_span(tokens: Tokens, rng: np.random.Generator, *, symbols: Symbols, length: int = 1) -> tuple[Tokens, Tokens]:
    """Replace ``length`` tokens in a row by one ``<mask>``; all positions are equally likely; tokens (n,) to (m,).

    A text of at most ``length`` tokens stays as it is.
    """
    source = np.arange(len(tokens))
    if length < 1 or len(tokens) <= length:
        return tokens.copy(), source
    start = int(rng.integers(len(tokens) - length + 1))
    kept = np.concatenate([source[: start + 1], source[start + length :]])  # the span's first token gives its place
    masked, origin = tokens[kept], kept
    masked[start], origin[start] = symbols.mask, -1
    return masked, origin


def mask_slices(
    tokens: Tokens, rng: np.random.Generator, *, symbols: Symbols, slices: int = 2, ratio: float = 0.2
) -> tuple[Tokens, Tokens]:
    """Replace ``slices`` disjoint spans, each a share ``ratio`` of the text, by one ``<mask>`` each; tokens (n,) to (m,).

    The length of each slice is rounded randomly by itself, so that their expected total is slices * ratio * n; in a short text
    some slices are empty. Slices that do not fit are left out. Given the lengths, every placement has the same probability
    (as in ``place_spans``).
    """
    lengths = np.array([round_randomly(ratio * len(tokens), rng) for _ in range(slices)], np.int64)
    lengths = lengths[lengths > 0]
    lengths = lengths[np.cumsum(lengths) <= len(tokens)]
    slots = len(tokens) - int(lengths.sum()) + len(lengths)
    chosen = np.sort(rng.choice(slots, len(lengths), replace=False, shuffle=False))
    starts = chosen + np.cumsum(lengths - 1) - (lengths - 1)
    is_masked = np.zeros(len(tokens), np.bool_)
    is_masked[ranges(starts, lengths)] = True
    is_left = ~is_masked
    is_left[1:] |= is_masked[1:] & ~is_masked[:-1]  # the first token of each slice gives its place to the mask
    is_left[:1] = True
    source = np.where(is_masked, -1, np.arange(len(tokens)))[is_left]
    return np.where(is_masked, symbols.mask, tokens)[is_left], source
