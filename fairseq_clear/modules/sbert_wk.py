"""SBERT-WK (Wang and Kuo 2020, arXiv:2002.06652): sentence vectors as weighted means over layers, then over tokens."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

NEGLIGIBLE = 1e-6  # a smaller novelty or alignment is taken as 0 with float32 rounding
WINDOW = 2  # neighbouring layers on each side


def sbert_wk(layers: Sequence[Tensor], is_token: Tensor) -> Tensor:
    """Compute sentence vectors (B, D), sections III-A and III-B of the paper, without training and parameters.

    It is slow, because every token of every layer needs a QR decomposition.

    The vector of a token is a weighted mean over layers. The weight of a layer grows with its dissimilarity to its neighbours
    (inverse alignment) and with the part of it that they do not span (novelty). The sentence vector is a mean over tokens,
    weighted by the variance of the cosine between adjacent layers of the token, since tokens that change from layer to layer
    carry more information. If the layers of a token have no novelty, for example because they are identical, its vector is the
    plain mean of its layers.

    Args:
        layers: L + 1 hidden states (B, T, D), embeddings, then blocks; used from layer L / 3 on, as by the authors (4 of 12).
        is_token: (B, T) bool, False on padding; special tokens count, as in the other poolings.
    """
    stack = torch.stack([layer.float() for layer in layers[len(layers) // 3 :]], dim=2)  # (B, T, K, D)
    tokens = stack[is_token]  # (N, K, D)
    vectors = (_layer_weights(tokens).unsqueeze(-1) * tokens).sum(dim=1)  # (N, D)
    weights = stack.new_zeros(is_token.shape)  # (B, T)
    weights[is_token] = _variation(tokens)
    # If no token of a text varies (for example, with only one layer), the tokens are averaged.
    is_flat = weights.sum(dim=1, keepdim=True) <= NEGLIGIBLE**2
    weights = torch.where(is_flat, is_token.to(weights), weights)
    weights = weights / weights.sum(dim=1, keepdim=True).clamp(min=1e-12)
    unified = stack.new_zeros((*is_token.shape, stack.shape[-1]))  # (B, T, D)
    unified[is_token] = vectors
    return (weights.unsqueeze(-1) * unified).sum(dim=1).to(layers[-1].dtype)


def _layer_weights(tokens: Tensor) -> Tensor:
    """Weights (N, K) of the layers of each token (N, K, D); they sum to 1."""
    depth = tokens.shape[1]
    if depth == 1:
        return tokens.new_ones(tokens.shape[:2])
    alignment, novelty = [], []
    for k in range(depth):
        near = [i for i in range(max(0, k - WINDOW), min(depth, k + WINDOW + 1)) if i != k]
        columns = tokens[:, [*near, k]].transpose(1, 2)  # (N, D, n + 1), the layer itself last
        r = torch.linalg.qr(columns, mode="r").R  # (N, n + 1, n + 1)
        others, own = F.normalize(r[:, :-1, :-1], dim=1), r[:, :, -1]  # (N, n, n), (N, n + 1)
        shared = F.normalize(own[:, :-1], dim=1)  # the part that the neighbours span
        cosine = (others.mean(dim=2) * shared).sum(dim=1)  # (N,)
        alignment.append(1 / (cosine.clamp(min=NEGLIGIBLE) * 2 * (len(near) + 1)))
        novelty.append(own[:, -1].abs() / own.norm(dim=1).clamp(min=1e-12))
    new = torch.stack(novelty, dim=1)  # (N, K)
    has_news = new.amax(dim=1, keepdim=True) > NEGLIGIBLE
    weights = _sum_to_1(torch.stack(alignment, dim=1)) + _sum_to_1(new.masked_fill(~has_news, 1.0))
    return _sum_to_1(weights.masked_fill(~has_news, 1.0))


def _variation(tokens: Tensor) -> Tensor:
    """Variance (N,) over layers of the cosine between a layer and the next."""
    adjacent = F.cosine_similarity(tokens[:, 1:], tokens[:, :-1], dim=-1)  # (N, K - 1)
    if adjacent.shape[1] == 0:
        return tokens.new_zeros(tokens.shape[0])
    return adjacent.var(dim=1, unbiased=False)


def _sum_to_1(weights: Tensor) -> Tensor:
    return weights / weights.sum(dim=1, keepdim=True)
