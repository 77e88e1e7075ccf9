"""``fairseq-clear plot``: pictures as PNG and SVG."""

import argparse
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_clear.cli.console import TOKENIZER_HELP, choose_tokenizer, quiet_logs
from fairseq_clear.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fairseq_clear.evaluation.sts_data import StsData

DESCRIPTION = """\
Draw a picture at the width of a paper's column, legible to colour-blind readers and in grey: PNG and SVG.

  curves      training logs: losses, accuracy, alignment against uniformity; validation beside training, on both columns
  compare     bars over JSON reports of sts, senteval, topics and glue
  layers      STS by layer and pooling
  embedding   t-SNE of the highest and lowest scored pairs"""

EPILOG = """\
examples:
  fairseq-clear plot curves clear/train.log roberta/train.log --output curves
  fairseq-clear plot compare sts.json glue-runs/report.json --columns STS-B RTE --output compare
  fairseq-clear plot layers --encoder checkpoint_best.pt --data-bin data-bin --data SentEval/data --output layers
  fairseq-clear plot embedding --encoder a.pt b.pt --data-bin data-bin --data SentEval/data --output pairs"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of the four pictures."""
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    kinds = parser.add_subparsers(dest="picture", metavar="PICTURE", required=True)
    curves = kinds.add_parser("curves", help="training logs")
    curves.add_argument(
        "logs", nargs="+", type=Path, metavar="LOG",
        help="what fairseq-train printed with --log-format simple or json, or its --log-file",
    )  # fmt: skip
    curves.add_argument("--labels", nargs="+", metavar="TEXT", help="of the legend, one for each log")
    curves.add_argument(
        "--metrics", nargs="+", metavar="NAME", help="as they are logged, without train_ or valid_ (default: the usual)"
    )
    compare = kinds.add_parser("compare", help="bars over JSON reports")
    compare.add_argument("reports", nargs="+", type=Path, metavar="REPORT.json")
    compare.add_argument("--columns", nargs="+", metavar="NAME", help="which, in this order (default: all)")
    compare.add_argument("--labels", nargs="+", metavar="TEXT", help="of the legend, one for each row of the reports")
    layers = kinds.add_parser("layers", help="STS by layer and pooling")
    _add_sts(layers, "checkpoints")
    layers.add_argument("--poolings", nargs="+", default=["cls", "mean", "max"], metavar="NAME", help="(cls mean max)")
    embedding = kinds.add_parser("embedding", help="t-SNE of the highest and lowest scored pairs")
    _add_sts(embedding, "checkpoints, or package.module:factory")
    embedding.add_argument("--pooling", metavar="NAME", help="(default: the checkpoint's own)")
    embedding.add_argument("--pairs", type=int, default=20, metavar="K", help="of each kind (default: 20)")
    embedding.add_argument("--seed", type=int, default=1, metavar="N", help="of t-SNE and of equal scores")
    for one in (curves, compare, layers, embedding):
        one.add_argument("--output", required=True, type=Path, metavar="NAME", help="NAME.png and NAME.svg are written")
        one.add_argument("--overwrite", action="store_true", help="replace existing pictures")


