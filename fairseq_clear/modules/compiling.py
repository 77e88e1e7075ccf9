"""``torch.compile`` for the blocks of an encoder, one at a time, so that all blocks share one compilation."""

from typing import Any

from torch import nn

__all__ = ["compile_blocks"]


def compile_blocks(encoder: nn.Module, **options: Any) -> None:
    """Compile every block on its first call, for batches of any shape; weights and their names stay as they are.

    Blocks rather than the encoder: fairseq's loop around them reads values (whether there is padding, which layers are
    dropped), which would break the graph. Copies and pickles of a block are not compiled.

    Args:
        encoder: fairseq's TransformerEncoder.
        options: for ``torch.compile`` (tests: ``backend``, ``fullgraph``).
    """
    blocks: Any = encoder.layers
    # by children(): iterating a LayerDropModuleList leaves some out, and draws random numbers
    for block in blocks.children():
        block.compile(dynamic=True, **options)
