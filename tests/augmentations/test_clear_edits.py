"""CLEAR's deletion and reordering: how much, where, and that the length is kept until the chain collapses runs; and where
spans are placed: uniformly among all placements, against enumeration.
"""

from collections import Counter
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from fairseq_clear.augmentations import clear_edits
from fairseq_clear.seeding import Draws
from tests.augmentations.cases import DELETE, SYMBOLS, are_alike, array, one

delete_words, delete_spans, reorder_spans = map(
    one, (clear_edits.delete_words, clear_edits.delete_spans, clear_edits.reorder_spans)
)

TEXT = array(range(4, 24))


@pytest.mark.parametrize("length", [1, 2, 3, 11])
def test_word_deletion_deletes_the_ratio_on_average_however_short_the_text(length):
    rng, tokens = np.random.default_rng(1), array([4] * length)
    drawn = (delete_words(tokens, rng, symbols=SYMBOLS, ratio=0.7)[0] for _ in range(6000))
    shares = np.array([(view == DELETE).mean() for view in drawn])
    assert abs(shares.mean() - 0.7) < 4 * 0.5 / length / len(shares) ** 0.5
    assert np.ptp(shares) * length <= 1.001


def test_spans_of_a_long_text_are_a_twentieth_and_deleted_or_swapped_whole():
    result, source = delete_spans(array([4] * 200), np.random.default_rng(1), symbols=SYMBOLS)
    is_deleted = result == DELETE
    edges = np.flatnonzero(np.diff(np.concatenate([[0], is_deleted, [0]])))
    assert is_deleted.sum() == 50 and len(result) == 200
    assert all((end - start) % 10 == 0 for start, end in edges.reshape(-1, 2))
    assert (source[is_deleted] == -1).all()
    _, source = reorder_spans(array([4] * 200), np.random.default_rng(1), symbols=SYMBOLS)
    assert (source != np.arange(200)).sum() == 100


def test_word_deletion_deletes_every_position_equally_often():
    rng = np.random.default_rng(1)
    counts = sum((delete_words(TEXT, rng, symbols=SYMBOLS, ratio=0.3)[1] == -1).astype(int) for _ in range(3000))
    assert counts.sum() == 3000 * 6
    assert chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize("span_length", [1, 2])
