"""The papers' hyper-parameters for fine-tuning on GLUE, and the metrics that their tables report."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class FineTuning:
    """Hyper-parameters of a task."""

    lr: float  # peak learning rate, which then decays linearly to 0
    batch_size: int  # examples per update
    epochs: int  # passes over the training split
    warmup_share: float = 0.06  # share of the updates in which the learning rate rises
    weight_decay: float = 0.1  # decoupled weight decay of Adam
    dropout: float = 0.1  # of layers, attention and classification head
    max_length: int | None = None  # maximum tokens of an input, see ``glue prepare --max-length``; None for no limit
    adam_betas: str = "(0.9, 0.98)"  # in the format of fairseq's flag
    adam_eps: float = 1e-6
    clip_norm: float = 0.0  # maximum norm of the gradient; 0 for no limit


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


# The metric of a task in the table of a recipe, by its name in fairseq's log; accuracy for all other tasks.
#   CLEAR, caption of Table 1: Matthews; MRPC, QQP mean of accuracy and F1; STS-B mean of Pearson and Spearman.
#   CERT, caption of Table 2: MRPC F1, QQP accuracy, STS-B Pearson.
METRICS: dict[str, dict[str, str]] = {
    "clear": {"CoLA": "mcc", "MRPC": "acc_and_f1", "QQP": "acc_and_f1", "STS-B": "pearson_and_spearman"},
    "cert": {"CoLA": "mcc", "MRPC": "f1", "STS-B": "pearson"},
}
# Flags with which fairseq's criterion computes them.
REPORTS: dict[str, tuple[str, ...]] = {
    "CoLA": ("--report-mcc",),
    "MRPC": ("--report-acc-and-f1",),
    "QQP": ("--report-acc-and-f1",),
    "STS-B": ("--report-pearson-and-spearman",),
}


def metric_of(recipe: str, task: str) -> str:
    """The metric that the paper of the recipe reports for a task."""
    return METRICS[recipe].get(task, "accuracy")
