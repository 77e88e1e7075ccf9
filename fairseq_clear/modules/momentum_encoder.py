"""MoCo's key encoder: a moving average of the query encoder, kept in float32 in every training precision."""

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_clear.modules.hidden_states import compile_blocks, hidden_states
from fairseq_clear.modules.pooling import needs_all_layers, parse_pooling, pooled_tokens


def keeping_float32(move: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Wrap a function for ``nn.Module._apply`` so that it changes the device but not the precision."""

    def apply(tensor: Tensor) -> Tensor:
        moved = move(tensor)
        return tensor.to(moved.device) if moved.dtype != tensor.dtype else moved

    return apply


class MomentumEncoder(nn.Module):
    """The key encoder f_k and its projection head: theta_k <- m theta_k + (1 - m) theta_q (CERT section 4; MoCo eq. 2).

    At m = 0.999 a step is smaller than float16 can represent. The weights are therefore kept in float32 and saved in the
    checkpoint; in half precision, a rounded copy encodes. The optimizer does not see them.

    Args:
        encoder: the query encoder, fairseq's TransformerEncoder, which is copied.
        head: its projection head, which is copied.
        momentum: m in [0, 1].
    """

    def __init__(self, encoder: nn.Module, head: nn.Module, momentum: float, pooling: str) -> None:
        super().__init__()
        self.encoder = copy.deepcopy(encoder).float().requires_grad_(False)
        self.head = copy.deepcopy(head).float().requires_grad_(False)
        self.momentum, self.pooling = momentum, pooling
        self.prompts: Sequence[Sequence[int]] = ()  # that are not pooled, as ids
        # In a list, so that checkpoints, .half() and .parameters() do not include it.
        self._rounded: list[nn.ModuleList] = []
        self._is_stale = True
        self._compiled: dict[str, Any] | None = None

    def compile_blocks(self, **options: Any) -> None:
        """Apply ``torch.compile`` to the blocks of both copies, the rounded one included; ``options`` are passed on."""
        self._compiled = options
        self._rounded.clear()
        compile_blocks(self.encoder, **options)

    @torch.no_grad()
    def start_from(self, encoder: nn.Module, head: nn.Module) -> None:
        """Copy the query encoder's weights."""
        for master, weight in self._pairs(encoder, head):
            master.copy_(weight)
        self._is_stale = True

    @torch.no_grad()
    def step(self, encoder: nn.Module, head: nn.Module) -> None:
        """Move one step towards the query encoder; called once per optimizer update."""
        for master, weight in self._pairs(encoder, head):
            master.lerp_(weight.float(), 1 - self.momentum)
        self._is_stale = True

    @torch.no_grad()
    def forward(self, tokens: Tensor, padding: int, dtype: torch.dtype, lengths: Sequence[int] = ()) -> Tensor:
        """Keys (B, D) of texts (B, T), padded on the right, computed in ``dtype``.

        In training, dropout is as in the query encoder. ``lengths`` are the rows', if they are known on the CPU.
        """
        encoder, head = self._in(dtype)
        states = hidden_states(encoder, tokens, needs_all_layers(self.pooling), lengths)
        return head(parse_pooling(self.pooling)(states, pooled_tokens(tokens, padding, self.prompts)))

    def _pairs(self, encoder: nn.Module, head: nn.Module) -> Iterable[tuple[Tensor, Tensor]]:
        yield from zip(self.encoder.parameters(), encoder.parameters(), strict=True)
        yield from zip(self.head.parameters(), head.parameters(), strict=True)

    def _in(self, dtype: torch.dtype) -> tuple[nn.Module, nn.Module]:
        if dtype == torch.float32:
            return self.encoder, self.head
        if not self._rounded:
            self._rounded.append(nn.ModuleList([copy.deepcopy(self.encoder), copy.deepcopy(self.head)]).to(dtype))
            self._is_stale = False
            if self._compiled is not None:
                compile_blocks(self._rounded[0][0], **self._compiled)
        encoder, head = self._rounded[0]
        if self._is_stale:
            for master, value in self._pairs(encoder, head):
                value.copy_(master)
            self._is_stale = False
        return encoder.train(self.training), head.train(self.training)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "MomentumEncoder":
        self._rounded.clear()
        return super()._apply(keeping_float32(fn), recurse)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._rounded.clear()