def test_pairing_is_uniform(span_length):
    # four spans fill the text, so only the pairing is random; four spans have three pairings
    tokens = array(range(4, 4 + 4 * span_length))
    rng = np.random.default_rng(1)
    sources = [reorder_spans(tokens, rng, symbols=SYMBOLS, pairs=2, ratio=0.25)[1] for _ in range(3000)]
    drawn = Counter(tuple(source[::span_length] // span_length) for source in sources)
    assert are_alike(drawn, [(1, 0, 3, 2), (2, 3, 0, 1), (3, 2, 1, 0)])
    assert all((np.diff(source.reshape(4, span_length)) == 1).all() for source in sources)


@given(st.integers(1, 60), st.integers(0, 5), st.integers(0, 20), st.integers(0, 2**32))
def test_tokens_are_swapped_pairwise(length, pairs, twentieths, seed):
    tokens = array(range(100, 100 + length))
    rng = np.random.default_rng(seed)
    result, source = reorder_spans(tokens, rng, symbols=SYMBOLS, pairs=pairs, ratio=twentieths / 20)
    assert sorted(result) == sorted(tokens)
    assert (source[source] == np.arange(length)).all(), "swapping again does not restore the text"


@pytest.mark.parametrize("length", [3, 7, 15])
def test_short_texts_swap_single_tokens_in_proportion(length):
    rng = np.random.default_rng(1)
    tokens = array([4] * length)
    moved = [(reorder_spans(tokens, rng, symbols=SYMBOLS)[1] != np.arange(length)).sum() for _ in range(4000)]
    assert set(moved) <= {0, 2, 4, 6, 8}
    assert abs(np.mean(moved) - 0.5 * length) < 4 * 1 / len(moved) ** 0.5


# Places of spans


def place_spans(length, spans, span_length, rng):
    """The starts of the spans of one text, between two others."""
    draws = Draws(rng.integers(2**64, size=3, dtype=np.uint64))
    shape = (np.array(three) for three in ((9, length, 5), (2, spans, 1), (3, span_length, 2)))
    rows, starts, ranks = clear_edits.place_spans(*shape, draws)
    assert sorted(ranks[rows == 1]) == list(range(spans))
    return starts[rows == 1]


def span_shape(length, units, ratio, per_unit, rng):
    shape = clear_edits.span_shape(np.array([length]), units, ratio, per_unit, rng.random(1))
    return tuple(int(part[0]) for part in shape)


def enumerate_placements(length, spans, span_length):
    """Every ascending choice of starts whose spans are disjoint and within the text."""
    choices = combinations(range(length - span_length + 1), spans)
    return [chosen for chosen in choices if all(b - a >= span_length for a, b in pairwise(chosen))]


def place_one_after_the_other(length, spans, span_length, rng):
    """What one would write first: each span uniformly in the room that the ones before leave it. Not uniform."""
    starts, first = [], 0
    for left in range(spans, 0, -1):
        starts.append(int(rng.integers(first, length - left * span_length + 1)))
        first = starts[-1] + span_length
    return np.array(starts)


def uniformity(place, shape):
    """The p-value of the placements that ``place`` draws being uniform among all."""
    rng = np.random.default_rng(1)
    drawn = Counter(tuple(place(*shape, rng).tolist()) for _ in range(6000))
    placements = enumerate_placements(*shape)
    assert set(drawn) <= set(placements)
    return chisquare([drawn[placement] for placement in placements]).pvalue


@pytest.mark.parametrize("shape", [(7, 2, 2), (8, 3, 1), (6, 1, 4), (9, 2, 3), (9, 3, 2)])
def test_placement_is_uniform(shape):
    assert uniformity(place_spans, shape) > 1e-3


def test_the_test_of_uniformity_tells_a_placement_that_is_not():
    assert uniformity(place_one_after_the_other, (9, 3, 2)) < 1e-6


@given(st.integers(1, 30), st.integers(0, 5), st.integers(1, 6), st.integers(0, 2**32))
def test_spans_are_disjoint_and_within_the_text(length, spans, span_length, seed):
    rng = np.random.default_rng(seed)
    spans = min(spans, length // span_length)
    starts = place_spans(length, spans, span_length, rng)
    positions = (starts[:, None] + np.arange(span_length)).ravel()
    assert len(positions) == spans * span_length and set(positions) <= set(range(length))
    assert (np.diff(positions) > 0).all()


@pytest.mark.parametrize(
    ("length", "units", "ratio", "per_unit", "expected"),
    [
        (200, 5, 0.05, 1, (5, 10)),
        (20, 5, 0.05, 1, (5, 1)),
        (10, 5, 0.5, 1, (2, 5)),
        (10, 5, 1.0, 2, (0, 10)),
        (10, 5, 0.0, 1, (0, 1)),
    ],
)
def test_shapes_where_nothing_is_random(length, units, ratio, per_unit, expected):
    assert span_shape(length, units, ratio, per_unit, np.random.default_rng(0)) == expected


@pytest.mark.parametrize("length", [1, 3, 7, 19, 30, 50, 512])
def test_the_share_is_kept_on_average_at_every_length(length):
    rng = np.random.default_rng(2)
    shapes = np.array([span_shape(length, 5, 0.05, 1, rng) for _ in range(4000)])
    counts, lengths = shapes.T
    assert np.ptp(counts) <= 1 and np.ptp(lengths) <= 1 and (length > 20 or (lengths == 1).all())
    covered = counts * lengths  # of two neighbouring values, so its standard deviation is half their distance at most
    assert abs(covered.mean() - 5 * 0.05 * length) < 4 * np.ptp(covered) / 2 / len(covered) ** 0.5 + 1e-9
