"""The objectives written out from the papers, term by term, in float64 loops; shares nothing with the fast path."""

import math
from collections.abc import Callable

import numpy as np


def cosine(u: np.ndarray, v: np.ndarray) -> float:
    product = sum(a * b for a, b in zip(u, v, strict=True))
    return float(product) / math.sqrt(sum(a * a for a in u) * sum(b * b for b in v))


def slopes(equation: Callable[[np.ndarray], float], values: np.ndarray, step: float = 1e-5) -> np.ndarray:
    """The gradient of an equation by central differences."""
    found = np.empty_like(values)
    for place in np.ndindex(values.shape):
        up, down = values.copy(), values.copy()
        up[place] += step
        down[place] -= step
        found[place] = (equation(up) - equation(down)) / (2 * step)
    return found


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


def cert_equation_2(
    q: np.ndarray, positives: np.ndarray, keys: np.ndarray, tau: float, excluded: np.ndarray
) -> tuple[float, int]:
    """One query at a time; one without other candidates than its positive is left out. Also the number of the others."""
    total, counted = 0.0, 0
    for i in range(len(q)):
        others = [k for k in range(len(keys)) if not excluded[i][k]]
        if not others:
            continue
        positive = math.exp(cosine(q[i], positives[i]) / tau)
        z = positive + sum(math.exp(cosine(q[i], keys[k]) / tau) for k in others)
        total, counted = total - math.log(positive / z), counted + 1
    return total, counted


def phi(u: np.ndarray, v: np.ndarray, tau: float) -> float:
    return math.exp(cosine(u, v) / tau)


def self_guided_base(c: np.ndarray, h: np.ndarray, tau: float) -> float:
    """Sum over m = 1 .. 2b of L_m^base, Self-Guided section 3.1: CLEAR's with the views {c_i} and {h_i}."""
    return clear_equation_2(np.concatenate([c, h]), tau)


def self_guided_opt1(c: np.ndarray, h: np.ndarray, tau: float) -> float:
    b = len(c)
    total = 0.0
    for i in range(b):
        z = sum(phi(c[i], c[j], tau) for j in range(b) if j != i) + sum(phi(c[i], h[j], tau) for j in range(b))
        total += -math.log(phi(c[i], h[i], tau) / z)
    return total


def self_guided_opt2(c: np.ndarray, h: np.ndarray, tau: float) -> float:
    """Also SimCSE eq. 1, and eq. 4 if ``h`` are the same texts under another dropout mask."""
    b = len(c)
    return sum(-math.log(phi(c[i], h[i], tau) / sum(phi(c[i], h[j], tau) for j in range(b))) for i in range(b))


def self_guided_opt3(c: np.ndarray, h: np.ndarray, tau: float) -> float:
    """h is (b, l + 1, d); the sum over i of the mean over k, which is b times the paper's L^opt without lambda."""
    b, layers = h.shape[:2]
    total = 0.0
    for i in range(b):
        for k in range(layers):
            others = sum(phi(c[i], h[m][n], tau) for m in range(b) if m != i for n in range(layers))
            total += -math.log(phi(c[i], h[i][k], tau) / (phi(c[i], h[i][k], tau) + others)) / layers
    return total


def simcse_equation_5(h: np.ndarray, positives: np.ndarray, negatives: np.ndarray, tau: float) -> float:
    """Sum over i of SimCSE eq. 5: the denominator has the positive and the hard negative of every j."""
    total = 0.0
    for i in range(len(h)):
        denominator = sum(phi(h[i], positives[j], tau) + phi(h[i], negatives[j], tau) for j in range(len(h)))
        total += -math.log(phi(h[i], positives[i], tau) / denominator)
    return total


# Objective -> its equation over c (b, d) and h (b, layers, d); only opt3 has several layers.
SELF_GUIDED: dict[str, Callable[[np.ndarray, np.ndarray, float], float]] = {
    "sg": lambda c, h, tau: self_guided_base(c, h[:, 0], tau),
    "opt1": lambda c, h, tau: self_guided_opt1(c, h[:, 0], tau),
    "opt2": lambda c, h, tau: self_guided_opt2(c, h[:, 0], tau),
    "opt3": self_guided_opt3,
}
