"""The classifiers of SentEval on frozen vectors, on any device's CPU.

Conneau and Kiela 2018 (arXiv:1803.05449). Two kinds: scikit-learn's logistic regression, and the toolkit's own network of
at most one hidden layer, which stops early on held-out accuracy. Vectors are not scaled, as in SentEval.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.classifier_settings import OPTIMIZERS, Classifiers

__all__ = ["Classifier", "make_classifier", "torch_seed"]

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]
HELD_OUT = 0.05  # share of the training rows that the final fit of the network stops on, where there is no dev split
MOST_ITERATIONS = 1000  # of scikit-learn's solver; its default of 100 does not converge on unscaled vectors


class Classifier(Protocol):
    """Fits on rows (N, D) with labels (N,) from 0, and predicts."""

    def fit(self, rows: Floats, labels: Labels, held_out: tuple[Floats, Labels] | None = None) -> None:
        """Train; ``held_out`` decides when the network stops."""

    def predict(self, rows: Floats) -> Labels:
        """Labels (N,)."""


def make_classifier(settings: Classifiers, classes: int, regularization: float, seed: int) -> Classifier:
    """A classifier to fit: ``regularization`` is Adam's L2 weight decay, or scikit-learn's inverse strength C."""
    if settings.kind == "logistic":
        return _Logistic(regularization, seed)
    return _Network(settings, classes, regularization, seed)


class _Logistic:
    """scikit-learn's multinomial logistic regression."""

    def __init__(self, regularization: float, seed: int) -> None:
        try:
            from sklearn.linear_model import LogisticRegression
        except ImportError:
            raise UserError("scikit-learn is not installed; pip install 'fairseq_clear[eval]'") from None
        self.model = LogisticRegression(C=regularization, random_state=seed, max_iter=MOST_ITERATIONS)

    def fit(self, rows: Floats, labels: Labels, held_out: tuple[Floats, Labels] | None = None) -> None:
        self.model.fit(rows, labels)

    def predict(self, rows: Floats) -> Labels:
        predicted: Labels = self.model.predict(rows)
        return predicted


class _Network:
    """SentEval's classifier: linear, or linear - dropout - sigmoid - linear, with cross-entropy, the mean over a batch."""

    def __init__(self, settings: Classifiers, classes: int, regularization: float, seed: int) -> None:
        self.settings, self.classes, self.regularization, self.seed = settings, classes, regularization, seed
        self.model: nn.Module = nn.Identity()

    def fit(self, rows: Floats, labels: Labels, held_out: tuple[Floats, Labels] | None = None) -> None:
        settings = self.settings
        order = np.random.RandomState(self.seed)  # SentEval's generator: same seed, same order of rows
        if held_out is None:
            mixed = order.permutation(len(rows))
            count = int(HELD_OUT * len(rows))
            held_out = rows[mixed[:count]], labels[mixed[:count]]
            rows, labels = rows[mixed[count:]], labels[mixed[count:]]
        inputs, targets = torch.from_numpy(np.ascontiguousarray(rows)), torch.from_numpy(labels)
        with torch_seed(self.seed):
            self.model = self._build(rows.shape[1])
            optimizer = getattr(torch.optim, OPTIMIZERS[settings.optimizer])(
                self.model.parameters(),
                weight_decay=self.regularization,
                **({"lr": 0.1} if settings.optimizer == "sgd" else {}),
            )
            best, best_accuracy, failures, epochs = self.model, -1.0, 0, 0
            while epochs <= settings.max_epoch:
                for _ in range(settings.epoch_size):
                    self._pass_over(inputs, targets, order.permutation(len(rows)), optimizer)
                epochs += settings.epoch_size
                accuracy = float((self.predict(held_out[0]) == held_out[1]).mean()) if len(held_out[1]) else 0.0
                if accuracy > best_accuracy:
                    best, best_accuracy = copy.deepcopy(self.model), accuracy
                else:
                    # counted over the whole training, not since the last success: SentEval does the same
                    if failures >= settings.tenacity:
                        break
                    failures += 1
        self.model = best

    def predict(self, rows: Floats) -> Labels:
        self.model.eval()
        with torch.no_grad():
            predicted: Labels = self.model(torch.from_numpy(np.ascontiguousarray(rows))).argmax(dim=1).numpy()
        return predicted

    def _build(self, dimension: int) -> nn.Module:
        hidden = self.settings.hidden
        if not hidden:
            return nn.Sequential(nn.Linear(dimension, self.classes))
        return nn.Sequential(
            nn.Linear(dimension, hidden),
            nn.Dropout(self.settings.dropout),
            nn.Sigmoid(),
            nn.Linear(hidden, self.classes),
        )

    def _pass_over(
        self, inputs: Tensor, targets: Tensor, order: npt.NDArray[np.int64], optimizer: torch.optim.Optimizer
    ) -> None:
        self.model.train()
        for rows in torch.from_numpy(order).split(self.settings.batch_size):
            loss = nn.functional.cross_entropy(self.model(inputs[rows]), targets[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@contextmanager
def torch_seed(seed: int) -> Iterator[None]:
    """Initial weights and dropout from this seed; the caller's generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
