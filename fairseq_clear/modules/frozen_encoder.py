"""The frozen encoder of Self-Guided contrastive learning, BERT_F: a copy of the encoder from the start of training."""

import copy
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_clear.modules.hidden_states import hidden_states
from fairseq_clear.modules.pooling import POOLINGS, pooled_tokens

GUIDE_POOLINGS = ("max", "mean", "cls")


class FrozenEncoder(nn.Module):
    """A copy of an encoder that is not trained. It guides the encoder, or regularises its weights.

    It has the model's device and precision, so under ``--fp16`` it equals the rounded weights from which the optimizer's
    float32 masters start. Its weights are saved in the model's checkpoint.

    Args:
        encoder: fairseq's TransformerEncoder, which is copied.
        pooling: one of GUIDE_POOLINGS, p of section 3.1.
        layers: the layers k of h_{i,k}; 0 is the embeddings.
        dropout: whether dropout is active in training, as in the paper's public code (an oversight there).
    """

    def __init__(
        self, encoder: nn.Module, pooling: str = "max", layers: Sequence[int] = (0,), dropout: bool = False
    ) -> None:
        super().__init__()
        self.encoder = copy.deepcopy(encoder).requires_grad_(False)
        self.pooling, self.layers, self.dropout = pooling, tuple(layers), dropout
        self.prompts: Sequence[Sequence[int]] = ()  # that are not pooled, as ids
        self.train(False)

    def train(self, mode: bool = True) -> "FrozenEncoder":
        """Set the mode; without ``dropout`` the copy stays in evaluation mode."""
        return super().train(mode and self.dropout)

    @torch.no_grad()
    def start_from(self, encoder: nn.Module) -> None:
        """Copy the weights of ``encoder``; called when training starts, after any checkpoint was loaded."""
        for mine, theirs in zip(self.encoder.parameters(), encoder.parameters(), strict=True):
            mine.copy_(theirs)

    @torch.no_grad()
    def forward(self, tokens: Tensor, padding: int, lengths: Sequence[int] = ()) -> Tensor:
        """Pooled hidden states h_{i,k} = p(H_{i,k}) of section 3.1, (B, L, D), of texts (B, T), padded on the right.

        ``lengths`` are the rows', if they are known on the CPU.
        """
        states = hidden_states(self.encoder, tokens, lengths=lengths)
        is_token = pooled_tokens(tokens, padding, self.prompts)
        return torch.stack([POOLINGS[self.pooling]([states[layer]], is_token) for layer in self.layers], dim=1)


class _SquaredDistance(torch.autograd.Function):
    """sum ||p - q||^2. Autograd would store the differences, which are as large as the encoder; this recomputes them."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        half = len(tensors) // 2
        return torch.stack([_squared(p, q) for p, q in zip(tensors[:half], tensors[half:], strict=True)]).sum()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors
        half = len(tensors) // 2
        pairs = zip(tensors[:half], tensors[half:], strict=True)
        # in place: saves one pass over all weights at every update
        factor = 2 * gradients[0]
        return *(torch.sub(p.float(), q.float()).mul_(factor).to(p.dtype) for p, q in pairs), *[None] * half


def _squared(p: Tensor, q: Tensor) -> Tensor:
    """||p - q||^2, computed by rows. cdist does not materialise the difference; of the ways measured it is the fastest."""
    mine, theirs = (x.float().reshape(-1, 1, x.shape[-1]) for x in (p, q))
    return torch.cdist(mine, theirs, compute_mode="donot_use_mm_for_euclid_dist").square().sum()


def squared_distance(parameters: Iterable[Tensor], references: Iterable[Tensor]) -> Tensor:
    """L^reg = ||BERT_F - BERT_T||_2^2 (section 3.1), summed in float32 over all parameters that have a gradient.

    There is a reference of the same shape, without gradient, for each parameter.
    """
    pairs = [(p, q) for p, q in zip(parameters, references, strict=True) if p.requires_grad]
    if not pairs:
        return torch.zeros(())
    return _SquaredDistance.apply(*(p for p, _ in pairs), *(q for _, q in pairs))
