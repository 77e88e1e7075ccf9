"""``fairseq-clear embed``: a text file to a file of vectors."""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from fairseq_clear.cli.console import TOKENIZER_HELP, choose_tokenizer, quiet_logs
from fairseq_clear.errors import UserError

DESCRIPTION = """\
Embed the lines of a text file with a trained encoder: the vectors before the projection head, in float32.

One sentence a line; a blank line is embedded as an empty text, so that row i of the output is line i of the input.
Memory stays flat however long the file is. The output appears whole or not at all."""

EPILOG = """\
examples:
  fairseq-clear embed sentences.txt --checkpoint checkpoints/checkpoint_best.pt --data-bin data-bin --output out.npy
  zcat big.gz | fairseq-clear embed - --checkpoint ck.pt --data-bin data-bin --output out.jsonl --normalize
  echo 'A film.' | fairseq-clear embed - --checkpoint ck.pt --data-bin data-bin --pooling mean"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.add_argument("input", metavar="INPUT", help="UTF-8 text, also .gz or .xz; - for standard input")
    parser.add_argument(
        "--checkpoint", required=True, type=Path, metavar="FILE",
        help="of clear_roberta, whatever it was trained with, or of fairseq's roberta",
    )  # fmt: skip
    parser.add_argument(
        "--data-bin", required=True, metavar="DIR", help="folder with the dict.txt (and tokenizer) it was trained with"
    )
    parser.add_argument("--tokenizer", metavar="NAME", help=TOKENIZER_HELP)
    parser.add_argument(
        "--output", type=Path, metavar="FILE",
        help='.npy: one (lines, dimension) float32 array; .jsonl: {"text": ..., "embedding": [...]} a line '
        "(default: JSON lines on standard output)",
    )  # fmt: skip
    parser.add_argument("--overwrite", action="store_true", help="replace an existing output")
    parser.add_argument(
        "--pooling", metavar="NAME",
        help="cls, mean, max, first-last, last2 or layer:N (default: the checkpoint's own; mean for a stock roberta)",
    )  # fmt: skip
    parser.add_argument("--normalize", action="store_true", help="scale vectors to length 1")
    parser.add_argument(
        "--batch-size", type=int, default=32, metavar="N",
        help="rows of the longest text per batch; short texts go more to a batch (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--device", metavar="NAME", help="cpu or cuda (default: cuda where there is one)")


def run(args: argparse.Namespace) -> int:
    """Embed, print the closing line, return 0."""
    from fairseq_clear.evaluation.embedding_files import check_output  # fairseq takes seconds to import

    if args.batch_size < 1:
        raise UserError(f"--batch-size {args.batch_size}: must be 1 or more")
    if args.output is not None:
        check_output(args.output, args.overwrite)
    with _input_file(args.input) as path, quiet_logs():
        try:
            return _embed(args, path)
        except UserError as error:
            raise UserError(
                str(error).replace(str(path), "standard input" if args.input == "-" else str(path))
            ) from None


def _embed(args: argparse.Namespace, path: Path) -> int:
    from tqdm import tqdm

    from fairseq_clear.evaluation.embedding_files import count_lines, embed_lines, jsonl_writer, open_output
    from fairseq_clear.evaluation.sentence_encoder import SentenceEncoder
    from fairseq_clear.text.data_folders import data_folders

    rows = count_lines(path)
    tokenizer = choose_tokenizer(args.tokenizer, data_folders(args.data_bin)[0])
    encoder = SentenceEncoder.from_pretrained(
        args.checkpoint, args.data_bin, tokenizer=tokenizer, pooling=args.pooling, device=args.device
    )
    is_file = args.output is not None
    opened = open_output(args.output, rows, encoder.dimension) if is_file else nullcontext(jsonl_writer(sys.stdout))
    # no bar where nobody looks: into a log it would write a line for every batch
    with opened as write, tqdm(total=rows, unit="sentence", file=sys.stderr, disable=None) as bar:
        report = embed_lines(
            encoder, path, write, batch_size=args.batch_size, normalize=args.normalize, on_batch=bar.update
        )
    closing = f"{report.summary()}; pooling {encoder.pooling}"
    print(closing + (f"; wrote {args.output}" if is_file else ""), file=sys.stdout if is_file else sys.stderr)
    return 0


@contextmanager
def _input_file(name: str) -> Iterator[Path]:
    """The input as a file that can be read twice: once to count and check its lines, once to embed them."""
    if name != "-":
        yield Path(name)
        return
    with tempfile.NamedTemporaryFile(prefix="fairseq-clear-", suffix=".txt") as spooled:
        shutil.copyfileobj(sys.stdin.buffer, spooled)
        spooled.flush()
        yield Path(spooled.name)
