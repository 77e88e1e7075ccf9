"""``fairseq-clear topics``: topics of 20 Newsgroups."""

import argparse
from pathlib import Path

from fairseq_clear.cli.console import quiet_logs
from fairseq_clear.cli.evaluation import add_encoder_arguments, check_arguments, finish, iterate_encoders, speed_line
from fairseq_clear.evaluation.reports import Report, Row
from fairseq_clear.evaluation.topics import REMOVALS, read_topics, score_topics

DESCRIPTION = """\
Predict the group of a 20 Newsgroups post from its vector by logistic regression: accuracy and macro-F1 x100 on the test
split by date. Long posts are cut at the encoder's own length."""

EPILOG = """\
example:
  fairseq-clear topics --data corpora --remove headers footers quotes --encoder checkpoint_best.pt --data-bin data-bin"""

COLUMNS = ("accuracy", "macro-F1")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.add_argument(
        "--data", type=Path, required=True, metavar="DIR",
        help='folder with 20news.train.jsonl and 20news.test.jsonl, also .xz or .gz: {"group": ..., "text": ...} a line',
    )  # fmt: skip
    parser.add_argument(
        "--remove", nargs="+", default=[], metavar="PART",
        help=f"of {', '.join(REMOVALS)}, recognised as scikit-learn does (default: nothing; headers give groups away)",
    )  # fmt: skip
    parser.add_argument(
        "--strength", type=float, default=1.0, metavar="C",
        help="inverse regularisation of scikit-learn's logistic regression (default: %(default)s)",
    )  # fmt: skip
    add_encoder_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Evaluate every encoder, print the table, return 0."""
    check_arguments(args)
    data = read_topics(args.data, args.remove)
    rows, lines = [], []
    with quiet_logs():
        for encoder in iterate_encoders(args):
            result = score_topics(encoder, data, strength=args.strength)
            scores = {"accuracy": result.accuracy, "macro-F1": result.macro_f1}
            rows.append(Row(encoder.name, scores, encoder.describe(), details=result.to_dict()))
            lines.append(speed_line(encoder))
    protocol = {
        "classifier": "logistic (scikit-learn, lbfgs)",
        "C": args.strength,
        "removed": ", ".join(data.removed) or "nothing",
        "texts": {split: len(texts) for split, texts in data.texts.items()},
    }
    return finish(Report("topics", protocol, {"20news": data.hashes}, COLUMNS, rows), args, lines)
