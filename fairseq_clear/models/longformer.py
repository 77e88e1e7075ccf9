"""Longformer's sliding-window attention in fairseq's encoder, with the weights of full attention."""

from typing import Any

import torch
from fairseq.modules import MultiheadAttention
from torch import Tensor, nn

from fairseq_clear.modules.window_attention import MaskCache, check_window, window_attention

__all__ = ["WindowSelfAttention", "exclude_from_compiling", "limit_attention"]


class WindowSelfAttention(nn.Module):
    """Replaces fairseq's self-attention and keeps its weights and their names, so that checkpoints of both are the same.

    Args:
        attention: the module to replace; its projections and its dropout are used.
        window: W, the tokens that each token attends to; even.
        masks: shared by the layers of an encoder.
    """

    def __init__(self, attention: MultiheadAttention, window: int, masks: MaskCache) -> None:
        super().__init__()
        # in this order, so that parameters stand as fairseq has them, which is how an optimizer's state finds them
        self.dropout_module = attention.dropout_module
        self.k_proj, self.v_proj = attention.k_proj, attention.v_proj
        self.q_proj, self.out_proj = attention.q_proj, attention.out_proj
        self.num_heads, self.head_dim = attention.num_heads, attention.head_dim
        self.window, self.masks = window, masks

    def forward(
        self, query: Tensor, key_padding_mask: Tensor | None = None, attn_mask: Tensor | None = None, **unused: Any
    ) -> tuple[Tensor, None]:
        """Self-attention, called as fairseq calls its own.

        Args:
            query: (T, B, D); also the key and the value.
            key_padding_mask: (B, T), True on padding, which is on the right; None for a batch without padding.
            attn_mask: must be None; the window is the mask.
            unused: further arguments of fairseq's attention.

        Returns:
            (T, B, D), and None in place of the attention weights.
        """
        assert attn_mask is None, "the window is the mask"
        states = query.transpose(0, 1)  # (B, T, D)
        heads = [
            project(states).unflatten(-1, (self.num_heads, self.head_dim))
            for project in (self.q_proj, self.k_proj, self.v_proj)
        ]  # each (B, T, H, d)
        # fairseq's dropout can be told to stay on in evaluation
        drops = self.training or self.dropout_module.apply_during_inference
        dropout = self.dropout_module.p if drops else 0.0
        attended = window_attention(*heads, self.window, key_padding_mask, dropout=dropout, masks=self.masks)
        return self.out_proj(attended.flatten(2)).transpose(0, 1), None

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Split the joint query, key and value matrix of old checkpoints such as roberta.base, as fairseq's attention does."""
        MultiheadAttention.upgrade_state_dict_named(self, state_dict, name)


def limit_attention(encoder: nn.Module, window: int) -> None:
    """Limit every self-attention of the encoder to a window; 0 leaves full attention.

    Raises:
        UserError: an odd or negative window.
    """
    if not check_window(window):
        return
    masks = MaskCache()
    for module in list(encoder.modules()):
        if isinstance(getattr(module, "self_attn", None), MultiheadAttention):
            module.self_attn = WindowSelfAttention(module.self_attn, window, masks)


def exclude_from_compiling() -> None:
    """Keep window attention out of ``torch.compile``: its blocks depend on the length, its masks are shared by layers.

    A function rather than a decorator: ``torch.compiler.disable`` imports the compiler, which takes a second.
    """
    if not hasattr(WindowSelfAttention.forward, "_torchdynamo_disable"):
        WindowSelfAttention.forward = torch.compiler.disable(WindowSelfAttention.forward)  # type: ignore[method-assign]
