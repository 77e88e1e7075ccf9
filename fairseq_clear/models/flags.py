"""The command line flags of clear_roberta beside RoBERTa's; their defaults are set by the architectures."""

import argparse

from fairseq_clear.modules.projection import ACTIVATIONS

__all__ = ["KEY_ENCODERS", "add_model_flags"]

KEY_ENCODERS = ("shared", "momentum", "frozen")


def add_model_flags(parser: argparse.ArgumentParser) -> None:
    """Declare them."""
    parser.add_argument(
        "--pooling",
        metavar="NAME",
        help="text vector: cls, mean, max, first-last (mean of block 1 and the last), last2, or layer:N (default: cls, "
        "as CLEAR; short pretraining from scratch learns with mean and hardly with cls)",
    )
    parser.add_argument(
        "--projection-layers", type=int, metavar="N", help="linear layers of the projection head, 0 for none (2)"
    )
    parser.add_argument(
        "--projection-hidden-dim", type=int, metavar="D", help="width between them (0: that of the encoder)"
    )
    parser.add_argument("--projection-dim", type=int, metavar="D", help="width of z (128; 0: that of the encoder)")
    parser.add_argument("--projection-activation", choices=sorted(ACTIVATIONS), help="between the layers (relu)")
    parser.add_argument(
        "--projection-activate-last", action="store_true", help="activation after the last layer too (SimCSE: tanh)"
    )
    parser.add_argument(
        "--key-encoder",
        choices=KEY_ENCODERS,
        help="what encodes the positives; the criterion decides, another value than its own is an error",
    )
    parser.add_argument("--layer-norm-eps", type=float, metavar="EPS", help="of LayerNorm (1e-5; BERT's: 1e-12)")
    parser.add_argument(
        "--attention-window",
        type=int,
        metavar="W",
        help="Longformer: each token sees the W around it, W/2 on each side, and <s>, which sees all; an even number "
        "(0: full attention)",
    )
    parser.add_argument("--segments", type=int, metavar="N", help="2: BERT's embeddings of two segments (1: none)")
    parser.add_argument(
        "--key-momentum",
        type=float,
        metavar="M",
        help="m of the momentum encoder, for --criterion clear_moco (0.999, CERT's)",
    )
    parser.add_argument(
        "--encode-chunk-size",
        type=int,
        metavar="TOKENS",
        help="encode this many tokens at a time, padding counted and at least one text, and recompute them in the backward "
        "pass: memory is bounded by one chunk while all rows of the batch are contrasted (0: all at once)",
    )
    parser.add_argument(
        "--compile",
        action="store_true",
        help="torch.compile the encoder's blocks in training, the key encoder's and the guide's too; needs a C++ compiler, "
        "and takes a minute or so at the start",
    )
