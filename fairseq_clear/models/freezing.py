"""Keeping the lowest layers of an encoder as they are."""

from typing import Any

from fairseq_clear.errors import UserError

__all__ = ["freeze_lowest"]


def freeze_lowest(model: Any, layers: int) -> None:
    """Freeze the lowest ``layers`` layers: 1 is layer 0, the embeddings; 2 also the first block, and so on.

    Args:
        model: a ClearRobertaModel.
        layers: 0 for none.

    Raises:
        UserError: fewer than 0 or more than there are.
    """
    blocks = model.args.encoder_layers
    if not 0 <= layers <= blocks + 1:
        raise UserError(f"--frozen-layers {layers}: give 0 to {blocks + 1} (the embeddings and {blocks} blocks)")
    if not layers:
        return
    encoder = model.encoder.sentence_encoder
    above = [*encoder.layers[layers - 1 :]] + [encoder.layer_norm] * (encoder.layer_norm is not None)
    kept = {id(parameter) for module in above for parameter in module.parameters()}
    for parameter in encoder.parameters():
        if id(parameter) not in kept:
            parameter.requires_grad_(False)
