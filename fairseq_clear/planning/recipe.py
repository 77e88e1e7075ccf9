"""What of a recipe's settings decides its cost."""

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairseq_clear.augmentations.base import Symbols
from fairseq_clear.augmentations.chain import build_augmentation
from fairseq_clear.data.span_views import SPAN_KNOBS
from fairseq_clear.data.views import find_view_source
from fairseq_clear.errors import UserError
from fairseq_clear.models.architectures import SIZES, set_defaults
from fairseq_clear.spec import check_knobs

__all__ = ["Encoder", "Recipe", "read_recipe"]

SAMPLES = 128  # texts whose views are drawn to see how long they get
CRITERIONS = ("clear_nt_xent", "masked_lm")


@dataclass(frozen=True)
class Encoder:
    """A Transformer encoder with its two heads; widths in units, ``projection`` from input to z."""

    layers: int
    width: int
    ffn: int
    heads: int
    positions: int
    vocabulary: int
    projection: tuple[int, ...]
    dropout: float = 0.0
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    is_pre_norm: bool = False
    is_untied: bool = False
    segments: int = 1
    pooling: str = "cls"

    @property
    def output_dim(self) -> int:
        """Width of z."""
        return self.projection[-1]

    def parameters(self, *, mlm: bool = True, views: bool = True) -> int:
        """Weights; without an MLM or views those that are trained."""
        d, f = self.width, self.ffn
        block = 4 * (d * d + d) + (2 * d * f + f + d) + 4 * d
        embeddings = (self.vocabulary + self.positions + 2) * d + 2 * d + (self.segments > 1) * self.segments * d
        encoder = embeddings + self.layers * block + self.is_pre_norm * 2 * d
        head = d * d + d + 2 * d + self.vocabulary + self.is_untied * self.vocabulary * d
        widths = zip(self.projection[:-1], self.projection[1:], strict=True)
        return encoder + mlm * head + views * sum(wide * narrow + narrow for wide, narrow in widths)


@dataclass(frozen=True)
class Recipe:
    """What one worker computes of each text, and how long training goes on.

    Attributes:
        encoder: the model.
        criterion: its name.
        batch_size, update_freq, chunk_size: as configured; ``chunk_size`` 0 is none.
        length: tokens of a text.
        copies: masked copies of a text; 0 without an MLM.
        masked_share: of their tokens.
        anchors, positives, negatives: views of a text: anchors, positives of each anchor, hard negatives of each.
        view_length: tokens to which the longest view of a batch is padded.
        is_global: negatives are those of all workers.
        precision: fp32, fp16, bf16.
        max_update, max_epoch: of the run; 0 for none.
        is_cpu: no GPU.
        is_memory_efficient: half precision without float32 copies.
        uses_ddp: torch's DistributedDataParallel, which keeps its buckets beside the gradients.
    """

    encoder: Encoder
    criterion: str
    batch_size: int
    update_freq: int
    chunk_size: int
    length: int
    copies: int
    masked_share: float
    anchors: int
    positives: int
    negatives: int
    view_length: int
    is_global: bool
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
    def view_rows(self) -> int:
        """Views of a text that are encoded."""
        return self.anchors * (1 + self.positives + self.negatives)

    @property
    def element(self) -> int:
        """Bytes of a number in the model's precision."""
        return 4 if self.precision == "fp32" else 2

    @property
    def trained(self) -> int:
        """Weights that have a gradient."""
        return self.encoder.parameters(mlm=self.copies > 0, views=self.has_views)

    @property
    def holds_attention(self) -> bool:
        """Whether attention weights are kept: PyTorch has no fused kernel with dropout for a CPU."""
        return self.is_cpu and self.encoder.attention_dropout > 0


