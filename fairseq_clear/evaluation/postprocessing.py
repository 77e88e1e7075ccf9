"""Transformations of finished sentence vectors, fitted on given sentences without labels.

Whitening is here; SBERT-WK, which needs the states of every layer, is the pooling ``wk``. BERT-flow (Li et al. 2020), the third
of the Self-Guided paper's baselines, is left out: it trains a normalising flow, a model of its own.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fairseq_clear.errors import UserError

__all__ = ["Whitening"]

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Whitening:
    """x -> (x - mu) W, after which the fitted vectors have mean 0 and covariance 1 (Su et al. 2021, arXiv:2103.15316).

    Attributes:
        mean: mu, (D,).
        kernel: W = U Lambda^(-1/2), (D, k), U Lambda U^T being the covariance and its largest k eigenvalues kept.
    """

    mean: npt.NDArray[np.float64]
    kernel: npt.NDArray[np.float64]

    @classmethod
    def fit(cls, vectors: npt.ArrayLike, dimensions: int | None = None) -> "Whitening":
        """Whitening of (N, D) vectors to ``dimensions`` (default: all with variance).

        Raises:
            UserError: fewer than two vectors, no variance, or more dimensions than there are with variance.
        """
        rows = np.asarray(vectors, np.float64)
        if len(rows) < 2:
            raise UserError(f"whitening: {len(rows)} sentences have no covariance; give more")
        mean = rows.mean(axis=0)
        variances, directions = np.linalg.eigh(np.cov(rows, rowvar=False).reshape(rows.shape[1], -1))
        # Smallest first; what is left of rounding is no direction to be blown up to variance 1.
        possible = int((variances > variances[-1] * 1e-9).sum()) if variances[-1] > 0 else 0
        wanted = possible if dimensions is None else dimensions
        if not 1 <= wanted <= possible:
            raise UserError(
                f"whitening to {wanted} dimensions: {len(rows)} sentences have variance in {possible}; give more sentences "
                "or fewer dimensions"
            )
        kept = slice(-1, -wanted - 1, -1)
        return cls(mean, directions[:, kept] / np.sqrt(variances[kept]))

    def __call__(self, vectors: npt.ArrayLike) -> Floats:
        """(N, D) to (N, k)."""
        whitened: Floats = ((np.asarray(vectors, np.float64) - self.mean) @ self.kernel).astype(np.float32)
        return whitened
