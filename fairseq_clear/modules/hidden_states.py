"""Hidden states and compilation of fairseq's Transformer encoder."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


def hidden_states(
    encoder: nn.Module, tokens: Tensor, every_layer: bool = True, lengths: Sequence[int] = ()
) -> list[Tensor]:
    """Hidden states (B, T, D) of the embeddings (layer 0) and of each block, or only of the last block.

    Args:
        encoder: fairseq's TransformerEncoder, or a module with its interface.
        tokens: (B, T), padded on the right.
        every_layer: False for only the last block.
        lengths: number of tokens of each row; with them ``EncoderStack`` does not read from the GPU whether there is padding.
    """
    known = {"src_lengths": torch.tensor(lengths, device="cpu")} if len(lengths) else {}
    output: dict[str, Any] = encoder(tokens, return_all_hiddens=every_layer, **known)
    last: Tensor = output["encoder_out"][0].transpose(0, 1)
    if not every_layer:
        return [last]
    # encoder_out replaces the last state, because with --encoder-normalize-before it is normalised after the stack.
    return [state.transpose(0, 1) for state in output["encoder_states"][:-1]] + [last]


@contextmanager
def attention_for(is_padded: bool) -> Iterator[None]:
    """Inside the block, PyTorch does not compute the attention of a padded batch with cuDNN.

    cuDNN, which PyTorch prefers on an H200, plans every new shape: an update of CLEAR took 0.85 s, and 0.22 s if its shapes had
    occurred before. Batches with padding have texts of different lengths, so almost every batch has a new shape.
    """
    was_enabled = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(was_enabled and not is_padded)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(was_enabled)


def compile_blocks(encoder: nn.Module, **options: Any) -> None:
    """Compile every block on its first call, for batches of any shape; weights and their names do not change.

    Blocks are compiled rather than the encoder, because fairseq's loop around them reads values (whether there is padding,
    which layers are dropped), which would break the graph. Copies and pickles of a block are not compiled. The options are for
    ``torch.compile`` (tests: ``backend``, ``fullgraph``).
    """
    blocks: Any = encoder.layers
    # children(), because iterating over a LayerDropModuleList leaves out blocks and draws random numbers
    for block in blocks.children():
        block.compile(dynamic=True, **options)
