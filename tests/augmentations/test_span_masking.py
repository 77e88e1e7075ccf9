"""Slices (one mask each, the other tokens in order, the masked share) and random span masking (one span, every place alike)."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from fairseq_clear.augmentations.chain import build_augmentation
from fairseq_clear.augmentations.span_masking import mask_slices, mask_span
from fairseq_clear.tokens import Ragged
from fairseq_clear.views.view_maker import ViewMaker
from fairseq_clear.views.view_source import Pairs
from tests.augmentations.cases import MASK, SEEDS, SYMBOLS, are_alike, array, one
from tests.views.test_view_maker import TEXT, ShiftedPairs


def sliced(length, seed, **knobs):
    tokens = array([4 + place % 10 for place in range(length)])
    return tokens, *one(mask_slices)(tokens, np.random.default_rng(seed), symbols=SYMBOLS, **knobs)


@given(st.integers(1, 60), SEEDS, st.integers(0, 6), st.integers(0, 20))
def test_each_slice_is_one_mask_and_the_rest_is_unchanged(length, seed, slices, twentieths):
    tokens, result, source = sliced(length, seed, slices=slices, ratio=twentieths / 20)
    assert ((result == MASK) == (source == -1)).all()
    left = source[source >= 0]
    assert (result[source >= 0] == tokens[left]).all() and (np.diff(left) > 0).all()
    masked = set(range(length)) - set(left.tolist())
    runs = sum(place - 1 not in masked for place in masked)
    assert (result == MASK).sum() == runs <= slices
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
    assert are_alike(starts, range(8))


WORDS = array(range(4, 14))


@pytest.mark.parametrize("length", [1, 3, 9])
def test_a_span_becomes_one_mask(length):
    places = np.zeros(10 - length + 1, int)
    rng = np.random.default_rng(1)
    for _ in range(200 * len(places)):
        result, source = one(mask_span)(WORDS, rng, symbols=SYMBOLS, length=length)
        (start,) = np.flatnonzero(result == MASK)
        assert result.tolist() == [*WORDS[:start], MASK, *WORDS[start + length :]]
        assert source.tolist() == [*range(start), -1, *range(start + length, 10)]
        places[start] += 1
    assert chisquare(places).pvalue > 1e-3


@pytest.mark.parametrize("length", [10, 11])
def test_a_short_text_stays_as_it_is(length):
    result, source = one(mask_span)(WORDS, np.random.default_rng(1), symbols=SYMBOLS, length=length)
    assert result.tolist() == WORDS.tolist() and source.tolist() == list(range(10))


class WithNegatives(ShiftedPairs):
    """The same pairs, each with a hard negative."""

    negatives, text_lengths = 1, np.full((5, 12), len(TEXT))

    def pairs(self, indices, draws):
        pairs = super().pairs(indices, draws)
        count = len(pairs.identity)
        rows = [pairs.texts[3 * n + role] if role < 3 else TEXT[::-1] for n in range(count) for role in range(4)]
        return Pairs(Ragged.of(rows), pairs.identity, np.zeros(count, np.int64))


def test_only_the_positives_of_a_pair():
    chain = build_augmentation("mask-span", SYMBOLS)
    every, positives = (
        ViewMaker(WithNegatives(), chain, 7, 30, only_positives=only_positives)(np.array([3, 1]), 2)
        for only_positives in (False, True)
    )
    texts = every.pairs.texts
    assert len(texts) == 2 * 3 * 4
    for row in range(len(texts)):
        both, one, text = (part[row].tolist() for part in (every.views, positives.views, texts))
        assert both.count(MASK) == 1
        assert one == (both if row % 4 in (1, 2) else text)
