"""Changes to fairseq's RobertaEncoder: one padding check per batch, fused GELU, window attention, segments, another epsilon.

The weights keep fairseq's names and order, so checkpoints and optimizer states are interchangeable.
"""

from typing import Any

import torch
from fairseq.models.transformer import TransformerEncoder
from fairseq.modules import MultiheadAttention
from fairseq.modules.gelu import gelu
from fairseq.modules.learned_positional_embedding import LearnedPositionalEmbedding
from torch import Tensor, nn
from torch.nn import functional

from fairseq_clear.errors import UserError
from fairseq_clear.modules.hidden_states import attention_for
from fairseq_clear.modules.window_attention import MaskCache, window_attention

FAIRSEQ_EPS = 1e-5


def adapt_encoder(encoder: Any, *, eps: float, segments: int, window: int) -> None:
    """Change a RobertaEncoder in place.

    fairseq's GELU converts its input to float32 and the result back, in kernels of their own, and keeps the float32 copy for
    the backward pass. torch's GELU also computes in float32, but in one kernel, and keeps the input.

    Args:
        eps: epsilon of every LayerNorm, including the MLM head's.
        segments: number of segment embeddings; 1 for none.
        window: number of tokens that each token attends to, even; 0 for full attention.

    Raises:
        UserError: the window is odd or negative.
    """
    if window < 0 or window % 2:
        raise UserError(f"--attention-window {window}: give an even number of tokens, or 0 for full attention")
    stack = encoder.sentence_encoder
    for module in encoder.modules():
        if isinstance(module, nn.LayerNorm) or type(module).__name__ == "FusedLayerNorm":
            module.eps = eps
        if getattr(module, "activation_fn", None) is gelu:
            module.activation_fn = functional.gelu
    if segments > 1:
        stack.embed_positions = SegmentedPositions(stack.embed_positions, segments, encoder.dictionary.eos())
    if window:
        masks = MaskCache()
        for module in list(encoder.modules()):
            if isinstance(getattr(module, "self_attn", None), MultiheadAttention):
                module.self_attn = WindowSelfAttention(module.self_attn, window, masks)
    if type(stack) is TransformerEncoder:  # a wrapped stack (FSDP) is not changed
        stack.__class__ = EncoderStack  # fairseq builds it by name; weights, hooks and names stay in place


class EncoderStack(TransformerEncoder):
    """fairseq's stack of Transformer blocks, with the same weights and results, but one padding check per batch.

    fairseq's stack keeps the result of the check on the GPU and reads it before every block. Each read synchronises with the
    GPU, so the kernels of the next block cannot be queued while a block computes.
    """

    def forward_scriptable(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        return_all_hiddens: bool = False,
        token_embeddings: Tensor | None = None,
    ) -> dict[str, Any]:
        """Hidden states of tokens (B, T), each (T, B, D), in the dictionary that fairseq's callers read.

        Args:
            src_tokens: (B, T), padded on the right.
            src_lengths: (B,) number of tokens in each row. If they are on the CPU, they tell whether there is padding; on a
                GPU they are not read, as in fairseq.
            return_all_hiddens: also return the states of the embeddings and of every block, as ``encoder_states``.
            token_embeddings: (B, T, D), used in place of the token embeddings.
        """
        is_padding = src_tokens.eq(self.padding_idx)
        mask = is_padding if _is_padded(is_padding, src_lengths) else None
        x, embedding = self.forward_embedding(src_tokens, token_embeddings)
        if mask is not None:
            x = x.masked_fill(mask.unsqueeze(-1), 0)
        x = x.transpose(0, 1)
        states, inner = [x] * return_all_hiddens, []
        with attention_for(is_padded=mask is not None):
            for block in self.layers:
                result = block(x, encoder_padding_mask=mask)
                x, of_block = result if isinstance(result, tuple) else (result, None)
                if return_all_hiddens:  # otherwise each block's output could not be freed
                    states.append(x)
                    inner.append(of_block)
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        return {
            "encoder_out": [x],
            "encoder_padding_mask": [is_padding],
            "encoder_embedding": [embedding],
            "encoder_states": states,
            "fc_results": inner,
            "src_tokens": [],
            "src_lengths": [],
        }


