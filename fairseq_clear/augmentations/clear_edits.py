"""Word and span deletion, and reordering (CLEAR, section 3.3). Spans are disjoint, of equal length and uniformly placed.

Deletion keeps the length of a text: each deleted token becomes a ``<del>``, and runs of ``<del>`` are collapsed only at the end
of the chain. A later reorder step therefore measures its spans as shares of the original length.
"""

import numpy as np

from fairseq_clear.augmentations.base import Edited, Symbols, round_randomly
from fairseq_clear.seeding import Draws, Floats
from fairseq_clear.tokens import Ragged, Tokens, ranges

SIZE, PLACE = range(2)  # purposes of the draws


def delete_words(texts: Ragged, draws: Draws, *, symbols: Symbols, ratio: float = 0.7) -> Edited:
    """Replace a share ``ratio`` of the tokens, drawn without replacement, by ``<del>``.

    CLEAR deletes tokens, not whole words, under this name.
    """
    counts = np.minimum(texts.lengths, round_randomly(ratio * texts.lengths, draws.per_row(SIZE)))
    rows, slots, _ = draws.choose(PLACE, counts, texts.lengths)
    return _delete(texts, texts.offsets[rows] + slots, symbols)


def delete_spans(texts: Ragged, draws: Draws, *, symbols: Symbols, spans: int = 5, ratio: float = 0.05) -> Edited:
    """Replace ``spans`` disjoint spans, each a share ``ratio`` of the text, by ``<del>``.

    Texts too short for all spans get fewer (see ``span_shape``).
    """
    counts, span_lengths = span_shape(texts.lengths, spans, ratio, 1, draws.per_row(SIZE))
    rows, starts, _ = place_spans(texts.lengths, counts, span_lengths, draws)
    return _delete(texts, ranges(texts.offsets[rows] + starts, span_lengths[rows]), symbols)


def _delete(texts: Ragged, positions: Tokens, symbols: Symbols) -> Edited:
    deleted, source = texts.tokens.copy(), np.arange(len(texts.tokens))
    deleted[positions] = symbols.delete
    source[positions] = -1
    return Ragged(deleted, texts.offsets), source


def reorder_spans(texts: Ragged, draws: Draws, *, symbols: Symbols, pairs: int = 5, ratio: float = 0.05) -> Edited:
    """Draw 2 * ``pairs`` disjoint spans, each a share ``ratio`` of the text, pair them at random and swap each pair.

    Texts too short for all pairs get fewer (see ``span_shape``).
    """
    counts, span_lengths = span_shape(texts.lengths, pairs, ratio, 2, draws.per_row(SIZE))
    rows, starts, ranks = place_spans(texts.lengths, 2 * counts, span_lengths, draws)
    starts += texts.offsets[rows]
    first = (2 * counts).cumsum() - 2 * counts  # (R,) number of each row's first span
    by_rank = np.empty_like(starts)
    by_rank[first[rows] + ranks] = starts
    # the spans of ranks i and i + counts are swapped
    half = counts[rows]
    partners = by_rank[first[rows] + (ranks + half) % np.maximum(2 * half, 1)]
    source = np.arange(len(texts.tokens))
    source[ranges(starts, span_lengths[rows])] = ranges(partners, span_lengths[rows])
    return Ragged(texts.tokens[source], texts.offsets), source


def place_spans(lengths: Tokens, counts: Tokens, span_lengths: Tokens, draws: Draws) -> tuple[Tokens, Tokens, Tokens]:
    """Draw the starts of ``counts`` (R,) disjoint spans in texts of these lengths (R,). Spans may touch.

    Every placement has the same probability: with each span shrunk to one slot, placements correspond one to one to choices
    of ``counts`` slots out of length - counts * span_length + counts. (Drawing the starts one by one and rejecting overlaps
    is not uniform.)

    Returns:
        For each span, its row, its start in the text, and its rank in random order, all (K,), sorted by row and start.
    """
    rows, slots, ranks = draws.choose(PLACE, counts, lengths - counts * (span_lengths - 1))
    order = np.argsort(rows << 32 | slots)
    slots, ranks = slots[order], ranks[order]
    before = np.arange(len(rows)) - (counts.cumsum() - counts)[rows]  # spans of the row to the left
    return rows, slots + before * (span_lengths[rows] - 1), ranks


def span_shape(lengths: Tokens, units: int, ratio: float, per_unit: int, u: Floats) -> tuple[Tokens, Tokens]:
    """Choose the number of units, of ``per_unit`` spans each, and the length of a span in each text: both (R,).

    A span has ratio * length tokens, rounded randomly. If that is less than one token, spans are single tokens, and the
    number of units is reduced instead, rounded randomly. The expected number of tokens in spans is units * per_unit * ratio *
    length in both cases, whether a text has 30 tokens or 512. Units that do not fit are left out.

    ``u`` (R,) is uniform in [0, 1).
    """
    share = ratio * lengths
    is_short = share < 1
    span_lengths = np.where(is_short, 1, round_randomly(share, u))
    wanted = np.where(is_short, np.minimum(units, round_randomly(units * share, u)), units)
    return np.minimum(wanted, lengths // (per_unit * span_lengths)), span_lengths
