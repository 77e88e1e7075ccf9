"""SentEval's classifiers and its regressor of similarity scores, with its validation (Conneau and Kiela 2018).

There are two classifiers on frozen vectors: scikit-learn's logistic regression, and SentEval's own network with at most one
hidden layer and early stopping. As in SentEval (arXiv:1803.05449), vectors are not scaled, and everything runs on the CPU.
"""

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.senteval_data import OPTIMIZERS, Classifiers
from fairseq_clear.evaluation.sts import Doubles, UndefinedCorrelation, pearson, spearman
from fairseq_clear.libraries import import_library

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]
Rows = tuple[Floats, Labels]
Scored = tuple[Floats, Doubles]  # features (N, D) and scores (N,)
Predict = Callable[[Floats], Labels]
Fold = tuple[Labels, Labels]
HELD_OUT = 0.05  # without a dev split, this share of the training rows stops the final fit of the network
MOST_ITERATIONS = 1000  # of scikit-learn's solver, whose default of 100 does not converge on unscaled vectors
# SentEval always shuffles the folds of nested cross-validation with this seed.
NESTED_SEED = 1111
WEIGHT_DECAYS = tuple(10.0**power for power in range(-5, -1))
INVERSE_STRENGTHS = tuple(2.0**power for power in range(-2, 4))
INVERSE_STRENGTHS_OF_FOLDS = tuple(2.0**power for power in range(-1, 6))
LEVELS = 5  # of a similarity score
REGRESSOR = Classifiers(batch_size=64, epoch_size=50, max_epoch=1000, tenacity=3)


def fit_classifier(
    settings: Classifiers, classes: int, regularization: float, seed: int, train: Rows, held_out: Rows | None = None
) -> Predict:
    """Train a classifier; return a function of rows (N, D) that predicts their labels (N,).

    Args:
        regularization: the network's weight decay, or the inverse strength C of scikit-learn's logistic regression.
        train: vectors (N, D) and their labels (N,) from 0.
        held_out: likewise; the network stops early on the accuracy on them.
    """
    if settings.kind == "logistic":
        kind = import_library("sklearn.linear_model", "eval").LogisticRegression
        return kind(C=regularization, random_state=seed, max_iter=MOST_ITERATIONS).fit(*train).predict
    return partial(_predict_labels, fit_network(settings, classes, regularization, seed, train, held_out))


def fit_network(
    settings: Classifiers, classes: int, weight_decay: float, seed: int, train: Rows, held_out: Rows | None = None
) -> nn.Module:
    """SentEval's network: linear, or linear - dropout - sigmoid - linear, trained with cross-entropy."""
    order = np.random.RandomState(seed)  # SentEval's generator, for its order of rows
    if held_out is None:
        mixed = order.permutation(len(train[0]))
        count = int(HELD_OUT * len(mixed))
        held_out, train = ((train[0][part], train[1][part]) for part in (mixed[:count], mixed[count:]))
    (rows, labels), (inputs, answers) = train, held_out
    width, hidden = rows.shape[1], settings.hidden
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = [nn.Linear(width, hidden), nn.Dropout(settings.dropout), nn.Sigmoid()] if hidden else []
        model = nn.Sequential(*layers, nn.Linear(hidden or width, classes))
        options = {"weight_decay": weight_decay, **({"lr": 0.1} if settings.optimizer == "sgd" else {})}
        best, _ = _train(
            model,
            getattr(torch.optim, OPTIMIZERS[settings.optimizer])(model.parameters(), **options),
            nn.functional.cross_entropy,
            (torch.from_numpy(np.ascontiguousarray(rows)), torch.from_numpy(labels)),
            order,
            lambda model: float((_predict_labels(model, inputs) == answers).mean()) if len(answers) else 0.0,
            settings,
        )
    assert best is not None, "an accuracy is above -1"
    return best


def _predict_labels(model: nn.Module, rows: Floats) -> Labels:
    with torch.no_grad():
        return model(torch.from_numpy(np.ascontiguousarray(rows))).argmax(dim=1).numpy()


