"""SentEval's three ways of choosing the regularisation and of testing (senteval/tools/validation.py)."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.classifier_settings import Classifiers
from fairseq_clear.evaluation.classifiers import Floats, Labels, make_classifier

__all__ = ["Fit", "cross_validate", "nested_cross_validate", "split_validate"]

Rows = tuple[Floats, Labels]
Fold = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
# SentEval shuffles the folds of nested cross-validation by this seed whatever the run's own
NESTED_SEED = 1111
WEIGHT_DECAYS = tuple(10.0**power for power in range(-5, -1))
INVERSE_STRENGTHS = tuple(2.0**power for power in range(-2, 4))
INVERSE_STRENGTHS_OF_FOLDS = tuple(2.0**power for power in range(-1, 6))


@dataclass(frozen=True)
class Fit:
    """Accuracies x100, rounded to two decimals as SentEval rounds them.

    Attributes:
        dev: on what chose the regularisation.
        test: on the test rows; for nested cross-validation the mean over its folds.
        chosen: regularisation; one for each fold of nested cross-validation.
        predicted: (N,) labels of the test rows; empty for nested cross-validation.
    """

    dev: float
    test: float
    chosen: tuple[float, ...]
    predicted: Labels


def nested_cross_validate(rows: Rows, classes: int, settings: Classifiers, seed: int) -> Fit:
    """For data without a test split (MR, CR, SUBJ, MPQA): within each fold's training rows, folds choose again."""
    inputs, labels = rows
    grid = WEIGHT_DECAYS if settings.kind == "mlp" else INVERSE_STRENGTHS
    dev, test, chosen = [], [], []
    for train, held in _folds(inputs, labels, settings.folds, NESTED_SEED):
        inner, answers = inputs[train], labels[train]
        best, score = _choose(inner, answers, classes, settings, seed, grid, NESTED_SEED)
        model = make_classifier(settings, classes, best, seed)
        model.fit(inner, answers)
        dev.append(score)
        test.append(_percent(model.predict(inputs[held]) == labels[held]))
        chosen.append(best)
    empty = np.zeros(0, np.int64)
    return Fit(round(float(np.mean(dev)), 2), round(float(np.mean(test)), 2), tuple(chosen), empty)


def cross_validate(train: Rows, test: Rows, classes: int, settings: Classifiers, seed: int) -> Fit:
    """For data without a dev split (TREC, MRPC): folds of the training rows choose, shuffled by ``seed``."""
    grid = WEIGHT_DECAYS if settings.kind == "mlp" else INVERSE_STRENGTHS_OF_FOLDS
    best, score = _choose(*train, classes, settings, seed, grid, seed)
    model = make_classifier(settings, classes, best, seed)
    model.fit(*train)
    predicted = model.predict(test[0])
    return Fit(score, _percent(predicted == test[1]), (best,), predicted)


def split_validate(
    train: Rows, dev: Rows, test: Rows, classes: int, settings: Classifiers, seed: int, *, regularize: bool = True
) -> Fit:
    """For data with three splits (SST, SICK-E, SNLI, probing): the dev rows choose, and stop the network.

    Args:
        train: (N, D) vectors and (N,) labels.
        dev: likewise.
        test: likewise.
        classes: number of labels.
        settings: see ``Classifiers``.
        seed: of the classifier.
        regularize: False for hardly any, which SentEval prescribes for SNLI.
    """
    if settings.kind == "mlp":
        grid = WEIGHT_DECAYS if regularize else (1e-9,)
    else:
        grid = INVERSE_STRENGTHS if regularize else (1e9,)
    scores, models = [], []
    for strength in grid:
        model = make_classifier(settings, classes, strength, seed)
        model.fit(*train, held_out=dev)
        scores.append(_percent(model.predict(dev[0]) == dev[1]))
        models.append(model)
    best = int(np.argmax(scores))
    # SentEval fits once more with the same seed and rows, which gives this very model
    predicted = models[best].predict(test[0])
    return Fit(scores[best], _percent(predicted == test[1]), (grid[best],), predicted)


def _choose(
    inputs: Floats,
    labels: Labels,
    classes: int,
    settings: Classifiers,
    seed: int,
    grid: tuple[float, ...],
    fold_seed: int,
) -> tuple[float, float]:
    """The regularisation with the best mean accuracy over folds, the first of equals; and that accuracy x100."""
    scores = []
    folds = list(_folds(inputs, labels, settings.folds, fold_seed))
    for strength in grid:
        accuracies = []
        for train, held in folds:
            model = make_classifier(settings, classes, strength, seed)
            model.fit(inputs[train], labels[train], held_out=(inputs[held], labels[held]))
            accuracies.append((model.predict(inputs[held]) == labels[held]).mean())
        scores.append(round(100 * float(np.mean(accuracies)), 2))
    best = int(np.argmax(scores))
    return grid[best], scores[best]


def _folds(inputs: Floats, labels: Labels, count: int, seed: int) -> Iterable[Fold]:
    try:
        from sklearn.model_selection import StratifiedKFold
    except ImportError:
        raise UserError("scikit-learn is not installed; pip install 'fairseq_clear[eval]'") from None
    fewest = int(np.bincount(labels)[np.unique(labels)].min())
    if fewest < count:
        raise UserError(f"--folds {count}: a class has only {fewest} training rows; give fewer folds")
    return StratifiedKFold(n_splits=count, shuffle=True, random_state=seed).split(inputs, labels)


def _percent(is_right: npt.NDArray[np.bool_]) -> float:
    return round(100 * float(np.mean(is_right)), 2)
