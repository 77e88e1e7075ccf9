"""Whitening against its definition."""

import numpy as np
import pytest

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.postprocessing import fit_whitening

RNG = np.random.default_rng(0)
VECTORS = (RNG.normal(size=(50, 4)) @ RNG.normal(size=(4, 4)) + 3).astype(np.float32)


def test_the_fitted_vectors_become_white():
    white = fit_whitening(VECTORS)(VECTORS)
    assert white.dtype == np.float32
    np.testing.assert_allclose(white.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(white.T @ white / 50, np.eye(4), atol=1e-4)
    assert abs(VECTORS.T @ VECTORS / 50 - np.eye(4)).max() > 1


def test_it_is_the_papers_algorithm():
    mean = VECTORS.mean(axis=0)
    u, variances, _ = np.linalg.svd(np.cov(VECTORS.T, bias=True))
    expected = (VECTORS[:5] + 1 - mean) @ u @ np.diag(1 / np.sqrt(variances))
    for dimension in (None, 2):
        white = fit_whitening(VECTORS, dimension)(VECTORS[:5] + 1)
        # the sign of a direction is free
        np.testing.assert_allclose(abs(white), abs(expected[:, :dimension]), atol=1e-3)


def test_mistakes():
    with pytest.raises(UserError, match="the vectors of 3 sentences vary in 2 directions, not in 4"):
        fit_whitening(VECTORS[:3])
    assert fit_whitening(VECTORS[:3], 2).weights.shape == (4, 2)
    with pytest.raises(UserError, match="vary in 0 directions"):
        fit_whitening(np.ones((3, 2), np.float32))
    for dimension in (0, 5):
        with pytest.raises(UserError, match="--whitening-dimension .: must be 1 to 4"):
            fit_whitening(VECTORS, dimension)
    with pytest.raises(UserError, match="fitted on vectors of 4 numbers, given 3"):
        fit_whitening(VECTORS)(VECTORS[:, :3])
