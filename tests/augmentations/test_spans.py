"""Where spans are placed: uniformly among all placements, against enumeration."""

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from fairseq_clear.augmentations import clear_edits
from fairseq_clear.seeding import Draws

DRAWS = 6000


def place_spans(length, spans, span_length, rng):
    """The starts of the spans of one text, between two others."""
    draws = Draws(rng.integers(2**64, size=3, dtype=np.uint64))
    shape = (np.array(three) for three in ((9, length, 5), (2, spans, 1), (3, span_length, 2)))
    rows, starts, ranks = clear_edits.place_spans(*shape, draws)
    assert sorted(ranks[rows == 1]) == list(range(spans))
    return starts[rows == 1]


def span_shape(length, units, ratio, per_unit, rng):
    """The shape of the spans of one text."""
    shape = clear_edits.span_shape(np.array([length]), units, ratio, per_unit, rng.random(1))
    return tuple(int(part[0]) for part in shape)


def enumerate_placements(length, spans, span_length):
    """Every ascending choice of starts whose spans are disjoint and within the text."""
    starts = range(length - span_length + 1)
    return [
        chosen
        for chosen in combinations(starts, spans)
        if all(after - before >= span_length for before, after in zip(chosen, chosen[1:], strict=False))
    ]


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
    drawn = Counter(tuple(place(*shape, rng).tolist()) for _ in range(DRAWS))
    placements = enumerate_placements(*shape)
    assert set(drawn) <= set(placements)
    return chisquare([drawn[placement] for placement in placements]).pvalue


@pytest.mark.parametrize("shape", [(7, 2, 2), (8, 3, 1), (6, 1, 4), (9, 2, 3), (9, 3, 2)])
def test_placement_is_uniform(shape):
    assert uniformity(place_spans, shape) > 1e-3


def test_the_test_of_uniformity_tells_a_placement_that_is_not():
    assert uniformity(place_one_after_the_other, (9, 3, 2)) < 1e-6


@given(st.integers(1, 30), st.integers(0, 5), st.integers(1, 6), st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_spans_are_disjoint_and_within_the_text(length, spans, span_length, seed):
    rng = np.random.default_rng(seed)
    spans = min(spans, length // span_length)
    starts = place_spans(length, spans, span_length, rng)
    positions = starts[:, None] + np.arange(span_length)
    assert positions.shape == (spans, span_length)
    assert len(set(positions.ravel().tolist())) == spans * span_length
    assert all(0 <= position < length for position in positions.ravel())
    assert positions.ravel().tolist() == sorted(positions.ravel().tolist())


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
