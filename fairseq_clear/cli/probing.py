"""``fairseq-clear probing``: what linguistic properties a linear classifier finds in a vector."""

import argparse

from fairseq_clear.cli.evaluation import add_encoder_arguments
from fairseq_clear.cli.senteval import add_task_arguments, run
from fairseq_clear.evaluation.senteval_data import PROBING_TASKS

__all__ = ["add_arguments", "run"]

DESCRIPTION = """\
SentEval's ten probing tasks (Conneau et al. 2018, arXiv:1805.01070): accuracy x100 of a classifier on frozen vectors. The dev
split chooses its regularisation. WordContent never has a hidden layer, as SentEval prescribes."""

EPILOG = """\
example:
  fairseq-clear probing --data SentEval/data --encoder checkpoint_best.pt --data-bin data-bin --preset logistic"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    add_task_arguments(parser, tuple(PROBING_TASKS))
    add_encoder_arguments(parser)
