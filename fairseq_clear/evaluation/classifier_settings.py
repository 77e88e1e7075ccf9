"""Settings of the classifiers on frozen vectors, with presets of published protocols. Does not import torch."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from fairseq_clear.errors import UserError
from fairseq_clear.settings import check_settings, setting

__all__ = ["KINDS", "OPTIMIZERS", "PRESETS", "Classifiers", "Preset"]

KINDS = ("mlp", "logistic")
OPTIMIZERS = {"adam": "Adam", "rmsprop": "RMSprop", "sgd": "SGD"}  # flag -> class of torch.optim


@dataclass(frozen=True)
class Classifiers:
    """Kind of classifier, and how it is trained and validated. ``logistic`` uses only ``folds``.

    The help texts give SentEval's name of a setting in brackets.
    """

    kind: str = setting(
        "mlp: SentEval's network; logistic: scikit-learn's logistic regression",
        "mlp",
        flag="--classifier",
        choices=KINDS,
    )
    folds: int = setting("number of folds in cross-validation [kfold]", 10, least=2)
    hidden: int = setting("width of the hidden layer, 0 for none [nhid]", 0, least=0, metavar="D")
    optimizer: str = setting("optimizer, with torch's default settings [optim]", "adam", choices=sorted(OPTIMIZERS))
    batch_size: int = setting(
        "rows per update of the classifier [batch_size]", 64, flag="--classifier-batch-size", least=1
    )
    tenacity: int = setting(
        "evaluations without a better held-out accuracy that are tolerated, over the whole training [tenacity]",
        5,
        least=0,
    )
    epoch_size: int = setting(
        "number of passes over the training rows between two evaluations [epoch_size]", 4, least=1
    )
    max_epoch: int = setting("maximum number of passes over the training rows [max_epoch]", 200, least=1)
    dropout: float = setting("dropout probability on the hidden layer [dropout]", 0.0, metavar="P")

    def __post_init__(self) -> None:
        check_settings(self)
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
