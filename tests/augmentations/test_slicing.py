"""Slices: one mask each, the other tokens in order, and the masked share."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from fairseq_clear.augmentations.span_masking import mask_slices
from tests.augmentations.cases import MASK, SEEDS, SYMBOLS, array, one


def sliced(length, seed, **knobs):
    tokens = array([4 + place % 10 for place in range(length)])
    return tokens, *one(mask_slices)(tokens, np.random.default_rng(seed), symbols=SYMBOLS, **knobs)


@given(st.integers(1, 60), SEEDS, st.integers(0, 6), st.integers(0, 20))
@settings(max_examples=200, deadline=None)
def test_each_slice_is_one_mask_and_the_rest_is_unchanged(length, seed, slices, twentieths):
    tokens, result, source = sliced(length, seed, slices=slices, ratio=twentieths / 20)
    assert ((result == MASK) == (source == -1)).all()
    left = source[source >= 0]
    assert (result[source >= 0] == tokens[left]).all() and (np.diff(left) > 0).all()
    gaps = [tuple(gap) for gap in np.split(np.arange(length), np.searchsorted(np.arange(length), left))]
    masked = sorted(set(range(length)) - set(left.tolist()))
    runs = sum(1 for place in masked if place - 1 not in masked)
    assert (result == MASK).sum() == runs <= slices, gaps
    # each mask has the position of the run that it replaces
    for place in np.flatnonzero(result == MASK):
        before, after = source[place - 1] if place else -1, source[place + 1] if place + 1 < len(source) else length
        assert after - before > 1


@pytest.mark.parametrize("length", [3, 10, 33, 200])
def test_the_share_that_is_masked(length):
    masked = [length - (sliced(length, seed)[2] >= 0).sum() for seed in range(3000)]
    assert abs(np.mean(masked) - 0.4 * length) < 5 * np.std(masked) / len(masked) ** 0.5 + 1e-9


def test_the_posters_examples_are_views():
    # "I went to the bakery to buy a loaf of bread", "It was very crispy and tasty"
    left = {tuple(sliced(11, seed)[2].tolist()) for seed in range(3000)}
    assert {(0, -1, 3, 4, -1, 8, 9, 10), (0, 1, 2, -1, 5, 6, 7, -1)} <= left
    assert {len(places) for places in left} <= {6, 7, 8, 9}, "4 to 6 words of 11 in one or two slices"
    assert (0, 1, -1, 3, 4, -1) in {tuple(sliced(6, seed)[2].tolist()) for seed in range(300)}


def test_places_are_uniform():
    starts = Counter(int(np.flatnonzero(sliced(10, seed, slices=1, ratio=0.3)[1] == MASK)[0]) for seed in range(4000))
    assert set(starts) == set(range(8))
    assert chisquare(list(starts.values())).pvalue > 1e-3


def test_everything_masked_is_one_mask():
    assert sliced(10, 1, slices=2, ratio=0.5)[1].tolist() == [MASK]