def _is_padded(is_padding: Tensor, lengths: Tensor | None) -> bool:
    if lengths is not None and lengths.device.type == "cpu":
        return min(lengths.tolist()) < is_padding.shape[1]
    return bool(is_padding.any())


class WindowSelfAttention(nn.Module):
    """Longformer's sliding-window self-attention with the weights of fairseq's full attention.

    Args:
        attention: the module to replace, whose projections and dropout are used.
        window: W, the number of tokens that each token attends to; even.
        masks: cache of masks, shared by the layers of an encoder.
    """

    def __init__(self, attention: MultiheadAttention, window: int, masks: MaskCache) -> None:
        super().__init__()
        # in fairseq's order of parameters, on which the optimizer's state depends
        self.dropout_module = attention.dropout_module
        self.k_proj, self.v_proj = attention.k_proj, attention.v_proj
        self.q_proj, self.out_proj = attention.q_proj, attention.out_proj
        self.num_heads, self.head_dim = attention.num_heads, attention.head_dim
        self.window, self.masks = window, masks

    def forward(
        self, query: Tensor, key_padding_mask: Tensor | None = None, attn_mask: Tensor | None = None, **unused: Any
    ) -> tuple[Tensor, None]:
        """Self-attention with the signature of fairseq's own: (T, B, D) to (T, B, D), and None in place of its weights.

        ``key_padding_mask`` (B, T) is True on padding, which is on the right; None for a batch without padding.
        """
        assert attn_mask is None, "the window is the mask"
        states = query.transpose(0, 1)  # (B, T, D)
        q, k, v = (
            project(states).unflatten(-1, (self.num_heads, self.head_dim))
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )  # each (B, T, H, d)
        dropout = self.dropout_module.p if self.training else 0.0
        attended = window_attention(q, k, v, self.window, key_padding_mask, dropout=dropout, masks=self.masks)
        return self.out_proj(attended.flatten(2)).transpose(0, 1), None

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Split the joint query, key and value matrix of old checkpoints such as roberta.base, as fairseq's attention does."""
        MultiheadAttention.upgrade_state_dict_named(self, state_dict, name)


def exclude_from_compiling() -> None:
    """Exclude window attention from ``torch.compile``: its block sizes depend on the length, and layers share masks.

    A function rather than a decorator: ``torch.compiler.disable`` imports the compiler, which takes a second.
    """
    if not hasattr(WindowSelfAttention.forward, "_torchdynamo_disable"):
        WindowSelfAttention.forward = torch.compiler.disable(WindowSelfAttention.forward)  # type: ignore[method-assign]


class SegmentedPositions(LearnedPositionalEmbedding):
    """Position embeddings plus the embedding of each token's segment.

    It replaces fairseq's ``embed_positions`` and uses their weight, whose name does not change. ``eos`` ends a segment.
    """

    def __init__(self, positions: LearnedPositionalEmbedding, segments: int, eos: int) -> None:
        super().__init__(*positions.weight.shape, padding_idx=positions.padding_idx)
        self.weight = positions.weight
        self.eos = eos
        self.segments = nn.Embedding(segments, positions.weight.shape[1])
        nn.init.zeros_(self.segments.weight)  # untrained segments change nothing

    def forward(self, tokens: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """(B, T) tokens to (B, T, D)."""
        embedded: Tensor = super().forward(tokens, *args, **kwargs)
        is_end = tokens.eq(self.eos).long()
        # BERT's token types: 0 up to and including the first </s> of a row, 1 after it
        types = (is_end.cumsum(dim=1) - is_end).clamp(max=self.segments.num_embeddings - 1)  # (B, T)
        return embedded + self.segments(types)
