"""What of a recipe's settings decides its cost."""

from dataclasses import dataclass

import numpy as np

from fairseq_clear.modules.chunking import ENOUGH_CELLS, alike
from fairseq_clear.planning.encoder import Encoder

__all__ = ["Recipe"]


@dataclass(frozen=True)
class Recipe:
    """What one worker computes of each text, and how long training goes on.

    Attributes:
        encoder: the model.
        criterion, key_encoder: its name, and what encodes the positives: shared, momentum or frozen.
        batch_size, update_freq: as configured.
        chunk_size: tokens encoded at a time, as configured; 0 for all.
        text_lengths: tokens of some masked texts, as a batch holds them.
        copies: masked rows of a text beside its views; 0 without an MLM.
        masked_share: of their tokens.
        is_joint: the anchors among the views are masked and predicted.
        anchors, positives, negatives: views of a text: anchors, positives of each anchor, hard negatives of each.
        view_lengths: tokens of some views, as a batch holds them; none without views.
        is_global: negatives are those of all workers.
        is_symmetric: each view is a query and a key (clear_moco).
        queue: keys in it; 0 for none.
        objective: sg, opt1, opt2 or opt3 (clear_self_guided).
        guide_layers: of the guide, each of which is a key.
        guide_drops_out: as the tuned encoder does.
        has_regularizer: the weights' distance from those that training began with is in the loss.
        frozen_layers: the lowest that are not trained, the embeddings being the first.
        moments: numbers that the optimizer keeps of each weight.
        precision: fp32, fp16, bf16, amp.
        max_update, max_epoch: of the run; 0 for none.
        is_cpu: no GPU.
        is_memory_efficient: half precision without float32 copies.
        uses_ddp: torch's DistributedDataParallel, which keeps its buckets beside the gradients.
    """

    encoder: Encoder
    criterion: str
    key_encoder: str
    batch_size: int
    update_freq: int
    chunk_size: int
    text_lengths: tuple[int, ...]
    copies: int
    masked_share: float
    is_joint: bool
    anchors: int
    positives: int
    negatives: int
    view_lengths: tuple[int, ...]
    is_global: bool
    is_symmetric: bool
    queue: int
    objective: str
    guide_layers: int
    guide_drops_out: bool
    has_regularizer: bool
    frozen_layers: int
    moments: int
    precision: str
    max_update: int
    max_epoch: int
    is_cpu: bool
    is_memory_efficient: bool
    uses_ddp: bool

    @property
    def has_views(self) -> bool:
        """Whether there is a contrastive term."""
        return self.anchors > 0

    @property
    def has_mlm(self) -> bool:
        """Whether tokens are predicted."""
        return self.copies > 0 or self.is_joint

    @property
    def has_guide(self) -> bool:
        """Whether a copy of the encoder stays as it was when training began."""
        return self.has_regularizer or (self.has_views and self.key_encoder == "frozen")

    @property
    def has_queue(self) -> bool:
        """Whether there is a momentum encoder with its queue; the criterion makes them even where nothing is contrasted."""
        return self.key_encoder == "momentum"

    @property
    def view_rows(self) -> int:
        """Views of a text that are encoded with gradient."""
        rows = {"momentum": 1 + self.is_symmetric, "frozen": 1}
        return self.anchors * rows.get(self.key_encoder, 1 + self.positives + self.negatives)

    @property
    def key_rows(self) -> int:
        """Views of a text that another encoder reads, without gradient."""
        rows = {"momentum": self.positives + self.is_symmetric, "frozen": self.positives}
        return self.anchors * rows.get(self.key_encoder, 0)

    @property
    def length(self) -> int:
        """Tokens of the longest text."""
        return max(self.text_lengths)

    @property
    def mean_length(self) -> float:
        """Tokens of a text on average."""
        return float(np.mean(self.text_lengths))

    @property
    def view_length(self) -> int:
        """Tokens of the longest view."""
        return max(self.view_lengths, default=0)

    @property
    def longest(self) -> int:
        """Tokens of the longest text or view."""
        return max(self.length, self.view_length)

    @property
    def mean_view_length(self) -> float:
        """Tokens of a view on average."""
        return float(np.mean(self.view_lengths)) if self.view_lengths else 0.0

    def text_parts(self, rows: int, chunk: int = 0) -> list[tuple[int, int]]:
        """Parts in which so many masked texts are encoded, as ``view_parts``; one where nothing is contrasted."""
        if rows and not self.has_views and not chunk:
            return [(rows, self.length)]
        return self._parts(self.text_lengths, rows, chunk)

    def view_parts(self, rows: int, chunk: int = 0) -> list[tuple[int, int]]:
        """Parts in which so many views are encoded, as the model forms them: (rows, tokens to which they are padded) each.

        Args:
            rows: of a batch, whose lengths are taken to be the quantiles of ``view_lengths``.
            chunk: tokens encoded at a time; 0 for all.
        """
        return self._parts(self.view_lengths, rows, chunk)

    def _parts(self, some: tuple[int, ...], rows: int, chunk: int) -> list[tuple[int, int]]:
        if not rows or not some:
            return []
        quantiles = (np.arange(rows)[::-1] + 0.5) / rows
        lengths = np.quantile(some, quantiles, method="nearest").astype(np.int64)  # falling
        parts = alike(lengths, chunk or None, ENOUGH_CELLS["cpu" if self.is_cpu else "cuda"])
        return [(part.stop - part.start, int(lengths[part.start])) for part in parts]

    @property
    def is_mixed(self) -> bool:
        """Whether products are in half precision and all else in float32; on a CPU nothing is."""
        return self.precision == "amp" and not self.is_cpu

    @property
    def element(self) -> int:
        """Bytes of a weight and of its gradient."""
        return 2 if self.precision in ("fp16", "bf16") else 4

    @property
    def product(self) -> int:
        """Bytes of a number that goes into a product of matrices or comes out of one."""
        return 2 if self.is_mixed else self.element

    @property
    def vector(self) -> int:
        """Bytes of a number of z."""
        return self.product if self.encoder.has_projection else self.element

    @property
    def weights(self) -> int:
        """All of them, copies of the encoder included."""
        encoder = self.encoder
        copies = self.has_guide * encoder.parameters(mlm=False, views=False)
        return encoder.parameters() + copies + self.has_queue * encoder.parameters(mlm=False)

    @property
    def frozen_blocks(self) -> int:
        """The lowest blocks, which are not trained."""
        return max(self.frozen_layers - 1, 0)

    @property
    def trained(self) -> int:
        """Weights that have a gradient."""
        encoder = self.encoder
        unused = 0 if self.has_mlm else encoder.layers - max(encoder.top, self.frozen_blocks)
        frozen = (self.frozen_layers > 0) * encoder.embeddings + (self.frozen_blocks + unused) * encoder.block
        return encoder.parameters(mlm=self.has_mlm, views=self.has_views) - frozen

    @property
    def holds_attention(self) -> bool:
        """Whether attention weights are kept: PyTorch has no fused kernel with dropout for a CPU."""
        return self.is_cpu and self.encoder.attention_dropout > 0
