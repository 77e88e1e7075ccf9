"""Pooling of hidden states to one vector per text."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fairseq_clear.errors import UserError
from fairseq_clear.modules.sbert_wk import sbert_wk

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
        ids = torch.tensor(prompt, device=tokens.device)
        end = 1 + len(prompt)
        if 1 < end <= tokens.shape[1]:
            has_it = tokens[:, 1:end].eq(ids).all(dim=1)  # (B,)
            is_token[:, :end] &= ~has_it.unsqueeze(1)
    return is_token


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
