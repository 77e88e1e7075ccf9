"""The encoder of a recipe: its sizes, its weights, and what its attention computes of a text."""

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fairseq_clear.errors import UserError
from fairseq_clear.models.architectures import SIZES, set_defaults
from fairseq_clear.modules.pooling import parse_pooling
from fairseq_clear.modules.window_attention import block_size, check_window, is_covered

__all__ = ["Attention", "Encoder", "read_encoder"]


@dataclass(frozen=True)
class Attention:
    """What one layer computes of one text.

    Attributes:
        pairs: of a query and a key, whether the mask lets them see each other or not.
        queries, keys: rows that are written down beside those of the text: blocks of a window; 0 for full attention.
        mask: numbers of the mask, which all layers share.
    """

    pairs: int
    queries: int = 0
    keys: int = 0
    mask: int = 0


@dataclass(frozen=True)
class Encoder:
    """A Transformer encoder with its two heads; widths in units, ``projection`` from input to z.

    Attributes:
        projection_kept: numbers of a text that the projection head keeps beside its inputs and z: what GELU was given.
        window: tokens that a token sees, 0 for all.
    """

    layers: int
    width: int
    ffn: int
    heads: int
    positions: int
    vocabulary: int
    projection: tuple[int, ...]
    projection_kept: int = 0
    dropout: float = 0.0
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    is_pre_norm: bool = False
    is_untied: bool = False
    segments: int = 1
    pooling: str = "cls"
    window: int = 0

    @property
    def output_dim(self) -> int:
        """Width of z."""
        return self.projection[-1]

    @property
    def has_projection(self) -> bool:
        """Whether there is a layer between text vector and z."""
        return len(self.projection) > 1

    @property
    def top(self) -> int:
        """Blocks below the hidden states that pooling reads last."""
        return int(self.pooling.partition(":")[2]) if self.pooling.startswith("layer:") else self.layers

    @property
    def block(self) -> int:
        """Weights of a layer."""
        d, f = self.width, self.ffn
        return 4 * (d * d + d) + (2 * d * f + f + d) + 4 * d

    @property
    def embeddings(self) -> int:
        """Weights of tokens, positions, segments and the LayerNorm after them."""
        d = self.width
        return (self.vocabulary + self.positions + 2) * d + 2 * d + (self.segments > 1) * self.segments * d

    def parameters(self, *, mlm: bool = True, views: bool = True) -> int:
        """Weights, with the MLM head and the projection head or without."""
        d = self.width
        encoder = self.embeddings + self.layers * self.block + self.is_pre_norm * 2 * d
        head = d * d + d + 2 * d + self.vocabulary + self.is_untied * self.vocabulary * d
        widths = zip(self.projection[:-1], self.projection[1:], strict=True)
        return encoder + mlm * head + views * sum(wide * narrow + narrow for wide, narrow in widths)

    def attention(self, length: int) -> Attention:
        """Of a text of so many tokens; in a window block by block, each beside the keys that it may see and ``<s>``."""
        size = block_size(self.window)
        if not self.window or is_covered(length, self.window):
            return Attention(length**2)
        if length <= size + self.window:
            return Attention(length**2, mask=length**2)
        blocks, seen = -(-length // size), 1 + size + self.window
        pairs = blocks * size * seen
        return Attention(pairs + length, blocks * size, blocks * seen, pairs)


def read_encoder(model: Mapping[str, Any], vocabulary: int) -> Encoder:
    """The encoder of a recipe's model section.

    Raises:
        UserError: another model than ours, or a setting whose cost is not estimated.
    """
    name = str(model.get("_name"))
    size = "base" if name == "clear_roberta" else name.removeprefix("clear_roberta_")
    if not name.startswith("clear_roberta") or size not in SIZES:
        known = ", ".join(f"clear_roberta_{size}" for size in SIZES)
        raise UserError(f"model._name {name}: is not estimated; give one of {known}")
    for setting in ("checkpoint_activations", "encoder_layerdrop", "quant_noise_pq"):
        if model.get(setting):
            raise UserError(f"model.{setting} {model[setting]}: is not estimated; leave it out")
    args = Namespace(**{key: value for key, value in model.items() if key != "_name"})
    set_defaults(args, *SIZES[size])
    parse_pooling(args.pooling, args.encoder_layers, flag="model.pooling")
    width = args.encoder_embed_dim
    hidden = [args.projection_hidden_dim or width] * (args.projection_layers - 1)
    last = [args.projection_dim or width] if args.projection_layers else []
    activated = [*hidden, *(last if args.projection_activate_last else [])]
    return Encoder(
        layers=args.encoder_layers,
        width=width,
        ffn=args.encoder_ffn_embed_dim,
        heads=args.encoder_attention_heads,
        positions=int(getattr(args, "max_positions", None) or 512),
        vocabulary=vocabulary,
        projection=(width, *hidden, *last),
        projection_kept=sum(activated) if args.projection_activation == "gelu" else 0,
        dropout=args.dropout,
        attention_dropout=args.attention_dropout,
        activation_dropout=args.activation_dropout,
        is_pre_norm=bool(getattr(args, "encoder_normalize_before", False)),
        is_untied=bool(getattr(args, "untie_weights_roberta", False)),
        segments=args.segments,
        pooling=args.pooling,
        window=check_window(int(args.attention_window)),
    )
