"""``fairseq-clear sts``: semantic textual similarity."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_clear.cli.console import quiet_logs
from fairseq_clear.cli.evaluation import add_encoder_arguments, check_arguments, finish, iterate_encoders, speed_line
from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.reports import Report, Row
from fairseq_clear.evaluation.sts_data import AGGREGATIONS, DEFAULT_TASKS, METRICS, STS_TASKS, StsData

if TYPE_CHECKING:
    from fairseq_clear.evaluation.sts import StsResult

DESCRIPTION = """\
Correlate the cosine of two sentence vectors with human scores, x100, without any training.

STS-B and SICK-R are the test splits (SICK-R: 4,927 pairs; SICK-R-all is train, trial and test, 9,927, as some tables
have it). Pairs without a gold score are left out. For SentEval's trained regressor: fairseq-clear senteval."""

EPILOG = """\
examples:
  fairseq-clear sts --data SentEval/data --encoder checkpoint_best.pt --data-bin data-bin --pooling cls mean first-last
  fairseq-clear sts --data SentEval/data --tasks STS-B-dev --encoder a.pt b.pt --data-bin data-bin --output sts.json
  fairseq-clear sts --sts-file sts17.es-en.tsv --encoder my_package.encoders:make"""

AVERAGE = "Avg."  # plain mean over the tasks of the table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.add_argument(
        "--data", type=Path, metavar="DIR",
        help="SentEval's data folder, or one with STS12-en-test ..., STSBenchmark, SICK in it",
    )  # fmt: skip
    parser.add_argument(
        "--tasks", nargs="+", metavar="TASK",
        help=f"of {', '.join(STS_TASKS)} (default: those of {', '.join(DEFAULT_TASKS)} that DIR has)",
    )  # fmt: skip
    parser.add_argument(
        "--sts-file", nargs="+", type=Path, default=[], metavar="FILE",
        help="more tasks, of any language: tab-separated text, text, score; STS-B's columns; or STS.input.X.txt",
    )  # fmt: skip
    parser.add_argument(
        "--aggregation", choices=AGGREGATIONS, default="all",
        help="of a year's subsets: correlate them all at once, the mean of their correlations, or the mean weighted by "
        "their pairs; published tables differ (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--metric", choices=METRICS, default="spearman",
        help="in the table; the report has both (default: %(default)s)",
    )  # fmt: skip
    add_encoder_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Evaluate every encoder, print the table, return 0."""
    check_arguments(args)
    from fairseq_clear.evaluation.sts import read_sts_tasks, score_sts

    if args.data is None and not args.sts_file:
        raise UserError("--data: give the folder of SentEval's data, or --sts-file")
    data = read_sts_tasks(args.data, args.tasks, args.sts_file)
    rows, lines, results = [], [], []
    with quiet_logs():
        for encoder in iterate_encoders(args):
            result = score_sts(encoder, data, aggregation=args.aggregation)
            rows.append(_row(encoder.name, encoder.describe(), result, args.metric))
            lines.append(speed_line(encoder))
            results.append(result)
    columns = [*results[0].scores, *([AVERAGE] if len(data) > 1 else [])]
    protocol = {"metric": f"{args.metric} of the cosine x100", "aggregation": args.aggregation, "pairs": _pairs(data)}
    return finish(Report("sts", protocol, results[0].data, columns, rows), args, lines)


def _row(label: str, described: dict[str, object], result: "StsResult", metric: str) -> Row:
    scores = {task: float(getattr(score, metric)) for task, score in result.scores.items()}
    if len(scores) > 1:
        scores[AVERAGE] = result.average(metric)
    return Row(label, scores, described, details=result.to_dict()["scores"])


def _pairs(data: list[StsData]) -> dict[str, int]:
    return {task.name: len(task) for task in data}
