"""Sizes, flags and default settings of ``clear_roberta``.

The sizes are BERT's miniatures (Turc et al. 2019, arXiv:1908.08962; attention heads of width 64), base and large.
"""

import argparse
from typing import Any

from fairseq.models import register_model_architecture
from fairseq.models.roberta.model import base_architecture
from fairseq.utils import safe_getattr

from fairseq_clear.models.encoder_stack import FAIRSEQ_EPS
from fairseq_clear.modules.projection import ACTIVATIONS
from fairseq_clear.patches.compatibility import forget_tpu

__all__ = ["KEY_ENCODERS", "SIZES", "add_model_flags", "register_architectures", "set_defaults"]

KEY_ENCODERS = ("shared", "momentum", "frozen")
# Name -> (layers, width); a head is 64 wide and the feed-forward layer 4 x width, as in BERT.
SIZES = {
    "tiny": (2, 128),
    "mini": (4, 256),
    "small": (4, 512),
    "medium": (8, 512),
    "base": (12, 768),
    "large": (24, 1024),
}
# A SimCLR head on [CLS]. Dropout is not listed: it stays at RoBERTa's 0.1.
DEFAULTS: dict[str, Any] = {
    "pooling": "cls",
    "projection_layers": 2,
    "projection_hidden_dim": 0,
    "projection_dim": 128,
    "projection_activation": "relu",
    "projection_activate_last": False,
    "key_encoder": None,
    "key_momentum": 0.999,
    "encode_chunk_size": 0,
    "layer_norm_eps": FAIRSEQ_EPS,
    "segments": 1,
    "attention_window": 0,
    "compile": False,
}


def add_model_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the flags that ``clear_roberta`` adds to RoBERTa's; ``set_defaults`` sets their defaults."""
    add = parser.add_argument
    add(
        "--pooling",
        metavar="NAME",
        help="text vector: cls, mean, max, first-last (mean of block 1 and the last), last2, or layer:N (default: cls, "
        "as CLEAR; short pretraining from scratch learns with mean and hardly with cls)",
    )
    add("--projection-layers", type=int, metavar="N", help="linear layers of the projection head, 0 for none (2)")
    add(
        "--projection-hidden-dim",
        type=int,
        metavar="D",
        help="width between the projection head's layers (0: the encoder's width)",
    )
    add("--projection-dim", type=int, metavar="D", help="width of z (128; 0: the encoder's width)")
    add("--projection-activation", choices=sorted(ACTIVATIONS), help="between the projection head's layers (relu)")
    add("--projection-activate-last", action="store_true", help="activation after the last layer too (SimCSE: tanh)")
    add(
        "--key-encoder",
        choices=KEY_ENCODERS,
        help="what encodes the positives; set by the criterion, any other value than the criterion's is an error",
    )
    add("--layer-norm-eps", type=float, metavar="EPS", help="epsilon of LayerNorm (1e-5; BERT's: 1e-12)")
    add(
        "--attention-window",
        type=int,
        metavar="W",
        help="Longformer: each token sees the W around it, W/2 on each side, and <s>, which sees all; an even number "
        "(0: full attention)",
    )
    add("--segments", type=int, metavar="N", help="2: BERT's embeddings of two segments (1: none)")
    add(
        "--key-momentum",
        type=float,
        metavar="M",
        help="m of the momentum encoder, for --criterion clear_moco (0.999, CERT's)",
    )
    add(
        "--encode-chunk-size",
        type=int,
        metavar="TOKENS",
        help="encode this many tokens at a time, padding included and at least one text, and recompute them in the backward "
        "pass: memory is bounded by one chunk while all rows of the batch are contrasted (0: all at once)",
    )
    add(
        "--compile",
        action="store_true",
        help="torch.compile the encoder's blocks in training, the key encoder's and the guide's too; needs a C++ compiler "
        "and adds about a minute at the start",
    )


def set_defaults(args: Any, layers: int, width: int) -> None:
    """Set every setting that ``args`` lacks, in place.

    Args:
        args: settings of the model.
        layers: default number of blocks.
        width: default width of the encoder.
    """
    args.encoder_layers = safe_getattr(args, "encoder_layers", layers)
    args.encoder_embed_dim = width = safe_getattr(args, "encoder_embed_dim", width)
    args.encoder_ffn_embed_dim = safe_getattr(args, "encoder_ffn_embed_dim", 4 * width)
    args.encoder_attention_heads = safe_getattr(args, "encoder_attention_heads", max(1, width // 64))
    for name, value in DEFAULTS.items():
        setattr(args, name, safe_getattr(args, name, value))
    base_architecture(args)
    forget_tpu(args)


def register_architectures(model: str) -> None:
    """Register ``model`` and ``model_SIZE`` for each of SIZES with fairseq; ``model`` alone has the size base."""
    for name, size in {model: SIZES["base"], **{f"{model}_{name}": size for name, size in SIZES.items()}}.items():

        def architecture(args: Any, size: tuple[int, int] = size) -> None:
            set_defaults(args, *size)

        register_model_architecture(model, name)(architecture)