@dataclass(frozen=True)
class Score:
    """Score of one task under one seed, x100; accuracies are rounded to two decimals, as in SentEval."""

    test: float  # accuracy, of nested cross-validation the mean over the folds; Spearman for SICK-R, STS-B and STS12-16
    dev: float | None  # by which the classifier was chosen: accuracy, or Pearson for the regressors; None for STS12-16
    others: Mapping[str, float] = field(default_factory=dict)  # F1 of MRPC, Pearson and squared error of the regressors
    chosen: tuple[float, ...] = ()  # regularisation; one for each fold of nested cross-validation


def nested_cross_validate(rows: Rows, classes: int, settings: Classifiers, seed: int) -> Score:
    """Nested cross-validation, for data without a test split (MR, CR, SUBJ, MPQA): inner folds choose the regularisation."""
    inputs, labels = rows
    grid = WEIGHT_DECAYS if settings.kind == "mlp" else INVERSE_STRENGTHS
    dev, test, chosen = [], [], []
    for train, held in stratified_folds(inputs, labels, settings.folds, NESTED_SEED):
        inner = inputs[train], labels[train]
        best, score = choose_regularization(inner, classes, settings, seed, grid, NESTED_SEED)
        predict = fit_classifier(settings, classes, best, seed, inner)
        dev.append(score)
        test.append(_percent(predict(inputs[held]) == labels[held]))
        chosen.append(best)
    return Score(round(float(np.mean(test)), 2), round(float(np.mean(dev)), 2), chosen=tuple(chosen))


def cross_validate(
    train: Rows, test: Rows, classes: int, settings: Classifiers, seed: int, *, has_f1: bool = False
) -> Score:
    """Cross-validation, for data without a dev split (TREC, MRPC): folds of the training rows choose the regularisation.

    With ``has_f1``, the F1 of label 1 is scored too.
    """
    grid = WEIGHT_DECAYS if settings.kind == "mlp" else INVERSE_STRENGTHS_OF_FOLDS
    best, score = choose_regularization(train, classes, settings, seed, grid, seed)
    predicted = fit_classifier(settings, classes, best, seed, train)(test[0])
    others = {}
    if has_f1:
        f1_score = import_library("sklearn.metrics", "eval").f1_score
        others = {"f1": round(100 * float(f1_score(test[1], predicted, zero_division=0)), 2)}
    return Score(_percent(predicted == test[1]), score, others, (best,))


def split_validate(
    train: Rows, dev: Rows, test: Rows, classes: int, settings: Classifiers, seed: int, *, regularize: bool = True
) -> Score:
    """Validation on the dev split (SST, SICK-E, SNLI, probing): it chooses the regularisation and stops the network.

    ``regularize`` is False for almost no regularisation, as SentEval does for SNLI.
    """
    if settings.kind == "mlp":
        grid = WEIGHT_DECAYS if regularize else (1e-9,)
    else:
        grid = INVERSE_STRENGTHS if regularize else (1e9,)
    fitted = [fit_classifier(settings, classes, strength, seed, train, dev) for strength in grid]
    scores = [_percent(predict(dev[0]) == dev[1]) for predict in fitted]
    best = int(np.argmax(scores))
    # SentEval fits again with the same seed and rows, which gives the same model
    return Score(_percent(fitted[best](test[0]) == test[1]), scores[best], chosen=(grid[best],))


def choose_regularization(
    rows: Rows, classes: int, settings: Classifiers, seed: int, grid: tuple[float, ...], fold_seed: int
) -> tuple[float, float]:
    """Return the regularisation with the best mean accuracy over folds (the first if equal), and that accuracy x100."""
    (inputs, labels), scores = rows, []
    folds = list(stratified_folds(inputs, labels, settings.folds, fold_seed))
    for strength in grid:
        accuracies = []
        for train, held in folds:
            rest, aside = (inputs[train], labels[train]), (inputs[held], labels[held])
            predict = fit_classifier(settings, classes, strength, seed, rest, aside)
            accuracies.append((predict(aside[0]) == aside[1]).mean())
        scores.append(round(100 * float(np.mean(accuracies)), 2))
    best = int(np.argmax(scores))
    return grid[best], scores[best]


