"""Pooling of hidden states to one vector per text."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_clear.errors import UserError

NEGLIGIBLE = 1e-6  # a smaller novelty or alignment is taken as 0 with float32 rounding
WINDOW = 2  # neighbouring layers on each side
Pooling = Callable[[Sequence[Tensor], Tensor], Tensor]
"""Maps hidden states (B, T, D) of the embeddings and of each block, and ``is_token`` (B, T), to vectors (B, D)."""


def masked_mean(states: Tensor, is_token: Tensor) -> Tensor:
    """Mean (B, D) over tokens of states (B, T, D); ``is_token`` (B, T) is False on padding and True on special tokens.

    As in sentence-transformers and SimCSE. It has the dtype of ``states``, and is summed in float32 at least.
    """
    # A float16 sum overflows at 65,520 (3,276 tokens of value 20), and float16 has no odd integers above 2,048.
    dtype = torch.promote_types(states.dtype, torch.float32)
    total = (states * is_token.unsqueeze(-1)).sum(dim=1, dtype=dtype)  # (B, D)
    return (total / is_token.sum(dim=1, keepdim=True).clamp(min=1)).to(states.dtype)


def _cls(layers: Sequence[Tensor], is_token: Tensor) -> Tensor:
    first = is_token.int().argmax(dim=1)  # <s>, or the token behind a prompt that is not pooled
    return layers[-1][torch.arange(len(first), device=first.device), first]


def _max(layers: Sequence[Tensor], is_token: Tensor) -> Tensor:
    lowest = torch.finfo(layers[-1].dtype).min
    return layers[-1].masked_fill(~is_token.unsqueeze(-1), lowest).amax(dim=1)


def _mean_of_two(first: Tensor, second: Tensor, is_token: Tensor) -> Tensor:
    dtype = torch.promote_types(first.dtype, torch.float32)  # a float16 sum overflows, as in masked_mean
    return masked_mean((first.to(dtype) + second.to(dtype)) / 2, is_token).to(first.dtype)


def pooled_tokens(tokens: Tensor, padding: int, prompts: Sequence[Sequence[int]] = ()) -> Tensor:
    """Return which tokens (B, T) are pooled, bool: not the padding, nor ``<s>`` and one of ``prompts`` (ids) behind it."""
    is_token = tokens.ne(padding)
    for prompt in prompts:
        end = 1 + len(prompt)
        if 1 < end <= tokens.shape[1]:
            # (B,); a tensor of the ids would synchronise with the GPU
            has_it = torch.stack([tokens[:, 1 + place].eq(id_) for place, id_ in enumerate(prompt)]).all(dim=0)
            is_token[:, :end] &= ~has_it.unsqueeze(1)
    return is_token


def sbert_wk(layers: Sequence[Tensor], is_token: Tensor) -> Tensor:
    """SBERT-WK (Wang and Kuo 2020, arXiv:2002.06652), sections III-A and III-B: means (B, D) over layers, then over tokens.

    It is slow, because every token of every layer needs a QR decomposition.

    The vector of a token is a weighted mean over layers. The weight of a layer grows with its dissimilarity to its neighbours
    (inverse alignment) and with its component outside their span (novelty). The sentence vector is a mean over tokens,
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


POOLINGS: dict[str, Pooling] = {
    "cls": _cls,
    "mean": lambda layers, is_token: masked_mean(layers[-1], is_token),
    "max": _max,
    "first-last": lambda layers, is_token: _mean_of_two(layers[1], layers[-1], is_token),
    "last2": lambda layers, is_token: _mean_of_two(layers[-2], layers[-1], is_token),
    "wk": sbert_wk,
}


def parse_pooling(name: str, layers: int | None = None, *, flag: str = "--pooling") -> Pooling:
    """Return the pooling of this name: one of POOLINGS, or ``layer:N`` for the mean over tokens at block N (0: embeddings).

    ``layers`` is the number of blocks of the encoder, to check N against; None if it is not known yet.

    Raises:
        UserError: no such pooling, or no such layer.
    """
    if name in POOLINGS:
        return POOLINGS[name]
    kind, _, number = name.partition(":")
    if kind != "layer" or not number.isdecimal():
        raise UserError(f"{flag} {name}: no such pooling; valid are {', '.join(POOLINGS)} and layer:N")
    layer = int(number)
    if layers is not None and layer > layers:
        raise UserError(f"{flag} {name}: the encoder has layers 0 (embeddings) to {layers}")
    return lambda states, is_token: masked_mean(states[layer], is_token)


def needs_all_layers(name: str) -> bool:
    """Whether the pooling reads hidden states other than the last one."""
    return name not in {"cls", "mean", "max"}
