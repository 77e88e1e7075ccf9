"""The hidden states of a Transformer encoder, batch first, whichever copy of it is asked."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["hidden_states"]


def hidden_states(
    encoder: nn.Module, tokens: Tensor, every_layer: bool = True, lengths: Sequence[int] = ()
) -> list[Tensor]:
    """Hidden states (B, T, D) of the embeddings (layer 0) and of each block, or of the last block alone.

    Args:
        encoder: as fairseq's TransformerEncoder.
        tokens: (B, T), padded on the right.
        every_layer: False for the last alone.
        lengths: number of tokens of each row; with them ``EncoderStack`` does not ask the GPU whether there is padding.
    """
    known = {"src_lengths": torch.tensor(lengths, device="cpu")} if len(lengths) else {}
    output: dict[str, Any] = encoder(tokens, return_all_hiddens=every_layer, **known)
    last: Tensor = output["encoder_out"][0].transpose(0, 1)
    if not every_layer:
        return [last]
    # The last one again: with --encoder-normalize-before it is normalised after the stack.
    return [state.transpose(0, 1) for state in output["encoder_states"][:-1]] + [last]
