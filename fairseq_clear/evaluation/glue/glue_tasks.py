"""The tasks of GLUE (Wang et al. 2018, arXiv:1804.07461), readers of their tsv files, and the papers' fine-tuning recipes."""

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from fairseq_clear.errors import UserError
from fairseq_clear.files import read_text_lines

_MNLI_SPLITS = {"train": "train.tsv", "valid": "dev_matched.tsv", "valid1": "dev_mismatched.tsv"}
MOST_DROPPED = 10  # malformed lines of a file, or 1 % of its lines if those are more
_BINARY, _ENTAILMENT = ("0", "1"), ("entailment", "not_entailment")
_PAIR, _COLA = ("sentence1", "sentence2"), ("source", "label", "mark", "sentence")


@dataclass(frozen=True)
class GlueTask:
    """A task of GLUE."""

    name: str  # name on GLUE's leaderboard
    columns: tuple[str, ...]  # names, of the one or two texts
    label: str  # name of the column of the label
    labels: tuple[str, ...]  # labels in the order of their class ids; empty if a score is predicted (STS-B)
    # fairseq's name of a split -> file; ``valid1`` is the mismatched dev set of MNLI
    splits: dict[str, str] = field(default_factory=lambda: {"train": "train.tsv", "valid": "dev.tsv"})
    header: tuple[str, ...] | None = None  # names of the columns of files without a header
    maximum_score: ClassVar[float] = 5.0  # models are trained on scores / 5, as in fairseq's preprocess_GLUE_tasks.sh

    def dev_columns(self) -> dict[str, str]:
        """The splits to score, and the name of each in a table."""
        return {"valid": "MNLI-m", "valid1": "MNLI-mm"} if "valid1" in self.splits else {"valid": self.name}

    def is_label(self, text: str) -> bool:
        """Whether a cell holds a label or score of this task."""
        with suppress(ValueError):
            return text in self.labels if self.labels else 0 <= float(text) <= self.maximum_score
        return False


GLUE_TASKS: dict[str, GlueTask] = {
    task.name: task
    for task in (
        GlueTask("CoLA", ("sentence",), "label", _BINARY, header=_COLA),
        GlueTask("SST-2", ("sentence",), "label", _BINARY),
        GlueTask("MRPC", ("#1 String", "#2 String"), "Quality", _BINARY),
        GlueTask("STS-B", _PAIR, "score", ()),
        GlueTask("QQP", ("question1", "question2"), "is_duplicate", _BINARY),
        GlueTask("MNLI", _PAIR, "gold_label", ("contradiction", "entailment", "neutral"), _MNLI_SPLITS),
        GlueTask("QNLI", ("question", "sentence"), "label", _ENTAILMENT),
        GlueTask("RTE", _PAIR, "label", _ENTAILMENT),
        GlueTask("WNLI", _PAIR, "label", _BINARY),
    )
}


def read_examples(glue_dir: Path, task: GlueTask, split: str) -> tuple[list[list[str]], list[str], int]:
    """Read the file of one split, ``glue_dir/TASK/FILE``. Quotes have no special meaning; a text may be empty.

    Returns:
        One list of N texts for each of the one or two inputs; N labels, or scores as text; number of malformed lines, which are
        left out (QQP's file has some).

    Raises:
        UserError: a missing file or column, no well-formed line, or more than MOST_DROPPED and 1 % malformed ones.
    """
    path = glue_dir / task.name / task.splits[split]
    lines = [[cell.strip() for cell in line.split("\t")] for line in read_text_lines(path)]
    names = task.header or (lines.pop(0) if lines else [])
    wanted = (*task.columns, task.label)
    if missing := [name for name in wanted if name not in names]:
        raise UserError(f"{path}:1: the header has no column {missing[0]!r}; is this {task.name}?")
    rows = [[cells[names.index(name)] for name in wanted] for cells in lines if len(cells) == len(names)]
    rows = [row for row in rows if task.is_label(row[-1])]
    if not rows:
        raise UserError(f"{path}: holds no well-formed example; is this {task.name}?")
    dropped = len(lines) - len(rows)
    if dropped > max(MOST_DROPPED, len(lines) // 100):
        raise UserError(
            f"{path}: {dropped} of {len(lines)} lines are no example of {task.name}; check columns and labels"
        )
    *texts, labels = (list(column) for column in zip(*rows, strict=True))
    return texts, labels, dropped


@dataclass(frozen=True)
class FineTuning:
    """Hyper-parameters of a task."""

    lr: float  # peak learning rate, which then decays linearly to 0
    batch_size: int  # examples per update
    epochs: int  # passes over the training split
    warmup_share: float = 0.06  # share of the updates in which the learning rate rises
    weight_decay: float = 0.1  # decoupled weight decay of Adam
    dropout: float = 0.1  # of layers, attention and classification head
    max_length: int | None = None  # maximum tokens of an input; None for no limit
    adam_betas: str = "(0.9, 0.98)"
    adam_eps: float = 1e-6
    clip_norm: float = 0.0  # maximum norm of the gradient; 0 for no limit


# CLEAR section 4.2 follows RoBERTa (Liu et al. 2019, table 10): those are the values in fairseq's
# examples/roberta/config/finetuning/*.yaml, without their limit of 4,400 tokens per batch, which splits batches of long
# pairs, with 6 % warm-up for QQP too (its file has 25 %), and with 10 % dropout in the head too (they have none there). There
# is no file for WNLI, which uses the values of RTE.
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
#   CERT, caption of Table 2: MRPC F1, QQP accuracy, STS-B Pearson. fairseq computes them with CLEAR's metrics.
METRICS: dict[str, dict[str, str]] = {
    "clear": {"CoLA": "mcc", "MRPC": "acc_and_f1", "QQP": "acc_and_f1", "STS-B": "pearson_and_spearman"},
    "cert": {"CoLA": "mcc", "MRPC": "f1", "STS-B": "pearson"},
}


def metric_of(recipe: str, task: str) -> str:
    """The metric that the paper of the recipe reports for a task."""
    return METRICS[recipe].get(task, "accuracy")
