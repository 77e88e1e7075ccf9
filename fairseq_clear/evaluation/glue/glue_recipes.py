"""The papers' hyper-parameters for fine-tuning on GLUE, and the metrics that their tables report."""

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fairseq_clear.evaluation.glue.glue_tasks import GlueTask
from fairseq_clear.libraries import import_library
from fairseq_clear.settings import check_settings, setting

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FineTuning:
    """Hyper-parameters of a task. Those with a help text are flags of ``glue run``, which replace the recipe's."""

    learning_rate: float = setting("peak learning rate, which then decays linearly to 0", least=0, flag="--lr")
    batch_size: int = setting("examples per update", least=1)
    epochs: int = setting("passes over the training split", least=1)
    max_length: int | None = setting(
        "maximum tokens of an input, special ones included; longer pairs lose the end of the longer text", None, least=4
    )
    warmup_share: float = setting("share of the updates in which the learning rate rises", 0.06, least=0, most=1)
    weight_decay: float = setting("decoupled weight decay of Adam", 0.1, least=0)
    dropout: float = setting("dropout of layers, attention and classification head", 0.1, least=0, most=1)
    adam_betas: str = "(0.9, 0.98)"  # in the format of fairseq's flag
    adam_eps: float = 1e-6
    clip_norm: float = 0.0  # maximum norm of the gradient; 0 for no limit

    def updates(self, examples: int) -> int:
        """Updates over all epochs; the last batch of an epoch may be smaller."""
        return self.epochs * -(-examples // self.batch_size)

    def warmup_updates(self, examples: int) -> int:
        """Updates of the warm-up."""
        return round(self.warmup_share * self.updates(examples))


# CLEAR section 4.2 follows RoBERTa (Liu et al. 2019, table 10): those are the values in fairseq's
# examples/roberta/config/finetuning/*.yaml, without their limit of 4,400 tokens per batch, which splits batches of long
# pairs, and with 6 % warm-up for QQP too (its file has 25 %). There is no file for WNLI, which uses the values of RTE.
# CERT section 5.2; inputs of 128 tokens. Everything else is BERT's (Devlin et al. 2018, appendix A.2 and A.3, and its
# code): Adam with betas 0.9 and 0.999, weight decay 0.01, 10 % warm-up, gradients clipped at 1.
_TABLE: dict[str, tuple[float, int, float, int]] = {
    #        CLEAR: learning rate, batch; CERT: learning rate, epochs
    "CoLA": (1e-5, 16, 3e-5, 20),
    "SST-2": (1e-5, 32, 2e-5, 4),
    "MRPC": (1e-5, 16, 2e-5, 15),
    "STS-B": (2e-5, 16, 3e-5, 10),
    "QQP": (1e-5, 32, 1e-5, 5),
    "MNLI": (1e-5, 32, 3e-5, 3),
    "QNLI": (1e-5, 32, 2e-5, 3),
    "RTE": (2e-5, 16, 2e-5, 5),
    "WNLI": (2e-5, 16, 2e-5, 5),
}
_BERT: dict[str, Any] = {"warmup_share": 0.1, "weight_decay": 0.01, "adam_betas": "(0.9, 0.999)", "clip_norm": 1.0}
RECIPES: dict[str, dict[str, FineTuning]] = {
    "clear": {task: FineTuning(rate, batch, epochs=10) for task, (rate, batch, _, _) in _TABLE.items()},
    "cert": {
        task: FineTuning(rate, 16, epochs, max_length=128, **_BERT) for task, (_, _, rate, epochs) in _TABLE.items()
    },
}


def choose_recipe(recipe: str, task: str, **changes: float) -> FineTuning:
    """Return the hyper-parameters of a task, with the changed ones; UserError if a value is out of range."""
    settings = replace(RECIPES[recipe][task], **changes)  # type: ignore[arg-type]
    check_settings(settings)
    return settings


# The metric of a task in the table of a recipe; accuracy for all other tasks.
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


def headline(recipe: str, task: str) -> str:
    """The metric that the paper of the recipe reports for a task."""
    return HEADLINE[recipe].get(task, "accuracy")


def measure(task: GlueTask, predicted: "npt.NDArray[np.generic]", gold: "npt.NDArray[np.generic]") -> dict[str, float]:
    """Compute every metric that GLUE uses for a task, x100.

    A constant prediction scores 0 in Matthews' correlation, Pearson and Spearman (for STS-B with a warning), because a failed
    restart is a result, not an error.

    Args:
        task: determines the metrics.
        predicted: (N,) class ids, or scores for STS-B.
        gold: (N,) likewise.
    """
    stats, metrics = (import_library(name, "eval") for name in ("scipy.stats", "sklearn.metrics"))
    if task.is_regression:
        pairs = (predicted.astype(float), gold.astype(float))
        if any((values == values[0]).all() for values in pairs):
            logger.warning(
                "%s: all predicted scores are equal, so the correlations are undefined; counted as 0", task.name
            )
            return dict.fromkeys(("pearson", "spearman", "pearson_and_spearman"), 0.0)
        pearson, spearman = (100 * float(metric(*pairs)[0]) for metric in (stats.pearsonr, stats.spearmanr))
        return {"pearson": pearson, "spearman": spearman, "pearson_and_spearman": (pearson + spearman) / 2}
    accuracy = 100 * float(metrics.accuracy_score(gold, predicted))
    if task.name == "CoLA":
        return {"matthews": 100 * float(metrics.matthews_corrcoef(gold, predicted)), "accuracy": accuracy}
    if task.name in {"MRPC", "QQP"}:
        f1 = 100 * float(metrics.f1_score(gold, predicted, pos_label=task.labels.index("1"), zero_division=0))
        return {"accuracy": accuracy, "f1": f1, "accuracy_and_f1": (accuracy + f1) / 2}
    return {"accuracy": accuracy}
