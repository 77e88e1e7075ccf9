"""SentEval's regressor of a similarity score, for SICK-R and STS-B (senteval/tools/relatedness.py)."""

import copy
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.classifiers import torch_seed
from fairseq_clear.evaluation.correlation import UndefinedCorrelation, pearson, spearman

__all__ = ["Relatedness", "encode_scores", "fit_relatedness"]

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
LEVELS = 5
BATCH_SIZE, EPOCHS_A_ROUND, MOST_EPOCHS, TENACITY = 64, 50, 1000, 3


@dataclass(frozen=True)
class Relatedness:
    """Correlations x100 of predicted and gold scores, and the mean squared error, on the test split."""

    dev_pearson: float
    pearson: float
    spearman: float
    mse: float


def encode_scores(scores: Doubles, levels: int = LEVELS) -> Floats:
    """A score as a distribution over the two whole numbers beside it (Tai et al. 2015, eq. 16): (N,) to (N, levels).

    A score below 1 (STS-B has 0 to 1) has part or all of its weight on level 0, which is none, as in SentEval.
    """
    whole = np.floor(scores)[:, None]  # (N, 1)
    level = np.arange(1, levels + 1)[None]  # (1, L)
    share = scores[:, None] - whole
    encoded: Floats = np.where(level == whole + 1, share, np.where(level == whole, 1 - share, 0)).astype(np.float32)
    return encoded


def fit_relatedness(
    train: tuple[Floats, Doubles],
    dev: tuple[Floats, Doubles],
    test: tuple[Floats, Doubles],
    *,
    seed: int,
    where: str = "regressor",
    most_epochs: int = MOST_EPOCHS,
) -> Relatedness:
    """A linear layer and a softmax over 5 levels with squared error, stopped on the dev split's Pearson.

    Args:
        train, dev, test: features (N, D) and scores (N,) of each.
        seed: of weights and order.
        where: named in errors.
        most_epochs: passes over the training rows at most.

    Raises:
        UserError: the regressor never predicted anything but one number.
    """
    order = np.random.RandomState(seed)  # SentEval's generator
    inputs, targets = torch.from_numpy(train[0]), torch.from_numpy(encode_scores(train[1]))
    best, best_pearson, failures, epochs = None, -1.0, 0, 0
    with torch_seed(seed):
        model = nn.Sequential(nn.Linear(inputs.shape[1], LEVELS), nn.Softmax(dim=-1))
        optimizer = torch.optim.Adam(model.parameters())
        while epochs <= most_epochs:
            for _ in range(EPOCHS_A_ROUND):
                _pass_over(model, inputs, targets, order.permutation(len(inputs)), optimizer)
            epochs += EPOCHS_A_ROUND
            try:
                found = pearson(_predict(model, dev[0]), dev[1], where=where)
            except UndefinedCorrelation:
                found = -1.0
            if found > best_pearson:
                best, best_pearson = copy.deepcopy(model), found
            else:
                if failures >= TENACITY:
                    break
                failures += 1
    if best is None:
        raise UserError(f"{where}: the regressor learned nothing; are all vectors of the encoder equal?")
    predicted = _predict(best, test[0])
    return Relatedness(
        100 * best_pearson,
        100 * pearson(predicted, test[1], where=where),
        100 * spearman(predicted, test[1], where=where),
        float(np.mean((predicted - test[1]) ** 2)),
    )


def _pass_over(
    model: nn.Module, inputs: Tensor, targets: Tensor, order: npt.NDArray[np.int64], optimizer: torch.optim.Optimizer
) -> None:
    for rows in torch.from_numpy(order).split(BATCH_SIZE):
        loss = nn.functional.mse_loss(model(inputs[rows]), targets[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def _predict(model: nn.Module, rows: Floats) -> Doubles:
    """The expected level (N,)."""
    with torch.no_grad():
        shares: Doubles = model(torch.from_numpy(rows)).double().numpy()  # (N, L)
    predicted: Doubles = shares @ np.arange(1, LEVELS + 1)
    return predicted
