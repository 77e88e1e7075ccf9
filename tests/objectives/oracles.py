"""The objectives written out from the papers, term by term, in float64 loops; shares nothing with the fast path."""

import math

import numpy as np


def cosine(u: np.ndarray, v: np.ndarray) -> float:
    return float(sum(a * b for a, b in zip(u, v, strict=True))) / math.sqrt(
        sum(a * a for a in u) * sum(b * b for b in v)
    )


def clear_equation_1(z: np.ndarray, i: int, j: int, tau: float) -> float:
    """l(i, j) of CLEAR: the denominator runs over all k other than i."""
    denominator = sum(math.exp(cosine(z[i], z[k]) / tau) for k in range(len(z)) if k != i)
    return -math.log(math.exp(cosine(z[i], z[j]) / tau) / denominator)


def clear_equation_2(z: np.ndarray, tau: float) -> float:
    """L_CL over 2N rows of which i and i + N are the views of one sentence; m(i, j) is 1 for those pairs."""
    rows = len(z)
    half = rows // 2

    def m(i: int, j: int) -> int:
        return int(j == i + half or i == j + half)

    return sum(m(i, j) * clear_equation_1(z, i, j, tau) for i in range(rows) for j in range(rows) if m(i, j))


def nt_xent_with_exclusions(
    q: np.ndarray, k: np.ndarray, positive: list[int], tau: float, excluded: np.ndarray
) -> float:
    """One term a query; candidates are the positive and every key not excluded for that query."""
    total = 0.0
    for i in range(len(q)):
        candidates = [c for c in range(len(k)) if c == positive[i] or not excluded[i][c]]
        if candidates == [positive[i]]:
            continue
        denominator = sum(math.exp(cosine(q[i], k[c]) / tau) for c in candidates)
        total += -math.log(math.exp(cosine(q[i], k[positive[i]]) / tau) / denominator)
    return total
