"""fairseq's stack of Transformer blocks, which asks the device at most once whether a batch has padding.

The host keeps the answer on the device and asks again before every block. On a GPU each question waits for all that was queued,
so that no block's kernels are launched while the one before it computes.
"""

from typing import Any

from fairseq.models.transformer import TransformerEncoder
from torch import Tensor, nn

__all__ = ["EncoderStack", "ask_once"]


class EncoderStack(TransformerEncoder):
    """Computes what TransformerEncoder does, with the same weights and blocks."""

    def forward_scriptable(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        return_all_hiddens: bool = False,
        token_embeddings: Tensor | None = None,
    ) -> dict[str, Any]:
        """Hidden states of tokens (B, T), each (T, B, D), in the dictionary that the host's callers read.

        Args:
            src_tokens: (B, T), padded on the right.
            src_lengths: (B,) tokens of each row; on the CPU they answer whether there is padding, elsewhere they are unused,
                as in the host.
            return_all_hiddens: with those of the embeddings and of every block as ``encoder_states``.
            token_embeddings: (B, T, D) in the place of the tokens' own.
        """
        is_padding = src_tokens.eq(self.padding_idx)
        mask = is_padding if _is_padded(is_padding, src_lengths) else None
        x, embedding = self.forward_embedding(src_tokens, token_embeddings)
        if mask is not None:
            x = x.masked_fill(mask.unsqueeze(-1), 0)
        x = x.transpose(0, 1)
        states, inner = [x], []
        for block in self.layers:
            result = block(x, encoder_padding_mask=mask)
            x, of_block = result if isinstance(result, tuple) else (result, None)
            states.append(x)
            inner.append(of_block)
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        return {
            "encoder_out": [x],
            "encoder_padding_mask": [is_padding],
            "encoder_embedding": [embedding],
            "encoder_states": states if return_all_hiddens else [],
            "fc_results": inner if return_all_hiddens else [],
            "src_tokens": [],
            "src_lengths": [],
        }


def _is_padded(is_padding: Tensor, lengths: Tensor | None) -> bool:
    if lengths is not None and lengths.device.type == "cpu":
        return min(lengths.tolist()) < is_padding.shape[1]
    return bool(is_padding.any())


def ask_once(encoder: nn.Module) -> None:
    """Let the stack of fairseq's RobertaEncoder be one; a stack that is wrapped (FSDP) stays as it is."""
    stack: Any = encoder.sentence_encoder
    if type(stack) is TransformerEncoder:
        stack.__class__ = EncoderStack  # the host builds it by name; weights, hooks and names stay where they are
