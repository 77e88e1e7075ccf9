"""Random span masking: one span, every place alike, and only in the positives of a pair if wanted."""

import numpy as np
import pytest
from scipy.stats import chisquare

from fairseq_clear.augmentations.chain import build_augmentation
from fairseq_clear.augmentations.span_masking import mask_span
from fairseq_clear.tokens import Ragged
from fairseq_clear.views.view_maker import ViewMaker
from fairseq_clear.views.view_source import Pairs
from tests.augmentations.cases import MASK, SYMBOLS, array, one
from tests.views.test_view_maker import TEXT, ShiftedPairs

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
        rows = [
            row for n in range(len(pairs.identity)) for row in (*(pairs.texts[3 * n + k] for k in range(3)), TEXT[::-1])
        ]
        return Pairs(Ragged.of(rows), pairs.identity, np.zeros(len(pairs.identity), np.int64))


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
