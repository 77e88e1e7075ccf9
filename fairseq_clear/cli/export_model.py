"""``fairseq-clear export``: trained weights out."""

import argparse
from pathlib import Path

from fairseq_clear.cli.console import TOKENIZER_HELP, choose_tokenizer, quiet_logs
from fairseq_clear.errors import UserError

FORMATS = ("hf", "sentence-transformers", "fairseq")

DESCRIPTION = """\
Write a checkpoint's encoder in the form that others load; projection head, queue, guide, key encoder and the row of <del>
stay behind.

  hf                     config.json, model.safetensors (MLM head included) and tokenizer: AutoModel, AutoTokenizer
  sentence-transformers  the same without MLM head, and the pooling in its config
  fairseq                stock roberta (model.pt, dict.txt), which needs no plugin

What was written is loaded again by the library that it is for and compared with the checkpoint: hidden states of every
layer, embeddings, tokens. Above a difference of 1e-4 nothing is written. README.md is a model card."""

EPILOG = """\
examples:
  fairseq-clear export checkpoint_best.pt --data-bin data-bin --format sentence-transformers --dest encoder
  fairseq-clear sts --data DATA --encoder checkpoint_best.pt --data-bin data-bin --output sts.json
  fairseq-clear export checkpoint_best.pt --data-bin data-bin --format hf --dest encoder --scores sts.json
  fairseq-clear export checkpoint_best.pt --data-bin data-bin --format fairseq --dest roberta"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="of clear_roberta or of fairseq's roberta")
    parser.add_argument(
        "--data-bin", required=True, metavar="DIR", help="folder with the dict.txt (and tokenizer) it was trained with"
    )
    parser.add_argument("--format", required=True, choices=FORMATS, help="see above")
    parser.add_argument("--dest", required=True, type=Path, metavar="DEST", help="the folder to make")
    parser.add_argument(
        "--pooling", metavar="NAME",
        help="to state; sentence-transformers has cls, mean and max (default: the checkpoint's own)",
    )  # fmt: skip
    parser.add_argument(
        "--encoder", choices=("query", "key"), default="query",
        help="of a checkpoint of clear_moco: the one that was trained, or its average, which encoded the keys "
        "(default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--normalize", action="store_true", help="have sentence-transformers scale vectors to length 1")
    parser.add_argument("--scores", type=Path, metavar="FILE", help="report of an evaluation (--output), for the card")
    parser.add_argument("--tokenizer", metavar="NAME", help=TOKENIZER_HELP)
    parser.add_argument("--overwrite", action="store_true", help="replace DEST if an export wrote it")


def run(args: argparse.Namespace) -> int:
    """Export, print the parity, return 0."""
    if args.normalize and args.format != "sentence-transformers":
        raise UserError(f"--normalize: belongs to --format sentence-transformers; {args.format} has no place for it")
    from fairseq_clear.interop.exporting import export  # fairseq takes seconds to import
    from fairseq_clear.text.data_folders import data_folders

    folder = data_folders(args.data_bin)[0]
    with quiet_logs():
        report = export(
            args.checkpoint,
            folder,
            args.dest,
            args.format,
            choose_tokenizer(args.tokenizer, folder),
            pooling=args.pooling,
            normalized=args.normalize,
            scores=args.scores,
            key_encoder=args.encoder == "key",
            overwrite=args.overwrite,
        )
    print("\n".join(report.lines()))
    return 0
