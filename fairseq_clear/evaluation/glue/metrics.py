"""GLUE's metrics, from predictions; every number x100."""

import logging
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from fairseq_clear.evaluation.correlation import UndefinedCorrelation, pearson, spearman
from fairseq_clear.evaluation.glue.tasks import GlueTask

__all__ = ["HEADLINE", "measure"]

logger = logging.getLogger(__name__)

Ids = npt.NDArray[np.int64]
Doubles = npt.NDArray[np.float64]

# Which of the measured numbers a recipe's table shows; every other task: accuracy.
#   CLEAR, caption of Table 1: Matthews; MRPC, QQP mean of accuracy and F1; STS-B mean of Pearson and Spearman.
#   CERT, caption of Table 2: MRPC F1, QQP accuracy, STS-B Pearson.
HEADLINE: dict[str, dict[str, str]] = {
    "clear": {
        "CoLA": "matthews",
        "MRPC": "accuracy_and_f1",
        "QQP": "accuracy_and_f1",
        "STS-B": "pearson_and_spearman",
    },
    "cert": {"CoLA": "matthews", "MRPC": "f1", "STS-B": "pearson"},
}


def measure(task: GlueTask, predicted: npt.NDArray[np.generic], gold: npt.NDArray[np.generic]) -> dict[str, float]:
    """Every metric that GLUE has for the task.

    Args:
        task: decides which.
        predicted: (N,) class ids, or scores for STS-B.
        gold: (N,) likewise.

    Returns:
        name -> number x100.
    """
    if task.is_regression:
        first, second = (_defined(metric, predicted, gold, task.name) for metric in (pearson, spearman))
        return {"pearson": first, "spearman": second, "pearson_and_spearman": (first + second) / 2}
    ids, truth = predicted.astype(np.int64), gold.astype(np.int64)
    accuracy = 100 * float((ids == truth).mean())
    if task.name == "CoLA":
        return {"matthews": 100 * matthews(ids, truth), "accuracy": accuracy}
    if task.name in {"MRPC", "QQP"}:
        f1 = 100 * f1_score(ids, truth, positive=task.labels.index("1"))
        return {"accuracy": accuracy, "f1": f1, "accuracy_and_f1": (accuracy + f1) / 2}
    return {"accuracy": accuracy}


def matthews(predicted: Ids, gold: Ids) -> float:
    """Matthews' correlation of two binary labellings (N,) of 0 and 1; 0 where one of them is constant."""
    x, y = predicted - predicted.mean(), gold - gold.mean()
    scale = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / scale if scale else 0.0


def f1_score(predicted: Ids, gold: Ids, positive: int) -> float:
    """Harmonic mean of precision and recall of the class ``positive``; 0 where it is neither predicted nor there."""
    hits = int(((predicted == positive) & (gold == positive)).sum())
    total = int((predicted == positive).sum() + (gold == positive).sum())
    return 2 * hits / total if total else 0.0


def _defined(
    metric: Callable[..., float], predicted: npt.NDArray[np.generic], gold: npt.NDArray[np.generic], name: str
) -> float:
    """The correlation x100; 0 where all predictions are the same: a restart that failed is a result, not an error."""
    try:
        return 100 * metric(predicted.astype(np.float64), gold.astype(np.float64), where=name)
    except UndefinedCorrelation as error:
        logger.warning("%s; counted as 0", error)
        return 0.0
