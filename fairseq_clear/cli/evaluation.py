"""What sts, senteval, probing and topics share: encoders as flags, and the report at the end."""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_clear.cli.console import TOKENIZER_HELP, choose_tokenizer
from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.reports import Report, check_report_path
from fairseq_clear.files import hash_file, read_text_lines

if TYPE_CHECKING:
    from fairseq_clear.evaluation.encoders import CachedEncoder

__all__ = ["add_encoder_arguments", "check_arguments", "finish", "iterate_encoders"]


def add_encoder_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags that name encoders, and those of the report."""
    group = parser.add_argument_group("encoders")
    group.add_argument(
        "--encoder", nargs="+", required=True, metavar="ENC",
        help="one or several: a checkpoint (with --data-bin), a .vec or GloVe .txt file of word vectors to average, or "
        "package.module:factory, a function that returns anything with encode(list of str, batch_size=...) -> vectors",
    )  # fmt: skip
    group.add_argument(
        "--pooling", nargs="+", default=[None], metavar="NAME",
        help="one or several: cls, mean, max, first-last, last2, wk (SBERT-WK) or layer:N (default: the "
        "checkpoint's own); each is a row",
    )  # fmt: skip
    group.add_argument("--data-bin", metavar="DIR", help="folder with the dict.txt and tokenizer of the checkpoints")
    group.add_argument("--tokenizer", metavar="NAME", help=TOKENIZER_HELP)
    group.add_argument("--batch-size", type=int, default=32, metavar="N", help="of the encoder (default: %(default)s)")
    group.add_argument("--device", metavar="NAME", help="cpu or cuda (default: cuda where there is one)")
    group.add_argument(
        "--whitening", metavar="FILE",
        help="whiten the vectors (Su et al. 2021) as fitted, without labels, on these sentences, one a line",
    )  # fmt: skip
    group.add_argument("--whitening-dimensions", type=int, metavar="K", help="keep K of them (default: all)")
    report = parser.add_argument_group("report")
    report.add_argument(
        "--output", type=Path, metavar="FILE.json",
        help="write the report: numbers, data hashes, protocol, encoders, seeds, versions",
    )  # fmt: skip
    report.add_argument("--overwrite", action="store_true", help="replace an existing report")


def check_arguments(args: argparse.Namespace) -> None:
    """UserError for what can be known to be wrong before an encoder is loaded."""
    check_report_path(args.output, args.overwrite)
    if args.batch_size < 1:
        raise UserError(f"--batch-size {args.batch_size}: must be 1 or more")


def iterate_encoders(args: argparse.Namespace) -> "Iterator[CachedEncoder]":
    """Every encoder under every pooling, one at a time; what a checkpoint loads is freed before the next is loaded."""
    from fairseq_clear.evaluation.encoders import CachedEncoder  # these take seconds to import
    from fairseq_clear.evaluation.loading import load_encoders
    from fairseq_clear.evaluation.postprocessing import Whitening

    for name in args.encoder:
        loaded = load_encoders(
            name,
            args.pooling,
            data_bin=args.data_bin,
            tokenizer=lambda: choose_tokenizer(args.tokenizer, Path(args.data_bin)) if args.tokenizer else None,
            device=args.device,
        )
        for label, encoder in loaded:
            cached = CachedEncoder(encoder, batch_size=args.batch_size, name=label, progress=True)
            if args.whitening:
                sentences = [line for line in read_text_lines(args.whitening) if line.strip()]
                if not sentences:
                    raise UserError(f"--whitening {args.whitening}: holds no sentence")
                cached.transform = Whitening.fit(cached.encode(sentences), args.whitening_dimensions)
                cached.name = f"{label} whitened"
                cached.notes["whitening"] = {
                    "file": args.whitening,
                    "sha256": hash_file(args.whitening),
                    "sentences": len(sentences),
                    "dimensions": int(cached.transform.kernel.shape[1]),
                }
            yield cached


def finish(report: Report, args: argparse.Namespace, encoders: list[str]) -> int:
    """Print the table, the protocol and a line for each encoder; write the JSON; return 0."""
    if args.output is not None:
        report.write(args.output)
    print(report.table(bold=sys.stdout.isatty()))
    print(report.caption())
    for line in encoders:
        print(line, file=sys.stderr)
    if args.output is not None:
        print(f"wrote {args.output}", file=sys.stderr)
    return 0


def speed_line(encoder: "CachedEncoder") -> str:
    """How fast it encoded, and what share of that was padding."""
    padding = encoder.padding_share
    rate = encoder.sentences / max(encoder.seconds, 1e-9)
    end = "" if padding is None else f"; {padding:.1%} padding"
    return f"{encoder.name}: {encoder.sentences:,} distinct sentences, {rate:,.0f} sentences/s{end}"