def read_recipe(config: Mapping[str, Any], vocabulary: int, text_length: int | None = None) -> Recipe:
    """Read the composed settings.

    Args:
        config: of ``composing.compose_recipe``.
        vocabulary: rows of the embedding, symbols included.
        text_length: tokens of a text (default: ``task.tokens_per_sample``).

    Raises:
        UserError: what is not estimated, or makes no sense.
    """
    task, criterion, model = config["task"], config["criterion"], config["model"]
    name = criterion.get("_name")
    if name not in CRITERIONS:
        raise UserError(f"criterion {name}: only {' and '.join(CRITERIONS)} are estimated")
    encoder = _encoder(model, vocabulary)
    length = min(text_length or int(task.get("tokens_per_sample", 512)), encoder.positions)
    if length < 1:
        raise UserError(f"task.tokens_per_sample {length}: must be 1 or more")
    is_contrastive = name != "masked_lm"
    has_views = is_contrastive and float(criterion.get("contrastive_weight", 1.0)) > 0
    has_mlm = not is_contrastive or float(criterion.get("mlm_weight", 1.0)) > 0
    anchors, positives, copies = _rows(task, criterion, has_mlm=has_mlm)
    common, optimization = config.get("common") or {}, config.get("optimization") or {}
    if common.get("amp"):
        raise UserError("common.amp: is not estimated; plan with common.fp16=true or common.bf16=true")
    frequency = optimization.get("update_freq", 1)
    return Recipe(
        encoder=encoder,
        criterion=str(name),
        batch_size=int((config.get("dataset") or {}).get("batch_size") or 0),
        update_freq=int(frequency[0] if isinstance(frequency, list) else frequency),
        chunk_size=int(model.get("encode_chunk_size", 0)),
        length=length,
        copies=copies if has_mlm else 0,
        masked_share=float(task.get("mask_prob", 0.15)),
        anchors=anchors if has_views else 0,
        positives=positives if has_views else 0,
        negatives=int(bool(task.get("hard_negatives"))) if has_views else 0,
        view_length=view_length(str(task.get("augment", "none")), length) if has_views else 0,
        is_global=has_views and str(criterion.get("negatives", "global")) == "global",
        precision="fp16" if common.get("fp16") else "bf16" if common.get("bf16") else "fp32",
        max_update=int(optimization.get("max_update", 0)),
        max_epoch=int(optimization.get("max_epoch", 0)),
        is_cpu=bool(common.get("cpu")),
        is_memory_efficient=any(common.get(f"memory_efficient_{kind}") for kind in ("fp16", "bf16")),
        uses_ddp=(config.get("distributed_training") or {}).get("ddp_backend", "pytorch_ddp") != "legacy_ddp",
    )


def view_length(augment: str, length: int) -> int:
    """Tokens of the longest of some views of texts of so many tokens; a substitute counts as long as its word."""
    chain = build_augmentation(
        augment, Symbols(0, 2, 1, delete=5, unk=3, mask=4), flag="task.augment", allow_missing_synonyms=True
    )
    if chain.is_identity:
        return length
    if chain.needs_synonyms:
        steps = "/".join(
            "+".join(step for step in one.split("+") if step.partition(":")[0] not in ("subs", "eda")) or "none"
            for one in chain.spec.split("/")
        )
        return view_length(steps, length)
    text = np.array([0, *range(6, 6 + max(length - 2, 0)), 2])
    rngs = (np.random.default_rng(seed) for seed in range(SAMPLES))
    return min(max(len(chain(text, rng).tokens) for rng in rngs), length)


def _encoder(model: Mapping[str, Any], vocabulary: int) -> Encoder:
    name = str(model.get("_name"))
    size = "base" if name == "clear_roberta" else name.removeprefix("clear_roberta_")
    if not name.startswith("clear_roberta") or size not in SIZES:
        known = ", ".join(f"clear_roberta_{size}" for size in SIZES)
        raise UserError(f"model._name {name}: is not estimated; give one of {known}")
    args = Namespace(**{key: value for key, value in model.items() if key != "_name"})
    set_defaults(args, *SIZES[size])
    if args.attention_window:
        raise UserError(f"model.attention_window {args.attention_window}: is not estimated; plan full attention with 0")
    width = args.encoder_embed_dim
    hidden = [args.projection_hidden_dim or width] * (args.projection_layers - 1)
    last = [args.projection_dim or width] if args.projection_layers else []
    return Encoder(
        layers=args.encoder_layers,
        width=width,
        ffn=args.encoder_ffn_embed_dim,
        heads=args.encoder_attention_heads,
        positions=int(getattr(args, "max_positions", None) or 512),
        vocabulary=vocabulary,
        projection=(width, *hidden, *last),
        dropout=args.dropout,
        attention_dropout=args.attention_dropout,
        activation_dropout=args.activation_dropout,
        is_pre_norm=bool(getattr(args, "encoder_normalize_before", False)),
        is_untied=bool(getattr(args, "untie_weights_roberta", False)),
        segments=args.segments,
        pooling=args.pooling,
    )


def _rows(task: Mapping[str, Any], criterion: Mapping[str, Any], *, has_mlm: bool) -> tuple[int, int, int]:
    """Anchors of a text, positives of each, masked copies."""
    spec = str(task.get("views", "same"))
    _, step = find_view_source(spec, flag="task.views")
    copies = int(task.get("mlm_copies", 1))
    if step.name == "span":
        if has_mlm and str(criterion.get("anchor_mlm", "separate")) == "joint":
            raise UserError("criterion.anchor_mlm joint: is not estimated; plan with separate")
        knobs = check_knobs(step, SPAN_KNOBS, flag="task.views")
        return int(knobs["anchors"]), int(knobs["positives"]), copies * int(knobs["anchors"])
    return 1, max(len(step.values) - 1, 1), copies
