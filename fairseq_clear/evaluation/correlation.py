"""Pearson's and Spearman's correlation, in float64, with an error where they are not defined."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from fairseq_clear.errors import UserError

__all__ = ["CORRELATIONS", "UndefinedCorrelation", "average_ranks", "pearson", "spearman"]

Vector = npt.ArrayLike
Doubles = npt.NDArray[np.float64]


class UndefinedCorrelation(UserError):
    """Fewer than two pairs, or one side is constant; a caller that can go on without the number catches this."""


def pearson(x: Vector, y: Vector, *, where: str = "correlation") -> float:
    """Pearson's product-moment correlation, -1 to 1.

    Args:
        x: (N,) numbers.
        y: (N,) numbers.
        where: named first in the message, such as the task and the file.

    Raises:
        UndefinedCorrelation: fewer than two pairs, or one side is constant.
        UserError: unequal lengths, NaN or infinity.
    """
    first, second = _checked(x, y, where)
    # by the largest deviation, so that the squares of very small or very large numbers neither vanish nor overflow
    first, second = (_centred(side) for side in (first, second))
    share = float(first @ second) / float(np.sqrt((first @ first) * (second @ second)))
    return max(-1.0, min(1.0, share))


def spearman(x: Vector, y: Vector, *, where: str = "correlation") -> float:
    """Spearman's rank correlation, -1 to 1: Pearson's of the ranks, ties having the mean of their ranks.

    Args and errors as ``pearson``.
    """
    first, second = _checked(x, y, where)
    return pearson(average_ranks(first), average_ranks(second), where=where)


def average_ranks(values: Vector) -> Doubles:
    """Ranks (N,) from 1; equal values share the mean of the ranks that they take up."""
    array = np.asarray(values, np.float64)
    _, inverse, counts = np.unique(array, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)  # rank of the last of each group of equals
    ranks: Doubles = (last - (counts - 1) / 2)[inverse]
    return ranks


def _centred(values: Doubles) -> Doubles:
    centred = values / np.abs(values).max()
    centred = centred - centred.mean()
    scaled: Doubles = centred / np.abs(centred).max()
    return scaled


def _checked(x: Vector, y: Vector, where: str) -> tuple[Doubles, Doubles]:
    first, second = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if first.ndim != 1 or first.shape != second.shape:
        raise UserError(f"{where}: {first.shape} numbers against {second.shape}; a correlation needs one each a pair")
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        raise UserError(f"{where}: a number is NaN or infinite; look at the vectors that it comes from")
    if len(first) < 2:
        raise UndefinedCorrelation(f"{where}: a correlation of {len(first)} pairs is not defined; give two or more")
    for side, values in (("first", first), ("second", second)):
        if (values == values[0]).all():
            raise UndefinedCorrelation(
                f"{where}: all {len(values)} {side} numbers are {values[0]:g}: a correlation is not defined"
            )
    return first, second


CORRELATIONS: dict[str, Callable[..., float]] = {"spearman": spearman, "pearson": pearson}
