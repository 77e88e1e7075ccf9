"""Log-sum-exp and statistics over each query's negatives, without storing the matrix of all queries by all keys."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_clear.objectives.exclusion import Exclusion

Result = tuple[Tensor, Tensor, dict[str, Tensor]]  # of an objective: loss sum, rows counted, statistics
BLOCK_ROWS, BLOCK = 512, 2**20  # queries and pairs of a block, which in float32 nearly fits into a core's cache


class Negatives(NamedTuple):
    """Results for each query over its negatives, the keys that are not excluded. Only ``log_sum`` has a gradient.

    Attributes:
        log_sum: (Q,) log sum_k exp(q k / tau); -inf for a query without negatives.
        hardest: (Q,) the largest cosine; -inf for a query without negatives.
        number: (Q,) number of negatives.
        cosine: sum of the cosines over all pairs.
        potential: sum of exp(-2 ||q - k||^2) over all pairs (Wang and Isola 2020, arXiv:2005.10242, section 4.1, t = 2).
    """

    log_sum: Tensor
    hardest: Tensor
    number: Tensor
    cosine: Tensor
    potential: Tensor


def contrast_with_negatives(queries: Tensor, keys: Tensor, temperature: float, excluded: Exclusion) -> Negatives:
    """Compute ``Negatives`` in blocks, so that memory holds only the queries, the keys and one block.

    The gradient of the queries is computed in the forward pass, because keys without gradient, such as a queue, may be
    overwritten before the backward pass. The gradient of the keys is computed from the cosines, which are recomputed if they
    do not fit in one block. Everything is float32, also under autocast. A query without negatives has gradient 0.

    Args:
        queries: (Q, D) float32 of unit length.
        keys: (K, D) float32 of unit length, with or without gradient.
        temperature: tau, from 1e-8 to 1e3.
    """
    return Negatives(*_Negatives.apply(queries, keys, temperature, excluded))


@torch.no_grad()
def count_candidates(excluded: Exclusion, queries: int, keys: int, device: torch.device) -> Tensor:
    """Count the pairs that are not excluded, in blocks: a float32 scalar."""
    number = torch.zeros((), device=device)
    for rows, columns in _blocks(queries, keys):
        number += (~excluded.block(rows, columns, device)).sum()
    return number


class _Negatives(torch.autograd.Function):
    """Autograd function whose passes run without autocast, which would compute matrix products in half precision."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, keys: Tensor, temperature: float, excluded: Exclusion) -> tuple[Tensor, ...]:
        with torch.autocast(queries.device.type, enabled=False):
            return _forward(ctx, queries, keys, temperature, excluded)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        with torch.autocast(gradients[0].device.type, enabled=False):
            return (*_backward(ctx, gradients[0].unsqueeze(1)), None, None)


