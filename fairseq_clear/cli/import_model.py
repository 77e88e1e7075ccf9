"""``fairseq-clear import``: pretrained weights in."""

import argparse
from pathlib import Path

from fairseq_clear.cli.console import quiet_logs
from fairseq_clear.errors import UserError

DESCRIPTION = """\
Turn a local Hugging Face folder of BERT, RoBERTa, DistilRoBERTa, XLM-R, MiniLM or Longformer kind into a checkpoint of
clear_roberta (model.pt), with dict.txt and tokenizer beside it: --data-bin and --tokenizer-dir of other commands take the
folder DEST. fairseq's own roberta archive (a .tar.gz or its folder) is taken as it is. No code of the folder is run.

SOURCE is a folder on this machine, not a name on the Hugging Face hub: nothing is downloaded. On a machine with network get a
folder with `hf download` (pip install huggingface_hub), and copy it here.

Weights, LayerNorm's epsilon, activation and positions are kept exactly; the result is compared with what transformers
computes (hidden states of every layer, embeddings, tokens), and above a difference of 1e-4 nothing is written."""

EPILOG = """\
examples:
  hf download google-bert/bert-base-uncased --local-dir bert-base-uncased
  fairseq-clear import bert-base-uncased --dest bert
  fairseq-clear sts --data DATA --encoder bert/model.pt --data-bin bert --pooling cls mean first-last
  fairseq-clear prepare corpus.txt --dest data-bin --tokenizer hf --tokenizer-dir bert
  fairseq-train data-bin --finetune-from-model bert/model.pt ...    # with the flags that import prints
  fairseq-clear import roberta-base --dest long --extend-positions 4096
  fairseq-clear import roberta.base.tar.gz --dest roberta --gpt2-encoder-json encoder.json --gpt2-vocab-bpe vocab.bpe"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.add_argument(
        "source",
        type=Path,
        metavar="SOURCE",
        help="local folder with config.json, weights and tokenizer in it, or fairseq's roberta archive",
    )
    parser.add_argument("--dest", required=True, type=Path, metavar="DEST", help="the folder to make")
    parser.add_argument(
        "--segments", type=int, default=1, choices=(1, 2),
        help="1 adds the embedding of segment 0 to the positions, which is exact for single texts; 2 keeps both, for tasks on "
        "pairs (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--extend-positions", type=int, metavar="N",
        help="have N positions: the model's own are repeated, as Longformer begins; texts that long need training",
    )  # fmt: skip
    parser.add_argument(
        "--pooling", metavar="NAME",
        help="that the checkpoint states (default: what a sentence-transformers folder says, else mean)",
    )  # fmt: skip
    parser.add_argument(
        "--gpt2-encoder-json", type=Path, metavar="FILE", help="of a roberta archive that does not hold it"
    )
    parser.add_argument("--gpt2-vocab-bpe", type=Path, metavar="FILE", help="GPT-2's vocab.bpe, with the above")
    parser.add_argument("--overwrite", action="store_true", help="replace DEST if it is a data folder already")


def run(args: argparse.Namespace) -> int:
    """Import, print what was done and the parity, return 0."""
    from fairseq_clear.interop.archive import import_archive, is_archive  # fairseq takes seconds to import
    from fairseq_clear.interop.importing import import_hf

    gpt2 = (args.gpt2_encoder_json, args.gpt2_vocab_bpe)
    if (gpt2[0] is None) != (gpt2[1] is None):
        raise UserError("--gpt2-encoder-json and --gpt2-vocab-bpe belong together: give both")
    with quiet_logs():
        if is_archive(args.source):
            _refuse_with_archive(args)
            report = import_archive(
                args.source,
                args.dest,
                gpt2 if gpt2[0] else None,
                extend_positions=args.extend_positions,
                overwrite=args.overwrite,
            )
        else:
            if gpt2[0] is not None:
                raise UserError("--gpt2-encoder-json: belongs to fairseq's archives; a Hugging Face folder has its own")
            report = import_hf(
                args.source,
                args.dest,
                segments=args.segments,
                extend_positions=args.extend_positions,
                pooling=args.pooling,
                overwrite=args.overwrite,
            )
    print("\n".join(report.lines()))
    return 0


def _refuse_with_archive(args: argparse.Namespace) -> None:
    for flag, is_given in (
        ("--segments 2", args.segments != 1),
        ("--pooling", args.pooling is not None),
    ):
        if is_given:
            raise UserError(
                f"{flag}: {args.source} is an archive of fairseq's, which is taken as it is; leave the flag out"
            )
