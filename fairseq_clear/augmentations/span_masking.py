"""Spans that become one ``<mask>`` each: a random span (Mirror-BERT), and slices (Investigating Views).

``mask_span``: Liu et al. 2021 (arXiv:2104.08027), section 2.2. The paper replaces a random span of k = 5 characters in one
of the two copies of a text; its public code (cambridgeltl/mirror-bert) leaves texts of fewer than 30 characters as they
are. Training data are tokens here, so the span consists of whole tokens: an English word piece has about as many
characters. ``--augment-texts positives`` leaves the other copy as it is.

``mask_slices``: Nguyen, *Investigating Views for Contrastive Learning of Language Representations*. The poster describes
the view only by examples: "I <MASK> the bakery <MASK> loaf of bread", "I went to <MASK> to buy a <MASK>", "It was <MASK>
crispy and <MASK>". Read here as: two disjoint slices, placed uniformly, each a fifth of the text (in its
examples, 5 of 11 and 2 of 6 words), and each becomes one ``<mask>``, whatever its length; slices that touch become one. The
symbol is the pretrained encoder's own ``<mask>``, as printed, not CLEAR's ``<del>``.
"""

import numpy as np

from fairseq_clear.augmentations.base import Edited, Symbols, round_randomly
from fairseq_clear.augmentations.clear_edits import PLACE, SIZE
from fairseq_clear.seeding import Draws, floor_of
from fairseq_clear.tokens import Ragged, Tokens, cells, ranges


def mask_span(texts: Ragged, draws: Draws, *, symbols: Symbols, length: int = 1) -> Edited:
    """Replace ``length`` tokens in a row, uniformly placed, by one ``<mask>``; a text of at most ``length`` tokens stays."""
    rows = np.flatnonzero(texts.lengths > length) if length else np.zeros(0, np.int64)
    starts = floor_of(draws.per_row(PLACE)[rows], texts.lengths[rows] - length + 1)
    return _write_masks(texts, rows, texts.offsets[rows] + starts, np.full(len(rows), length), symbols)


def mask_slices(texts: Ragged, draws: Draws, *, symbols: Symbols, slices: int = 2, ratio: float = 0.2) -> Edited:
    """Replace ``slices`` disjoint spans, each a share ``ratio`` of the text, by one ``<mask>`` each.

    The length of each slice is rounded randomly by itself, so that their expected total is slices * ratio * n; in a short text
    some slices are empty. Slices that do not fit are left out. Given the lengths, every placement has the same probability
    (as in ``place_spans``).
    """
    size = len(texts)
    owners, numbers = cells(size, slices)
    lengths = round_randomly(ratio * texts.lengths[owners], draws.uniform(SIZE, owners, numbers))
    lengths = lengths.reshape(size, slices)
    lengths *= lengths.cumsum(axis=1) <= texts.lengths[:, None]
    counts = np.count_nonzero(lengths, axis=1)
    rows, slots, _ = draws.choose_few(
        PLACE, counts, texts.lengths - lengths.sum(axis=1) + counts, int(counts.max(initial=0))
    )
    order = np.argsort(rows << 32 | slots)
    flat = lengths[lengths > 0]  # by row, as the slices are placed from left to right
    longer = flat - 1
    before = longer.cumsum() - longer  # over all rows
    first = (counts.cumsum() - counts)[rows]
    starts = texts.offsets[rows] + slots[order] + before - before[first]
    return _write_masks(texts, rows, starts, flat, symbols)


def _write_masks(texts: Ragged, rows: Tokens, starts: Tokens, lengths: Tokens, symbols: Symbols) -> Edited:
    """Replace runs (K,) of tokens, by row and by their positions in ``texts.tokens``, by one ``<mask>`` each.

    Runs that touch share one. Long texts are copied part by part, which is faster than token by token.
    """
    ends = starts + lengths
    goes_on = np.zeros(len(rows) + 1, np.bool_)  # whether a run touches the one before
    goes_on[1:-1] = (starts[1:] == ends[:-1]) & (rows[1:] == rows[:-1])
    is_first, is_last = ~goes_on[:-1], ~goes_on[1:]
    begins = np.concatenate([[0], ends[is_last]])  # of what is left, between the masks
    sizes = np.concatenate([starts[is_first], [len(texts.tokens)]]) - begins
    left = Ragged.copied(texts.tokens, begins, sizes, last=symbols.mask)
    source = ranges(begins, left.lengths)[:-1]
    source[left.offsets[1:-1] - 1] = -1
    removed = np.bincount(rows, lengths - is_first, len(texts)).astype(np.int64)
    return Ragged.of_lengths(left.tokens[:-1], texts.lengths - removed), source
