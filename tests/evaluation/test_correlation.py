"""Correlations against scipy, and what they are not defined for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.sts import UndefinedCorrelation, pearson, spearman

# few distinct values, so that ties are the rule
TIED = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=2, max_size=30)


@given(TIED)
def test_both_are_scipys(pairs):
    x, y = np.array(pairs, float).T
    if len(set(x)) < 2 or len(set(y)) < 2:
        with pytest.raises(UndefinedCorrelation, match=f"all {len(x)} (first|second) numbers are"):
            spearman(x, y)
        return
    assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-12)
    assert pearson(x, y) == pytest.approx(stats.pearsonr(x, y).statistic, abs=1e-12)


def test_ties_matter_and_size_does_not():
    x, y = [1.0, 1.0, 2.0, 3.0], [1.0, 4.0, 2.0, 9.0]
    in_order = np.argsort(np.argsort(x)) + 1.0  # ranks that break ties by position
    assert spearman(x, y) != pytest.approx(pearson(in_order, stats.rankdata(y)))
    for scale in (1e-200, 1e200):
        assert pearson(np.array(x) * scale, y) == pytest.approx(pearson(x, y))
    assert pearson([1.0, 1.0 + 1e-9, 1.0], [3, 4, 3]) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ([1.0], [2.0], "task X: a correlation of 1 pairs is not defined"),
        ([], [], "task X: a correlation of 0 pairs"),
        ([2.0, 2.0], [1.0, 2.0], "task X: all 2 first numbers are 2"),
        ([1.0, 2.0], [0.0, 0.0], "task X: all 2 second numbers are 0"),
        ([1.0, 2.0], [1.0], "task X: .2,. numbers against .1,."),
        ([1.0, float("nan")], [1.0, 2.0], "task X: a number is NaN"),
    ],
)
def test_undefined_is_an_error_and_not_nan(x, y, message):
    for correlation in (pearson, spearman):
        with pytest.raises(UserError, match=message):
            correlation(x, y, where="task X")
