"""Whitening against its definition; its flags are tested with those of flows."""

import numpy as np
import pytest

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.postprocessing import Whitening

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(200, 6)) @ RNG.normal(size=(6, 6)) + 5


def test_whitened_vectors_have_mean_0_and_covariance_1() -> None:
    whitened = Whitening.fit(ROWS)(ROWS)
    np.testing.assert_allclose(whitened.mean(axis=0), 0, atol=1e-4)
    np.testing.assert_allclose(np.cov(whitened, rowvar=False), np.eye(6), atol=1e-4)
    assert np.abs(np.cov(ROWS, rowvar=False) - np.eye(6)).max() > 1


def test_fewer_dimensions_are_those_of_most_variance() -> None:
    full, reduced = Whitening.fit(ROWS), Whitening.fit(ROWS, 2)
    np.testing.assert_allclose(reduced(ROWS), full(ROWS)[:, :2], atol=1e-5)
    centred = ROWS - ROWS.mean(axis=0)
    variance = np.linalg.svd(centred, compute_uv=False)[0] ** 2 / (len(ROWS) - 1)
    first = full.kernel[:, 0] * np.sqrt(variance)
    assert np.linalg.norm(first) == pytest.approx(1)
    assert (centred @ first).var(ddof=1) == pytest.approx(variance)


def test_directions_without_variance_are_left_out() -> None:
    flat = np.concatenate([ROWS, ROWS[:, :1] * 2, np.ones((200, 1))], axis=1)
    assert Whitening.fit(flat)(flat).shape == (200, 6)
    with pytest.raises(UserError, match="variance in 6"):
        Whitening.fit(flat, 7)
    for hopeless in (ROWS[:1], np.ones((5, 3))):
        with pytest.raises(UserError):
            Whitening.fit(hopeless)
