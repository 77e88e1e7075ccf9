"""Sizes, flags and default settings of ``clear_roberta``.

The sizes are BERT's miniatures (Turc et al. 2019, arXiv:1908.08962; attention heads of width 64), base and large.
"""

import argparse
from functools import partial
from typing import Any

from fairseq.models import register_model_architecture
from fairseq.models.roberta.model import base_architecture
from fairseq.utils import safe_getattr

from fairseq_clear.models.encoder_stack import FAIRSEQ_EPS
from fairseq_clear.models.pretrained_encoder import start_from_encoder
from fairseq_clear.modules.projection import ACTIVATIONS
from fairseq_clear.patches.compatibility import forget_tpu

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
ROBERTA_DEFAULTS = {"layer_norm_eps": FAIRSEQ_EPS, "segments": 1, "attention_window": 0}
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
    "compile": False,
}


def add_model_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the flags that ``clear_roberta`` adds to RoBERTa's; ``set_defaults`` sets their defaults."""
    add = parser.add_argument
    add(
        "--encoder-from",
        metavar="FOLDER_OR_CHECKPOINT",
        help="start from a folder of fairseq-clear import (its model.pt) or from a checkpoint: takes layers, widths, heads, "
        "activation, LayerNorm's epsilon, positions, segments, attention window and pooling from it, and loads its weights as "
        "--finetune-from-model does",
    )
    add("--layer-norm-eps", type=float, metavar="EPS", help="epsilon of LayerNorm (1e-5; BERT's: 1e-12)")
    add(
        "--attention-window",
        type=int,
        metavar="W",
        help="Longformer's W: each token attends to the W tokens around it, W/2 on each side, and to <s>, which attends to "
        "all; an even number (0: full attention)",
    )
    add("--segments", type=int, metavar="N", help="number of segment embeddings: 2 as in BERT, or 1 for none (1)")
    add_contrastive_flags(parser)


def add_contrastive_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of every model of the plugin."""
    add = parser.add_argument
    add(
        "--pooling",
        metavar="NAME",
        help="text vector: cls, mean, max, first-last (mean of block 1 and the last), last2, or layer:N (default: cls, "
        "as in CLEAR; a short pretraining from scratch learns with mean but hardly with cls)",
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
        choices=("shared", "momentum", "frozen"),
        help="encoder of the positives. The criterion sets it; another value than the criterion's is an error",
    )
    add(
        "--key-momentum",
        type=float,
        metavar="M",
        help="m of the momentum encoder, for --criterion clear_moco (0.999, as in CERT)",
    )
    add(
        "--encode-chunk-size",
        type=int,
        metavar="TOKENS",
        help="encode at most this many tokens at a time, padding included, or one text, and recompute them in the backward "
        "pass. One chunk bounds the memory, and all texts of the batch are contrasted (0: encode all at once)",
    )
    add(
        "--compile",
        action="store_true",
        help="apply torch.compile to the blocks of all encoders in training; needs a C++ compiler and adds about a minute at "
        "the start",
    )


def set_defaults(args: Any, layers: int, width: int) -> None:
    """Set the default of every setting that ``args`` lacks, in place.

    Args:
        args: settings of the model, or all settings of a command line, in which ``--encoder-from`` is resolved.
        layers: default number of blocks.
        width: default width of the encoder.
    """
    if isinstance(args, argparse.Namespace) and hasattr(args, "finetune_from_model"):  # a command line
        start_from_encoder(args, args, getattr(args, "allow_change", ""))
    args.encoder_layers = safe_getattr(args, "encoder_layers", layers)
    args.encoder_embed_dim = width = safe_getattr(args, "encoder_embed_dim", width)
    args.encoder_ffn_embed_dim = safe_getattr(args, "encoder_ffn_embed_dim", 4 * width)
    args.encoder_attention_heads = safe_getattr(args, "encoder_attention_heads", max(1, width // 64))
    for name, value in (DEFAULTS | ROBERTA_DEFAULTS).items():
        setattr(args, name, safe_getattr(args, name, value))
    base_architecture(args)
    forget_tpu(args)


def register_architectures() -> None:
    """Register ``clear_roberta_SIZE`` for each of SIZES with fairseq, and ``clear_roberta``, which has the size base."""
    for name, (layers, width) in {"": SIZES["base"], **{f"_{name}": size for name, size in SIZES.items()}}.items():
        register = register_model_architecture("clear_roberta", f"clear_roberta{name}")
        register(partial(set_defaults, layers=layers, width=width))
