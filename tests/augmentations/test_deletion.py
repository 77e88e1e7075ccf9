"""Word and span deletion: how much, where, and that the length is kept until the chain collapses runs."""

import numpy as np
import pytest
from scipy.stats import chisquare

from fairseq_clear.augmentations import clear_edits
from tests.augmentations.cases import DELETE, SYMBOLS, array, one

delete_words, delete_spans = one(clear_edits.delete_words), one(clear_edits.delete_spans)

TEXT = array(range(4, 24))


def share_deleted(function, length, draws, **knobs):
    rng = np.random.default_rng(1)
    tokens = array([4] * length)
    return np.array([(function(tokens, rng, symbols=SYMBOLS, **knobs)[0] == DELETE).mean() for _ in range(draws)])


@pytest.mark.parametrize("length", [1, 2, 3, 11])
def test_word_deletion_deletes_the_ratio_on_average_however_short_the_text(length):
    shares = share_deleted(delete_words, length, 6000, ratio=0.7)
    assert abs(shares.mean() - 0.7) < 4 * 0.5 / length / len(shares) ** 0.5
    assert np.ptp(shares) * length <= 1.001


@pytest.mark.parametrize("length", [2, 7, 19])
def test_span_deletion_deletes_the_ratio_on_average_where_spans_are_under_a_token(length):
    shares = share_deleted(delete_spans, length, 6000, spans=5, ratio=0.05)
    assert abs(shares.mean() - 0.25) < 4 * 0.5 / length / len(shares) ** 0.5


def test_span_deletion_of_a_long_text_deletes_all_spans_whole():
    result, source = delete_spans(array([4] * 200), np.random.default_rng(1), symbols=SYMBOLS)
    is_deleted = result == DELETE
    edges = np.flatnonzero(np.diff(np.concatenate([[0], is_deleted, [0]])))
    assert is_deleted.sum() == 50
    assert len(result) == 200
    assert all((end - start) % 10 == 0 for start, end in edges.reshape(-1, 2))
    assert (source[is_deleted] == -1).all()


def test_word_deletion_deletes_every_position_equally_often():
    rng = np.random.default_rng(1)
    counts = sum((delete_words(TEXT, rng, symbols=SYMBOLS, ratio=0.3)[1] == -1).astype(int) for _ in range(3000))
    assert counts.sum() == 3000 * 6
    assert chisquare(counts).pvalue > 1e-3
