"""Hyper-parameters of fine-tuning, as the papers have them, with their sources."""

from dataclasses import dataclass, replace

from fairseq_clear.errors import UserError

__all__ = ["RECIPES", "FineTuning", "choose_recipe"]


@dataclass(frozen=True)
class FineTuning:
    """Settings of one task's restarts.

    Attributes:
        learning_rate: at its highest, after the warm-up; then linearly to 0.
        batch_size: examples per update.
        epochs: over the training split.
        max_length: tokens of an input, special ones included; longer pairs lose the end of the longer text. None: what
            the model has positions for.
        warmup_share: of the updates.
        weight_decay: Adam's, decoupled.
        adam_betas: as fairseq's flag wants them.
        adam_eps: Adam's epsilon.
        clip_norm: of the gradient; 0 for none.
        dropout: everywhere: layers, attention, classification head.
    """

    learning_rate: float
    batch_size: int
    epochs: int
    max_length: int | None = None
    warmup_share: float = 0.06
    weight_decay: float = 0.1
    adam_betas: str = "(0.9, 0.98)"
    adam_eps: float = 1e-6
    clip_norm: float = 0.0
    dropout: float = 0.1

    def updates(self, examples: int) -> int:
        """Updates over all epochs; the last batch of an epoch may be smaller."""
        return self.epochs * -(-examples // self.batch_size)

    def warmup_updates(self, examples: int) -> int:
        """Updates until the learning rate is at its highest."""
        return round(self.warmup_share * self.updates(examples))


# CLEAR section 4.2 follows RoBERTa (Liu et al. 2019, table 10): those are the values in fairseq's
# examples/roberta/config/finetuning/*.yaml, less their memory limit of 4,400 tokens a batch, which splits batches of long
# pairs, and with 6 % warm-up for QQP too (its file has 25 %). WNLI is not among them and is taken as RTE.
_CLEAR: dict[str, tuple[float, int, int]] = {
    #        learning rate, batch, epochs
    "CoLA": (1e-5, 16, 10),
    "SST-2": (1e-5, 32, 10),
    "MRPC": (1e-5, 16, 10),
    "STS-B": (2e-5, 16, 10),
    "QQP": (1e-5, 32, 10),
    "MNLI": (1e-5, 32, 10),
    "QNLI": (1e-5, 32, 10),
    "RTE": (2e-5, 16, 10),
    "WNLI": (2e-5, 16, 10),
}
# CERT section 5.2; inputs of 128 tokens. What it leaves open is BERT's (Devlin et al. 2018, appendix A.2 and A.3, and its
# code): Adam with betas 0.9 and 0.999, weight decay 0.01, 10 % warm-up, gradients clipped at 1.
_CERT: dict[str, tuple[float, int, int]] = {
    "CoLA": (3e-5, 16, 20),
    "SST-2": (2e-5, 16, 4),
    "MRPC": (2e-5, 16, 15),
    "STS-B": (3e-5, 16, 10),
    "QQP": (1e-5, 16, 5),
    "MNLI": (3e-5, 16, 3),
    "QNLI": (2e-5, 16, 3),
    "RTE": (2e-5, 16, 5),
    "WNLI": (2e-5, 16, 5),
}

RECIPES: dict[str, dict[str, FineTuning]] = {
    "clear": {task: FineTuning(*values) for task, values in _CLEAR.items()},
    "cert": {
        task: FineTuning(
            *values, max_length=128, warmup_share=0.1, weight_decay=0.01, adam_betas="(0.9, 0.999)", clip_norm=1.0
        )
        for task, values in _CERT.items()
    },
}


def choose_recipe(recipe: str, task: str, **overrides: float | int | None) -> FineTuning:
    """The recipe's settings for a task, with those of ``overrides`` that are not None in their place.

    Raises:
        UserError: a value out of its range.
    """
    changes = {name: value for name, value in overrides.items() if value is not None}
    for name, value in changes.items():
        lowest = 4 if name == "max_length" else 1 if name in {"batch_size", "epochs"} else 0
        highest = 1.0 if name in {"warmup_share", "dropout"} else float("inf")
        if not lowest <= value <= highest:
            flag = "lr" if name == "learning_rate" else name.replace("_", "-")
            most = f", at most {highest:g}" if highest < float("inf") else ""
            raise UserError(f"--{flag} {value}: must be {lowest} or more{most}")
    return replace(RECIPES[recipe][task], **changes)  # type: ignore[arg-type]