def _add_sts(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--encoder", required=True, nargs="+", metavar="ENC", help=what)
    parser.add_argument("--labels", nargs="+", metavar="TEXT", help="of the legend, one for each encoder")
    parser.add_argument("--data-bin", metavar="DIR", help="folder with the dict.txt and tokenizer of the checkpoints")
    parser.add_argument("--tokenizer", metavar="NAME", help=TOKENIZER_HELP)
    parser.add_argument("--data", type=Path, metavar="DIR", help="SentEval's data folder, or the task's own")
    parser.add_argument("--task", default="STS-B-dev", metavar="TASK", help="of fairseq-clear sts (%(default)s)")
    parser.add_argument("--sts-file", type=Path, metavar="FILE", help="tab-separated pairs in place of --data, --task")
    parser.add_argument("--batch-size", type=int, default=32, metavar="N", help="(default: %(default)s)")
    parser.add_argument("--device", metavar="NAME", help="cpu or cuda (default: cuda where there is one)")


def run(args: argparse.Namespace) -> int:
    """Draw, write both files, return 0."""
    for name in ("matplotlib", "PIL"):  # importing fairseq turns on everything that other libraries log
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        from fairseq_clear.evaluation.plots.style import check_picture_path, save_figure
    except ImportError:
        raise UserError("matplotlib is not installed; pip install 'fairseq_clear[eval]'") from None
    check_picture_path(args.output, args.overwrite)
    draw = {"curves": _curves, "compare": _compare, "layers": _layers, "embedding": _embedding}[args.picture]
    with quiet_logs():
        files = save_figure(draw(args), args.output)
    print(f"wrote {' and '.join(map(str, files))}")
    return 0


def _curves(args: argparse.Namespace) -> "Figure":
    from fairseq_clear.evaluation.plots.curves import draw_curves
    from fairseq_clear.evaluation.plots.logs import read_log

    labels = _labels(args, len(args.logs)) or [None] * len(args.logs)
    return draw_curves([read_log(path, label) for path, label in zip(args.logs, labels, strict=True)], args.metrics)


def _compare(args: argparse.Namespace) -> "Figure":
    from dataclasses import replace

    from fairseq_clear.evaluation.plots.compare import draw_compare, read_bars

    bars = read_bars(args.reports)
    labels = _labels(args, len(bars))
    if labels:
        bars = [replace(row, label=label) for row, label in zip(bars, labels, strict=True)]
    return draw_compare(bars, args.columns)


def _layers(args: argparse.Namespace) -> "Figure":
    from tqdm import tqdm

    from fairseq_clear.evaluation.plots.layers import draw_layers, score_layers
    from fairseq_clear.evaluation.sentence_encoder import SentenceEncoder

    data, labels = _sts_data(args), _labels(args, len(args.encoder)) or args.encoder
    if args.data_bin is None:
        raise UserError("--data-bin: give the folder with the dict.txt and tokenizer of the checkpoints")
    results = []
    for name, label in zip(args.encoder, labels, strict=True):
        tokenizer = choose_tokenizer(args.tokenizer, Path(args.data_bin))
        encoder = SentenceEncoder.from_pretrained(name, args.data_bin, tokenizer=tokenizer, device=args.device)
        with tqdm(total=len(data), unit="pair", file=sys.stderr, disable=None, leave=False) as bar:
            results.append(
                score_layers(encoder, data, args.poolings, label=label, batch_size=args.batch_size, on_batch=bar.update)
            )
        for pooling, scores in results[-1].scores.items():
            print(f"{label} {pooling}: {' '.join('-' if score != score else f'{score:.2f}' for score in scores)}")
    return draw_layers(results, data.name)


def _embedding(args: argparse.Namespace) -> "Figure":
    from fairseq_clear.evaluation.encoders import CachedEncoder
    from fairseq_clear.evaluation.loading import load_encoders
    from fairseq_clear.evaluation.plots.embedding import choose_pairs, draw_embedding, map_pairs

    labels = _labels(args, len(args.encoder)) or [None] * len(args.encoder)
    pairs, scores = choose_pairs(_sts_data(args), args.pairs, args.seed)
    maps = []
    for name, label in zip(args.encoder, labels, strict=True):
        loaded = load_encoders(
            name, [args.pooling], data_bin=args.data_bin, device=args.device,
            tokenizer=lambda: choose_tokenizer(args.tokenizer, Path(args.data_bin)) if args.tokenizer else None,
        )  # fmt: skip
        encoder = CachedEncoder(loaded[0][1], batch_size=args.batch_size, name=label or loaded[0][0])
        maps.append(map_pairs(encoder, pairs, seed=args.seed))
    return draw_embedding(maps, scores)


def _sts_data(args: argparse.Namespace) -> "StsData":
    from fairseq_clear.evaluation.sts_data import read_sts, read_sts_file

    if args.batch_size < 1:
        raise UserError(f"--batch-size {args.batch_size}: must be 1 or more")
    if args.sts_file is not None:
        return read_sts_file(args.sts_file)
    if args.data is None:
        raise UserError("--data: give the folder of SentEval's data, or --sts-file")
    return read_sts(args.data, args.task)


def _labels(args: argparse.Namespace, number: int) -> list[str] | None:
    labels: list[str] | None = args.labels
    if labels is not None and len(labels) != number:
        raise UserError(f"--labels: {len(labels)} for {number} entries of the legend; give one for each")
    return labels
