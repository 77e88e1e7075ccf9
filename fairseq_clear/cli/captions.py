"""``fairseq-clear captions``: image-caption retrieval from given image features."""

import argparse
import hashlib
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING

from fairseq_clear.cli.console import quiet_logs
from fairseq_clear.cli.evaluation import add_encoder_arguments, check_arguments, finish, iterate_encoders, speed_line
from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.reports import Report, Row

if TYPE_CHECKING:
    from fairseq_clear.evaluation.captions import CaptionScores

DESCRIPTION = """\
SentEval's image-caption retrieval: images and captions are projected into one space, trained to rank each other, and
searched in both directions. Recall at 1, 5 and 10 (x100) and median rank, in folds of a thousand test images."""

EPILOG = """\
example:
  fairseq-clear captions --data coco --encoder checkpoint_best.pt --data-bin data-bin --seeds 1 2 3"""

DIRECTIONS = {"image>text": "captions", "text>image": "images"}
MEASURES = ("R@1", "R@5", "R@10", "median rank")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.add_argument(
        "--data", type=Path, required=True, metavar="DIR",
        help="folder with train, dev and test: NAME.npy, (images, features), and NAME.txt, the captions of each image in turn",
    )  # fmt: skip
    parser.add_argument("--seeds", type=int, nargs="+", default=[1111], metavar="N", help="of the ranking model (1111)")
    parser.add_argument("--max-epoch", type=int, default=200, metavar="N", help="most epochs (default: %(default)s)")
    add_encoder_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Evaluate every encoder, print the table, return 0."""
    check_arguments(args)
    from fairseq_clear.evaluation.captions import SPLITS, Ranker, evaluate_captions, read_captions

    if args.max_epoch < 1:
        raise UserError(f"--max-epoch {args.max_epoch}: must be 1 or more")
    read_captions(args.data)
    settings = Ranker(max_epoch=args.max_epoch)
    columns = [f"{direction} {measure}" for direction in DIRECTIONS for measure in MEASURES]
    rows, lines = [], []
    with quiet_logs():
        for encoder in iterate_encoders(args):
            found = [evaluate_captions(encoder, args.data, settings=settings, seed=seed) for seed in args.seeds]
            values = {column: [_value(scores, column) for scores in found] for column in columns}
            rows.append(
                Row(
                    encoder.name,
                    {column: mean(numbers) for column, numbers in values.items()},
                    encoder.describe(),
                    {column: stdev(numbers) for column, numbers in values.items()} if len(found) > 1 else {},
                    {"seeds": [scores.to_dict() for scores in found]},
                )
            )
            lines.append(speed_line(encoder))
    files = [args.data / f"{split}.{kind}" for split in SPLITS for kind in ("npy", "txt")]
    hashes = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    protocol = {name: getattr(settings, name) for name in settings.__dataclass_fields__}
    ranks = frozenset(column for column in columns if column.endswith("rank"))
    report = Report("captions", protocol, {"captions": hashes}, columns, rows, args.seeds, ranks)
    return finish(report, args, lines)


def _value(scores: "CaptionScores", column: str) -> float:
    direction, measure = column.split(" ", 1)
    return float(getattr(scores, DIRECTIONS[direction])[measure])
