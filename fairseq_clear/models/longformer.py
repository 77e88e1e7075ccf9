"""Longformer's attention in fairseq's encoder, layer by layer, with the weights that full attention has."""

from typing import Any

import torch
from fairseq.modules import MultiheadAttention
from torch import Tensor, nn

from fairseq_clear.modules.window_attention import MaskCache, check_window, window_attention

__all__ = ["WindowSelfAttention", "limit_attention"]


class WindowSelfAttention(nn.Module):
    """Stands in for fairseq's self-attention and keeps its weights, by their names: a checkpoint of one is one of the other.

    Args:
        attention: fairseq's; its projections and its dropout are taken over.
        window: W tokens in all, even.
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

    @torch.compiler.disable  # --compile: blocks of a length's own number, and masks kept from layer to layer
    def forward(
        self, query: Tensor, key_padding_mask: Tensor | None = None, attn_mask: Tensor | None = None, **unused: Any
    ) -> tuple[Tensor, None]:
        """Attention of (T, B, D) to itself, as the host calls it, without its weights.

        Args:
            query: (T, B, D); the host gives it as key and value too.
            key_padding_mask: (B, T), True on padding, on the right; None for a batch without.
            attn_mask: none; the window is the mask.
            unused: what else the host gives.
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
        """As fairseq's: old checkpoints, roberta.base's among them, have one matrix for query, key and value."""
        MultiheadAttention.upgrade_state_dict_named(self, state_dict, name)


def limit_attention(encoder: nn.Module, window: int) -> None:
    """Let every self-attention in the encoder reach over a window; 0 leaves them as they are.

    Raises:
        UserError: an odd or negative window.
    """
    if not check_window(window):
        return
    masks = MaskCache()
    for module in list(encoder.modules()):
        if isinstance(getattr(module, "self_attn", None), MultiheadAttention):
            module.self_attn = WindowSelfAttention(module.self_attn, window, masks)
