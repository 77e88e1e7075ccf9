"""Vectors of unit length, with a gradient that stays bounded."""

import torch
from torch import Tensor

SHORTEST = 1e-8  # as in torch's cosine_similarity


def unit_vectors(vectors: Tensor) -> Tensor:
    """Divide vectors (..., D), of any floating dtype, by their length: (..., D) float32.

    A vector shorter than 1e-8 has no direction: it becomes the zero vector and its gradient is 0.
    ``torch.nn.functional.normalize`` multiplies the gradient of such a vector by up to 1e12.
    """
    vectors = vectors.float()  # logits reach 1 / tau, such as 20, where float16 values are 1/64 apart
    length = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)  # (..., 1)
    is_short = length < SHORTEST
    return vectors.masked_fill(is_short, 0.0) / length.masked_fill(is_short, 1.0)
