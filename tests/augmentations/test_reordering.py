"""Reordering: which spans are swapped."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from fairseq_clear.augmentations import clear_edits
from tests.augmentations.cases import SYMBOLS, array, one

reorder_spans = one(clear_edits.reorder_spans)


@pytest.mark.parametrize("span_length", [1, 2])
def test_pairing_is_uniform(span_length):
    # four spans fill the text, so only the pairing is random; four spans have three pairings
    tokens = array(range(4, 4 + 4 * span_length))
    rng = np.random.default_rng(1)
    sources = [reorder_spans(tokens, rng, symbols=SYMBOLS, pairs=2, ratio=0.25)[1] for _ in range(3000)]
    drawn = Counter(tuple(source[::span_length] // span_length) for source in sources)
    assert set(drawn) == {(1, 0, 3, 2), (2, 3, 0, 1), (3, 2, 1, 0)}
    assert chisquare(list(drawn.values())).pvalue > 1e-3
    assert all((np.diff(source.reshape(4, span_length)) == 1).all() for source in sources)


@given(st.integers(1, 60), st.integers(0, 5), st.integers(0, 20), st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_tokens_are_swapped_pairwise(length, pairs, twentieths, seed):
    tokens = array(range(100, 100 + length))
    rng = np.random.default_rng(seed)
    result, source = reorder_spans(tokens, rng, symbols=SYMBOLS, pairs=pairs, ratio=twentieths / 20)
    assert sorted(result) == sorted(tokens)
    assert (source[source] == np.arange(length)).all(), "swapping again does not restore the text"


def test_a_long_text_swaps_ten_spans_of_a_twentieth():
    _, source = reorder_spans(array([4] * 200), np.random.default_rng(1), symbols=SYMBOLS)
    assert (source != np.arange(200)).sum() == 100


@pytest.mark.parametrize("length", [3, 7, 15])
def test_short_texts_swap_single_tokens_in_proportion(length):
    rng = np.random.default_rng(1)
    tokens = array([4] * length)
    moved = [(reorder_spans(tokens, rng, symbols=SYMBOLS)[1] != np.arange(length)).sum() for _ in range(4000)]
    assert set(moved) <= {0, 2, 4, 6, 8}
    assert abs(np.mean(moved) - 0.5 * length) < 4 * 1 / len(moved) ** 0.5
