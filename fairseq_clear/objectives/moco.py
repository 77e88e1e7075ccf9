"""MoCo's InfoNCE, as CERT uses it: one positive key among those of a queue."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_clear.objectives.statistics import alignment_sum, uniformity_sums

__all__ = ["info_nce"]


def info_nce(
    queries: Tensor,
    positives: Tensor,
    queue: Tensor,
    *,
    temperature: float,
    excluded: Tensor | None = None,
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Sum over queries of -log exp(q k+ / tau) / (exp(q k+ / tau) + sum_i exp(q k_i / tau)).

    CERT (Fang and Xie 2020, arXiv:2005.12766), eq. 2; He et al. 2019 (arXiv:1911.05722), eq. 1: the positive is among the
    candidates. A query for which the queue holds nothing yet has loss 0 and is not counted.

    Args:
        queries: (Q, D), of any length and floating dtype; normalised here, in float32, as the paper's vectors are.
        positives: (Q, D) the key of each query; the same.
        queue: (K, D) float32 of unit length, without gradient.
        temperature: tau > 0.
        excluded: (Q, K) bool, True where a key of the queue is no candidate: never written, or of the query's own text.

    Returns:
        The summed loss in nats, the number of queries counted, and sums for logging, as nt_xent's.
    """
    queries = F.normalize(queries.float(), dim=-1)
    positive = (queries * F.normalize(positives.float(), dim=-1)).sum(dim=1)  # (Q,)
    everything = torch.ones(queries.shape[0], queue.shape[0], dtype=torch.bool, device=queries.device)
    is_negative = everything if excluded is None else ~excluded  # (Q, K)
    counted = is_negative.any(dim=1)  # (Q,)
    negatives, cosine = _QueueLogSumExp.apply(queries, queue, is_negative, temperature)  # (Q,), (Q, K)
    losses = F.softplus(negatives - positive / temperature)  # (Q,); softplus(-inf) is 0
    return losses.sum(), counted.sum().float(), _statistics(cosine, positive.detach(), is_negative, counted)


class _QueueLogSumExp(torch.autograd.Function):
    """log sum_i exp(q k_i / tau). Its gradient, (Q, D), is made at once: by the time of the backward pass the queue has
    changed, and neither it nor the (Q, K) scores need be kept until then.
    """

    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, queue: Tensor, is_negative: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        cosine = queries @ queue.T  # (Q, K)
        logits = (cosine / temperature).masked_fill(~is_negative, -math.inf)
        total = torch.logsumexp(logits, dim=1)  # (Q,), -inf where there is nothing
        weights = torch.exp(logits - total.clamp(min=torch.finfo(total.dtype).min).unsqueeze(1))
        ctx.save_for_backward(weights @ queue / temperature)  # (Q, D)
        ctx.mark_non_differentiable(cosine)
        return total, cosine

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (derivative,) = ctx.saved_tensors
        return gradients[0].unsqueeze(1) * derivative, None, None, None


@torch.no_grad()
def _statistics(cosine: Tensor, positive: Tensor, is_negative: Tensor, counted: Tensor) -> dict[str, Tensor]:
    hardest = F.pad(cosine.masked_fill(~is_negative, -math.inf), (0, 1), value=-math.inf).amax(dim=1)  # (Q,)
    return {
        "correct": ((positive > hardest) & counted).sum().float(),
        "positive_cosine": (positive * counted).sum(),
        "negative_cosine": cosine.masked_fill(~is_negative, 0.0).sum(),
        "negatives": is_negative.sum().float(),
        "alignment": alignment_sum(positive, counted),
        "uniformity": uniformity_sums(cosine, is_negative),
    }