def stratified_folds(inputs: Floats, labels: Labels, count: int, seed: int) -> Iterable[Fold]:
    """Yield the row numbers (train, held out) of each fold; UserError if a class has fewer rows than there are folds."""
    fewest = int(np.bincount(labels)[np.unique(labels)].min())
    if fewest < count:
        raise UserError(f"--folds {count}: a class has only {fewest} rows to train on; give more, or fewer folds")
    kind = import_library("sklearn.model_selection", "eval").StratifiedKFold
    return kind(n_splits=count, shuffle=True, random_state=seed).split(inputs, labels)


def _percent(is_right: npt.NDArray[np.bool_]) -> float:
    return round(100 * float(np.mean(is_right)), 2)


def encode_scores(scores: Doubles) -> Floats:
    """Encode scores (N,) as distributions over the two nearest whole numbers (Tai et al. 2015, eq. 16): (N, LEVELS).

    Levels start at 1. As in SentEval, the weight that a score below 1 (as in STS-B) puts on level 0 is dropped.
    """
    whole = np.floor(scores)[:, None]  # (N, 1)
    level = np.arange(1, LEVELS + 1)[None]  # (1, L)
    share = scores[:, None] - whole
    return np.where(level == whole + 1, share, np.where(level == whole, 1 - share, 0)).astype(np.float32)


def fit_relatedness(
    train: Scored, dev: Scored, test: Scored, *, seed: int, where: str = "regressor", settings: Classifiers = REGRESSOR
) -> Score:
    """SentEval's regressor for SICK-R and STS-B: a linear layer and a softmax over 5 levels, trained with squared error.

    Training stops early on the dev split's Pearson correlation. The test score is Spearman's.

    Raises:
        UndefinedCorrelation: the regressor predicts the same number for all dev or test rows.
    """

    def dev_pearson(model: nn.Module) -> float:
        try:
            return pearson(_predict(model, dev[0]), dev[1], where=where)
        except UndefinedCorrelation:
            return -1.0

    order = np.random.RandomState(seed)  # SentEval's generator
    rows = torch.from_numpy(train[0]), torch.from_numpy(encode_scores(train[1]))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(train[0].shape[1], LEVELS), nn.Softmax(dim=-1))
        optimizer = torch.optim.Adam(model.parameters())
        best, best_pearson = _train(model, optimizer, nn.functional.mse_loss, rows, order, dev_pearson, settings)
    if best is None:
        raise UndefinedCorrelation(f"{where}: the regressor learned nothing; are all vectors of the encoder equal?")
    predicted = _predict(best, test[0])
    others = {
        "pearson": 100 * pearson(predicted, test[1], where=where),
        "mse": float(np.mean((predicted - test[1]) ** 2)),
    }
    return Score(100 * spearman(predicted, test[1], where=where), 100 * best_pearson, others)


def _predict(model: nn.Module, rows: Floats) -> Doubles:
    """Expected level (N,) under the predicted distribution."""
    with torch.no_grad():
        return model(torch.from_numpy(rows)).double().numpy() @ np.arange(1, LEVELS + 1)  # (N, L) @ (L,)


def _train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Callable[[Tensor, Tensor], Tensor],
    rows: tuple[Tensor, Tensor],
    order: np.random.RandomState,
    score: Callable[[nn.Module], float],
    settings: Classifiers,
) -> tuple[nn.Module | None, float]:
    """SentEval's training loop with early stopping. Returns the model with the best score, and that score.

    Args:
        rows: inputs (N, D) and targets (N, ...), whose order is drawn from ``order``.
        score: scores the model on held-out rows, after every ``epoch_size`` passes; the best model must score above -1.
    """
    best, best_score, failures, epochs = None, -1.0, 0, 0
    inputs, targets = rows
    while epochs <= settings.max_epoch:
        model.train()
        for _ in range(settings.epoch_size):
            for batch in torch.from_numpy(order.permutation(len(inputs))).split(settings.batch_size):
                optimizer.zero_grad()
                loss(model(inputs[batch]), targets[batch]).backward()
                optimizer.step()
        epochs += settings.epoch_size
        model.eval()
        found = score(model)
        if found > best_score:
            best, best_score = copy.deepcopy(model), found
        else:
            # counted over the whole training, not since the last improvement, as in SentEval
            if failures >= settings.tenacity:
                break
            failures += 1
    return best, best_score
