"""Alignment and uniformity (Wang and Isola 2020, arXiv:2005.10242), as sums that add up over batches and workers."""

import torch
from torch import Tensor

__all__ = ["alignment_sum", "uniformity_sums"]


def alignment_sum(positive_cosine: Tensor, counted: Tensor) -> Tensor:
    """Sum of the squared distances of positive pairs: their section 4.1 with alpha = 2; on the sphere 2 - 2 cos.

    Args:
        positive_cosine: (Q,) cosine of each query with its positive.
        counted: (Q,) bool, the queries to sum over. Divide by their number for the metric.
    """
    return ((2.0 - 2.0 * positive_cosine) * counted).sum()


def uniformity_sums(cosine: Tensor, is_negative: Tensor) -> Tensor:
    """Sum of exp(-2 ||q - k||^2) over query-negative pairs: the mean's logarithm is their section 4.1 with t = 2.

    Args:
        cosine: (Q, K).
        is_negative: (Q, K) bool. Divide by the number of pairs and take the logarithm for the metric.
    """
    potential = torch.exp(-4.0 + 4.0 * cosine)  # (Q, K)
    return (potential * is_negative).sum()
