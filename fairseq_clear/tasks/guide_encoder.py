"""The encoder of ``--guide``: a separate, frozen model that decides which candidates are false negatives."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_clear.errors import UserError
from fairseq_clear.models.pretrained_encoder import checkpoint_in
from fairseq_clear.models.text_model import TextModel
from fairseq_clear.modules.hidden_states import compile_blocks
from fairseq_clear.patches.checkpoint_files import read_checkpoint
from fairseq_clear.tasks.run_record import check_same_vocabulary


class GuideEncoder:
    """Encodes the views of a batch with another, frozen model (GISTEmbed, arXiv:2402.16829).

    It is not an nn.Module, so the optimizer, DistributedDataParallel and checkpoints do not see its weights. It stays in
    evaluation mode. It has the device and precision of the trained model, so with ``--amp`` its weights stay in float32.

    Args:
        model: model of the guide, used with its own pooling; it is modified in place.
        dictionary: vocabulary of the guide. It may lack ``<del>``, the last entry of the data's vocabulary.

    Attributes:
        width: G, the dimension of the vectors.
    """

    def __init__(self, model: TextModel, dictionary: Any) -> None:
        self.model = model.eval().requires_grad_(False)
        self.width = int(model.args.encoder_embed_dim)
        self._entries, self._mask = len(dictionary), dictionary.index("<mask>")

    @torch.no_grad()
    def __call__(self, tokens: Tensor, lengths: Sequence[int], like: Tensor) -> Tensor:
        """Return the vectors (R, G) of texts, without projection head and without gradient.

        Args:
            tokens: (R, T) ids of the data's vocabulary, padded on the right. An id that the guide lacks is read as ``<mask>``.
            lengths: number of tokens of each row.
            like: an output of the trained model, with its device and precision.
        """
        weight = next(self.model.parameters())
        # under autocast, outputs are in half precision and weights are not
        dtype = torch.float32 if torch.is_autocast_enabled(like.device.type) else like.dtype
        # .to visits every weight, also if nothing changes
        if weight.device != like.device or weight.dtype != dtype:
            self.model.to(device=like.device, dtype=dtype)
        return self.model.embed_parts(tokens.masked_fill(tokens >= self._entries, self._mask), lengths)


def load_guide(source: str, data: Path, longest: int, settings: Any) -> GuideEncoder:
    """Load a guide, with the size and the pooling of its checkpoint, for views of at most ``longest`` tokens.

    ``settings`` belong to the trained model; the guide uses their ``encode_chunk_size`` and ``compile``.

    Raises:
        UserError: the guide cannot be read, has another vocabulary than the data folder, or has too few positions.
    """
    from fairseq_clear.evaluation.checkpoints import load_model  # not above, because it registers this package

    path = checkpoint_in(source, "--guide")
    try:
        check_same_vocabulary(read_checkpoint(path), path, str(data))
        loaded = load_model(path, data)
    except UserError as error:
        raise UserError(f"--guide {error}") from None
    if (positions := int(loaded.model.max_positions())) < longest:
        raise UserError(f"--guide {source}: reads at most {positions} tokens; give --tokens-per-sample {positions}")
    if getattr(settings, "compile", False):
        compile_blocks(loaded.model.backbone)
    loaded.model.args.encode_chunk_size = int(getattr(settings, "encode_chunk_size", 0))
    return GuideEncoder(loaded.model, loaded.dictionary)
