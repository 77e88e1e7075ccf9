"""``fairseq-clear senteval``: classifiers on frozen vectors. ``fairseq-clear probing`` is the same on other tasks."""

import argparse
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_clear.cli.console import quiet_logs
from fairseq_clear.cli.evaluation import add_encoder_arguments, check_arguments, finish, iterate_encoders, speed_line
from fairseq_clear.evaluation.classifier_settings import KINDS, OPTIMIZERS, PRESETS, Classifiers
from fairseq_clear.evaluation.reports import Report, Row
from fairseq_clear.evaluation.senteval_data import DOWNSTREAM_TASKS, PROBING_TASKS

if TYPE_CHECKING:
    from fairseq_clear.evaluation.senteval import SentEvalResult

DESCRIPTION = """\
SentEval: train a classifier on frozen sentence vectors and test it, x100.

MR, CR, SUBJ, MPQA: nested cross-validation. TREC, MRPC: cross-validation on the training split. SST2, SST5, SICK-E, SNLI and
the probing tasks: their dev split chooses. SICK-R, STS-B: SentEval's regressor, Spearman. STS12-16: no training, the mean of
the subsets' Spearman correlations. Pairs are [|u-v|, u*v] ([u, v, u*v, |u-v|] for SNLI). Averages as DeCLUTR's Table 1.
Image-caption retrieval: fairseq-clear captions."""

EPILOG = """\
examples:
  fairseq-clear senteval --data SentEval/data --encoder checkpoint_best.pt --data-bin data-bin --pooling mean
  fairseq-clear senteval --data SentEval/data --tasks all --preset logistic --encoder my_package.encoders:make
  fairseq-clear senteval --data SentEval/data --tasks MR TREC --preset self-guided --encoder ck.pt --data-bin data-bin"""

ALL = "all"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    add_task_arguments(parser, DOWNSTREAM_TASKS)
    add_encoder_arguments(parser)


def add_task_arguments(parser: argparse.ArgumentParser, default_tasks: Sequence[str]) -> None:
    """Data, tasks, classifier and seeds; every default of the classifier is the preset's."""
    parser.set_defaults(default_tasks=tuple(default_tasks))
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="SentEval's data folder")
    parser.add_argument(
        "--tasks", nargs="+", metavar="TASK",
        help=f"of {', '.join([*DOWNSTREAM_TASKS, *PROBING_TASKS])}, or {ALL} for those that DIR has (default: those of "
        f"{', '.join(default_tasks)} that DIR has)",
    )  # fmt: skip
    parser.add_argument(
        "--split",
        choices=("test", "dev"),
        default="test",
        help="in the table; the report has both (default: %(default)s)",
    )
    parser.add_argument("--seeds", nargs="+", type=int, metavar="N", help="of the classifiers (default: the preset's)")
    group = parser.add_argument_group("classifier (default: the preset's)")
    group.add_argument(
        "--preset", choices=sorted(PRESETS), default="senteval",
        help="senteval and simcse: SentEval's network without hidden layer, 10 folds, adam; self-guided: hidden layer of 50, "
        "8 seeds; logistic: scikit-learn; prototype: SentEval's fast setting, SimCSE's dev mode (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--classifier", dest="kind", choices=KINDS, help="network, or scikit-learn's logistic regression"
    )
    group.add_argument("--folds", type=int, metavar="N", help="of cross-validation")
    group.add_argument("--hidden", type=int, metavar="D", help="width of the hidden layer, 0 for none")
    group.add_argument("--optimizer", choices=sorted(OPTIMIZERS))
    group.add_argument("--classifier-batch-size", dest="classifier_batch_size", type=int, metavar="N")
    group.add_argument("--tenacity", type=int, metavar="N", help="evaluations without progress before it stops")
    group.add_argument("--epoch-size", type=int, metavar="N", help="passes over the data between evaluations")
    group.add_argument("--max-epoch", type=int, metavar="N", help="most passes")
    group.add_argument("--dropout", type=float, metavar="P", help="on the hidden layer")


def run(args: argparse.Namespace) -> int:
    """Evaluate every encoder, print the table, return 0."""
    check_arguments(args)
    from fairseq_clear.evaluation.senteval import find_tasks, read_tasks, score_senteval

    classifiers = _classifiers(args)
    seeds = tuple(args.seeds or PRESETS[args.preset].seeds)
    wanted = args.tasks or list(args.default_tasks)
    if args.tasks == [ALL]:
        wanted = [*DOWNSTREAM_TASKS, *PROBING_TASKS]
    is_open = args.tasks is None or args.tasks == [ALL]
    data = read_tasks(args.data, find_tasks(args.data, wanted) if is_open else wanted)
    rows, lines, results = [], [], []
    with quiet_logs():
        for encoder in iterate_encoders(args):
            result = score_senteval(encoder, data, classifiers, seeds)
            rows.append(_row(encoder.name, encoder.describe(), result, args.split))
            lines.append(speed_line(encoder))
            results.append(result)
    columns = list(dict.fromkeys(column for row in rows for column in row.scores))
    protocol = {"split": args.split, "preset": args.preset, **classifiers.describe()}
    return finish(Report(args.command, protocol, results[0].data, columns, rows, seeds), args, lines)


def _classifiers(args: argparse.Namespace) -> Classifiers:
    given = {name.name: getattr(args, name.name) for name in fields(Classifiers) if name.name != "batch_size"}
    given["batch_size"] = args.classifier_batch_size
    return replace(
        PRESETS[args.preset].classifiers, **{name: value for name, value in given.items() if value is not None}
    )


def _row(label: str, described: dict[str, object], result: "SentEvalResult", split: str) -> Row:
    means = {task: result.mean(task, split) for task in result.scores}
    scores = {task: mean for task, mean in means.items() if mean is not None}
    spreads = {task: result.deviation(task, split) for task in scores}
    if len(scores) > 1:
        scores |= result.summary(split)
    details = {key: value for key, value in result.to_dict().items() if key in ("scores", "summary")}
    return Row(label, scores, described, {task: value for task, value in spreads.items() if value is not None}, details)
