"""SentEval's regressor: targets, training and early stopping."""

import numpy as np
import pytest
import torch
from scipy import stats

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.classifiers import encode_scores, fit_relatedness
from fairseq_clear.evaluation.senteval_data import Classifiers

ONE_ROUND = Classifiers(epoch_size=50, max_epoch=1, tenacity=3)


def rows(count, seed):
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(count, 4)).astype(np.float32)
    return inputs, np.clip(3 + inputs[:, 0] + 0.8 * rng.normal(size=count), 0, 5)


def test_scores_become_shares_of_levels():
    expected = [[0.75, 0.25, 0, 0, 0], [0, 0, 0, 0, 1], [0, 0, 0, 0, 0], [0.4, 0, 0, 0, 0]]
    np.testing.assert_allclose(encode_scores(np.array([1.25, 5.0, 0.0, 0.4])), expected, atol=1e-6)


@pytest.mark.slow
def test_training_is_that_of_senteval(monkeypatch):
    train, dev, test = rows(70, 0), rows(30, 1), rows(40, 2)
    np.random.seed(4)  # noqa: NPY002
    torch.manual_seed(4)
    model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Softmax(dim=1))
    optimizer = torch.optim.Adam(model.parameters())
    levels = np.arange(1, 6)
    best, failures, epochs, stop = -1, 0, 0, False
    while not stop and epochs <= 1000:
        for _ in range(50):
            order = np.random.permutation(70)  # noqa: NPY002
            for begin in (0, 64):
                index = order[begin : begin + 64]
                loss = (
                    (model(torch.tensor(train[0][index])) - torch.tensor(encode_scores(train[1])[index])) ** 2
                ).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        epochs += 50
        found = stats.pearsonr(model(torch.tensor(dev[0])).detach().numpy() @ levels, dev[1]).statistic
        if found > best:
            best, predicted = found, model(torch.tensor(test[0])).detach().numpy() @ levels
        else:
            stop = failures >= 3
            failures += 1
    updates = []
    step = torch.optim.Adam.step
    monkeypatch.setattr(torch.optim.Adam, "step", lambda self: updates.append(1) or step(self))
    ours = fit_relatedness(train, dev, test, seed=4)
    assert len(updates) == 2 * epochs < 2000
    assert ours.dev == pytest.approx(100 * best, abs=1e-3)
    assert ours.others["pearson"] == pytest.approx(100 * stats.pearsonr(predicted, test[1]).statistic, abs=1e-3)
    assert ours.test == pytest.approx(100 * stats.spearmanr(predicted, test[1]).statistic, abs=1e-3)
    assert ours.others["mse"] == pytest.approx(np.mean((predicted - test[1]) ** 2), abs=1e-4)
    assert abs(fit_relatedness(train, dev, test, seed=5).others["mse"] - ours.others["mse"]) > 1e-6
    assert fit_relatedness(train, dev, test, seed=4, settings=ONE_ROUND).dev != pytest.approx(ours.dev, abs=1e-3)


def test_equal_vectors_are_an_error():
    constant = np.ones((10, 3), np.float32), np.arange(10.0) / 2
    with pytest.raises(UserError, match="enc, STS-B: the regressor learned nothing"):
        fit_relatedness(constant, constant, constant, seed=1, where="enc, STS-B", settings=ONE_ROUND)
