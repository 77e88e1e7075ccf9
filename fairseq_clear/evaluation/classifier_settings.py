"""Settings of the classifiers on frozen vectors, with presets of published protocols. Does not import torch."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from fairseq_clear.errors import UserError

__all__ = ["KINDS", "OPTIMIZERS", "PRESETS", "Classifiers", "Preset"]

KINDS = ("mlp", "logistic")
OPTIMIZERS = {"adam": "Adam", "rmsprop": "RMSprop", "sgd": "SGD"}  # flag -> class of torch.optim


@dataclass(frozen=True)
class Classifiers:
    """Settings of a classifier; SentEval's names in brackets.

    Attributes:
        kind: ``mlp`` or ``logistic``; ``logistic`` reads ``folds`` only.
        folds: number of folds of cross-validation [kfold].
        hidden: width of the hidden layer; 0 for none, which is logistic regression too [nhid].
        optimizer: adam, rmsprop or sgd with torch's default settings [optim].
        batch_size: rows per step [batch_size].
        tenacity: training ends after this many evaluations without a better held-out accuracy [tenacity].
        epoch_size: passes over the training rows between two evaluations [epoch_size].
        max_epoch: maximum number of passes [max_epoch].
        dropout: on the hidden layer [dropout].
    """

    kind: str = "mlp"
    folds: int = 10
    hidden: int = 0
    optimizer: str = "adam"
    batch_size: int = 64
    tenacity: int = 5
    epoch_size: int = 4
    max_epoch: int = 200
    dropout: float = 0.0

    def __post_init__(self) -> None:
        lowest = {"folds": 2, "hidden": 0, "batch_size": 1, "tenacity": 0, "epoch_size": 1, "max_epoch": 1}
        for name, least in lowest.items():
            if getattr(self, name) < least:
                flag = "classifier-batch-size" if name == "batch_size" else name.replace("_", "-")
                raise UserError(f"--{flag} {getattr(self, name)}: must be {least} or more")
        if self.kind not in KINDS:
            raise UserError(f"--classifier {self.kind}: valid are {', '.join(KINDS)}")
        if self.optimizer not in OPTIMIZERS:
            raise UserError(f"--optimizer {self.optimizer}: valid are {', '.join(OPTIMIZERS)}")
        if not 0 <= self.dropout < 1:
            raise UserError(f"--dropout {self.dropout}: must be 0 or more and below 1")

    def describe(self) -> dict[str, Any]:
        """The settings for a report, without those that the kind does not read."""
        if self.kind == "logistic":
            return {"classifier": "logistic (scikit-learn, lbfgs)", "folds": self.folds}
        described = asdict(self)
        return {"classifier": described.pop("kind"), **described}

    def without_hidden(self) -> "Classifiers":
        """A copy without a hidden layer, which SentEval uses for WordContent."""
        return replace(self, hidden=0)


@dataclass(frozen=True)
class Preset:
    """Settings of a published protocol, and its seeds."""

    classifiers: Classifiers
    seeds: tuple[int, ...]


PRESETS: dict[str, Preset] = {
    # SentEval's README: the settings of its published tables
    "senteval": Preset(Classifiers(), (1111,)),
    # SimCSE evaluation.py --mode test: equal to SentEval's
    "simcse": Preset(Classifiers(), (1111,)),
    # Kim et al. 2021, appendix A.3, table 9
    "self-guided": Preset(Classifiers(hidden=50), (1, 2, 3, 4, 1234, 2345, 3456, 7890)),
    # SentEval with usepytorch=False
    "logistic": Preset(Classifiers(kind="logistic"), (1111,)),
    # SentEval's prototyping configuration, SimCSE's --mode dev and fasttest: faster and lower
    "prototype": Preset(Classifiers(folds=5, optimizer="rmsprop", batch_size=128, tenacity=3, epoch_size=2), (1111,)),
}
