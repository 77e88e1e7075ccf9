"""The statistics that objectives log with their loss: sums, which can be added over batches and workers."""

import torch
from torch import Tensor

from fairseq_clear.objectives.negatives import Negatives

__all__ = ["contrast_statistics"]


@torch.no_grad()
def contrast_statistics(positive: Tensor, negatives: Negatives) -> dict[str, Tensor]:
    """Sums over queries that have a negative, and over their negatives.

    Args:
        positive: (Q, P) cosine of each query with its positives; statistics of them are means over P.
        negatives: of the same queries.

    Returns:
        ``correct`` (the positive is the nearest), ``positive_cosine``, ``alignment`` (squared distance of positive pairs, on
        the sphere 2 - 2 cos: Wang and Isola 2020, arXiv:2005.10242, section 4.1, alpha = 2), all over queries;
        ``negative_cosine``, ``negatives`` (how many) and ``uniformity`` (whose mean's logarithm is their metric) over pairs.
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
