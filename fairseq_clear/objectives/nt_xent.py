"""NT-Xent, the contrastive loss of SimCLR that CLEAR (eq. 1 and 2), DeCLUTR and SimCSE share."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_clear.objectives.statistics import alignment_sum, uniformity_sums

__all__ = ["nt_xent"]


def nt_xent(
    queries: Tensor,
    keys: Tensor,
    positive: Tensor,
    *,
    temperature: float,
    excluded: Tensor | None = None,
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Sum over queries of -log exp(sim(q, k+)/tau) / sum_k exp(sim(q, k)/tau), sim being the cosine.

    CLEAR eq. 1 for each row and eq. 2 for the sum (arXiv:2012.15466); Chen et al. 2020 (arXiv:2002.05709), eq. 1. CLEAR
    states no temperature. For the symmetric form queries are the 2N augmented texts, keys the 2N of all workers, and a
    query's own row is ``excluded``. A query for which no key is left beside its positive has nothing to be told apart
    from: its loss is 0 and it is not counted.

    Args:
        queries: (Q, D), of any length and floating dtype; normalised here, in float32.
        keys: (K, D), the same.
        positive: (Q,) index into keys.
        temperature: tau > 0.
        excluded: (Q, K) bool, True where a key is no candidate for a query: the query itself, duplicates of its text.
            The positive stays a candidate whatever it says.

    Returns:
        The summed loss in nats (float32 scalar), the number of queries counted (float32 scalar), and sums for logging,
        without gradient: ``correct`` (the positive is the nearest), ``positive_cosine`` (both over queries counted),
        ``negative_cosine`` and ``negatives`` (over and number of query-negative pairs), ``alignment`` and ``uniformity``
        (see objectives.statistics).
    """
    # Unit norm and logits in float32 whatever the training precision: logits reach 1/tau, where fp16 steps are 1/64.
    queries = F.normalize(queries.float(), dim=-1)
    keys = F.normalize(keys.float(), dim=-1)
    cosine = queries @ keys.T  # (Q, K)
    is_positive = torch.zeros_like(cosine, dtype=torch.bool)
    is_positive.scatter_(1, positive.unsqueeze(1), True)
    is_negative = ~is_positive if excluded is None else ~(is_positive | excluded)
    counted = is_negative.any(dim=1)  # (Q,)

    logits = (cosine / temperature).masked_fill(~(is_positive | is_negative), -math.inf)
    # An uncounted query has its positive alone: logsumexp - logit is 0 there, with gradient 0, so no mask is needed.
    losses = torch.logsumexp(logits, dim=1) - logits.gather(1, positive.unsqueeze(1)).squeeze(1)  # (Q,)
    return losses.sum(), counted.sum().float(), _statistics(cosine.detach(), positive, is_negative, counted)


@torch.no_grad()
def _statistics(cosine: Tensor, positive: Tensor, is_negative: Tensor, counted: Tensor) -> dict[str, Tensor]:
    positive_cosine = cosine.gather(1, positive.unsqueeze(1)).squeeze(1)  # (Q,)
    # The extra column lets amax run where there are no keys at all.
    hardest = F.pad(cosine.masked_fill(~is_negative, -math.inf), (0, 1), value=-math.inf).amax(dim=1)  # (Q,)
    negative_cosine = cosine.masked_fill(~is_negative, 0.0)
    return {
        "correct": ((positive_cosine > hardest) & counted).sum().float(),
        "positive_cosine": (positive_cosine * counted).sum(),
        "negative_cosine": negative_cosine.sum(),
        "negatives": is_negative.sum().float(),
        "alignment": alignment_sum(positive_cosine, counted),
        "uniformity": uniformity_sums(cosine, is_negative),
    }
