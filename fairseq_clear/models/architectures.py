"""The sizes: BERT's miniatures (Turc et al. 2019, arXiv:1908.08962; heads of 64), base and large."""

from typing import Any

from fairseq.models import register_model_architecture
from fairseq.models.roberta.model import base_architecture
from fairseq.utils import safe_getattr

import fairseq_clear.models.clear_roberta  # noqa: F401  (registers the model that these are sizes of)
from fairseq_clear.models.segments import FAIRSEQ_EPS
from fairseq_clear.patches.compatibility import forget_tpu

# name: (layers, width); heads are width / 64 and the feed-forward width is 4 x width, as in BERT.
SIZES = {
    "tiny": (2, 128),
    "mini": (4, 256),
    "small": (4, 512),
    "medium": (8, 512),
    "base": (12, 768),
    "large": (24, 1024),
}


def set_defaults(args: Any, layers: int, width: int) -> None:
    """Fill in what the user did not give: sizes, a SimCLR head after [CLS]; dropout stays at RoBERTa's 0.1."""
    args.encoder_layers = safe_getattr(args, "encoder_layers", layers)
    args.encoder_embed_dim = width = safe_getattr(args, "encoder_embed_dim", width)
    args.encoder_ffn_embed_dim = safe_getattr(args, "encoder_ffn_embed_dim", 4 * width)
    args.encoder_attention_heads = safe_getattr(args, "encoder_attention_heads", max(1, width // 64))
    args.pooling = safe_getattr(args, "pooling", "cls")
    args.projection_layers = safe_getattr(args, "projection_layers", 2)
    args.projection_hidden_dim = safe_getattr(args, "projection_hidden_dim", 0)
    args.projection_dim = safe_getattr(args, "projection_dim", 128)
    args.projection_activation = safe_getattr(args, "projection_activation", "relu")
    args.projection_activate_last = safe_getattr(args, "projection_activate_last", False)
    args.key_encoder = safe_getattr(args, "key_encoder", None)
    args.key_momentum = safe_getattr(args, "key_momentum", 0.999)
    args.encode_chunk_size = safe_getattr(args, "encode_chunk_size", 0)
    args.layer_norm_eps = safe_getattr(args, "layer_norm_eps", FAIRSEQ_EPS)
    args.segments = safe_getattr(args, "segments", 1)
    args.attention_window = safe_getattr(args, "attention_window", 0)
    args.compile = safe_getattr(args, "compile", False)
    base_architecture(args)
    forget_tpu(args)


def _register(name: str, layers: int, width: int) -> None:
    @register_model_architecture("clear_roberta", name)
    def architecture(args: Any) -> None:
        set_defaults(args, layers, width)


for _name, (_layers, _width) in SIZES.items():
    _register(f"clear_roberta_{_name}", _layers, _width)
_register("clear_roberta", *SIZES["base"])
