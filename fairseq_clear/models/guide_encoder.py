"""The guide of ``--guide``: a frozen encoder with weights of its own, which decides which candidates are false negatives."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fairseq_clear.models.clear_roberta import ClearRobertaModel

__all__ = ["GuideEncoder"]


class GuideEncoder:
    """Encodes the views of a batch with another, frozen model (GISTEmbed, arXiv:2402.16829).

    It is not an nn.Module, so the optimizer, DistributedDataParallel and checkpoints do not see its weights. It stays in
    evaluation mode. Its device and precision follow those of the trained model.

    Args:
        model: the model, whose pooling is used; it is changed.
        dictionary: vocabulary of the model, which may lack the last entry of the data's, ``<del>``.
        chunk: maximum number of tokens to encode at a time, padding included; 0 for no limit.

    Attributes:
        width: G, the dimension of the vectors.
    """

    def __init__(self, model: ClearRobertaModel, dictionary: Any, *, chunk: int = 0) -> None:
        self.model = model.eval().requires_grad_(False)
        self.model.args.encode_chunk_size = chunk
        self.width = int(model.args.encoder_embed_dim)
        self._entries, self._mask = len(dictionary), dictionary.index("<mask>")
        self._place: tuple[torch.device, torch.dtype] | None = None

    @torch.no_grad()
    def __call__(self, tokens: Tensor, lengths: Sequence[int], like: Tensor) -> Tensor:
        """Vectors (R, G) of texts, before any projection head, without gradient.

        Args:
            tokens: (R, T) ids of the data's vocabulary, padded on the right. An id that the guide lacks is read as ``<mask>``.
            lengths: number of tokens of each row.
            like: a tensor with the device and the precision in which to compute.
        """
        if self._place != (like.device, like.dtype):
            self._place = like.device, like.dtype
            self.model.to(device=like.device, dtype=like.dtype)
        return self.model.embed_parts(tokens.masked_fill(tokens >= self._entries, self._mask), lengths)