def _forward(ctx: Any, queries: Tensor, keys: Tensor, temperature: float, excluded: Exclusion) -> tuple[Tensor, ...]:
    needs_queries, needs_keys = ctx.needs_input_grad[:2]
    number, hardest = queries.new_zeros(len(queries)), queries.new_full((len(queries),), -math.inf)
    total = queries.new_zeros(len(queries))  # sum of exp((q k - hardest) / tau), with the hardest so far
    mean = torch.zeros_like(queries) if needs_queries else None  # (Q, D) weighted sum of the keys
    cosine_sum, potential = queries.new_zeros(()), queries.new_zeros(())
    weights = None
    for rows, columns in _blocks(len(queries), len(keys)):
        cosine, is_excluded = _cosine(queries, keys, excluded, rows, columns)
        number[rows] += (~is_excluded).sum(dim=1)
        cosine_sum += cosine.masked_fill(is_excluded, 0.0).sum()
        cosine.masked_fill_(is_excluded, -math.inf)
        potential += torch.exp(4.0 * cosine - 4.0).sum()
        before = hardest[rows].clone()
        greatest = torch.maximum(before, cosine.amax(dim=1))
        finite = _finite(greatest)
        weights = cosine.sub_(finite.unsqueeze(1)).div_(temperature).exp_()
        shrink = torch.exp((before - finite) / temperature)
        hardest[rows] = greatest
        total[rows] = total[rows] * shrink + weights.sum(dim=1)
        if mean is not None:
            mean[rows] = mean[rows] * shrink.unsqueeze(1) + weights @ keys[columns]
    ctx.temperature, ctx.excluded = temperature, excluded
    is_one_block = len(queries) * len(keys) <= BLOCK and len(queries) <= BLOCK_ROWS
    divisor = total.clamp(min=1.0)  # the hardest negative adds 1, so this only changes queries without negatives
    log_sum = hardest / temperature + torch.log(total)
    log_sum = log_sum.masked_fill(number == 0, -math.inf)
    ctx.save_for_backward(
        mean / (divisor.unsqueeze(1) * temperature) if mean is not None else None,
        *((queries, keys, hardest, divisor) if needs_keys else (None, None, None, None)),
        weights if needs_keys and is_one_block else None,
    )
    ctx.mark_non_differentiable(hardest, number, cosine_sum, potential)
    return log_sum, hardest, number, cosine_sum, potential


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of queries and keys, from the gradient (Q, 1) of ``log_sum``."""
    mean, queries, keys, hardest, divisor, weights = ctx.saved_tensors
    of_queries = None if mean is None else gradient * mean
    if queries is None:
        return of_queries, None
    scaled = queries * (gradient / ctx.temperature) / divisor.unsqueeze(1)  # (Q, D)
    if weights is not None:
        return of_queries, weights.T @ scaled
    of_keys = torch.zeros_like(keys)
    finite = _finite(hardest).unsqueeze(1)
    for rows, columns in _blocks(len(queries), len(keys)):
        cosine, is_excluded = _cosine(queries, keys, ctx.excluded, rows, columns)
        cosine.masked_fill_(is_excluded, -math.inf)
        of_keys[columns].addmm_(cosine.sub_(finite[rows]).div_(ctx.temperature).exp_().T, scaled[rows])
    return of_queries, of_keys


def _cosine(queries: Tensor, keys: Tensor, excluded: Exclusion, rows: slice, columns: slice) -> tuple[Tensor, Tensor]:
    cosine = queries[rows] @ keys[columns].T  # (R, C)
    return cosine, excluded.block(rows, columns, queries.device)


def _finite(hardest: Tensor) -> Tensor:
    """Replace -inf of queries without negatives: -inf - -inf is NaN."""
    return hardest.clamp(min=-1e4)


def _blocks(queries: int, keys: int) -> Iterator[tuple[slice, slice]]:
    if not queries or not keys:
        return
    height = min(queries, BLOCK_ROWS)
    width = min(keys, max(1, BLOCK // height))
    for top in range(0, queries, height):
        for left in range(0, keys, width):
            yield slice(top, min(top + height, queries)), slice(left, min(left + width, keys))


def cross_entropy(positive: Tensor, negatives: Negatives, temperature: float) -> Result:
    """Sum over queries of log(phi+ + sum phi-) - log phi+, where phi = exp(cosine / tau), as a mean over the P positives.

    ``positive`` (Q, P) is the cosine of each query with its positives. A query without negatives has loss 0 and is not counted.
    """
    # softplus(-inf), without negatives, is 0 with gradient 0
    losses = F.softplus(negatives.log_sum.unsqueeze(1) - positive / temperature).mean(dim=1)  # (Q,)
    return losses.sum(), (negatives.number > 0).sum().float(), contrast_statistics(positive, negatives)


@torch.no_grad()
def contrast_statistics(positive: Tensor, negatives: Negatives) -> dict[str, Tensor]:
    """Compute statistics for logging: sums over queries that have a negative, and over their negatives.

    ``positive`` (Q, P) is the cosine of each query with its positives. Their statistics are means over P.

    Returns:
        Sums over queries: ``correct`` (1 if the positive is nearest), ``positive_cosine`` and ``alignment`` (squared distance
        of positive pairs, which for unit vectors is 2 - 2 cos: Wang and Isola 2020, arXiv:2005.10242, section 4.1, alpha = 2).
        Sums over pairs: ``negative_cosine``, ``negatives`` (their number) and ``uniformity`` (the logarithm of its mean is the
        metric of Wang and Isola).
    """
    counted = (negatives.number > 0).unsqueeze(1)  # (Q, 1)
    several = positive.shape[1]
    return {
        "correct": ((positive > negatives.hardest.unsqueeze(1)) & counted).sum().float() / several,
        "positive_cosine": (positive * counted).sum() / several,
        "negative_cosine": negatives.cosine,
        "negatives": negatives.number.sum(),
        "alignment": ((2.0 - 2.0 * positive) * counted).sum() / several,
        "uniformity": negatives.potential,
    }
