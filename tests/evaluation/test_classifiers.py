"""SentEval's classifiers, folds and regressor against a direct reading of their definition."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import StratifiedKFold

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.classifiers import (
    cross_validate,
    encode_scores,
    fit_classifier,
    fit_network,
    fit_relatedness,
    nested_cross_validate,
    split_validate,
)
from fairseq_clear.evaluation.senteval_data import Classifiers

FAST = Classifiers(folds=3, epoch_size=1, max_epoch=3, tenacity=1)
LOGISTIC = Classifiers(kind="logistic", folds=3)


def blobs(rows=60, classes=3, seed=0, spread=1.2):
    rng = np.random.default_rng(seed)
    labels = np.arange(rows) % classes
    centres = np.random.default_rng(9).normal(size=(classes, 5)) * 1.5
    return (centres[labels] + rng.normal(size=(rows, 5)) * spread).astype(np.float32), labels.astype(np.int64)


def senteval_training(model, optimizer, settings, rows, targets, loss, score):
    """The loop of senteval/tools/classifier.py and relatedness.py: the best model, its score, and the epochs."""
    best, failures, epochs, stop = -1, 0, 0, False
    while not stop and epochs <= settings.max_epoch:
        model.train()
        for _ in range(settings.epoch_size):
            order = np.random.permutation(len(rows))  # noqa: NPY002
            for begin in range(0, len(rows), settings.batch_size):
                index = order[begin : begin + settings.batch_size]
                optimizer.zero_grad()
                loss(model(torch.tensor(rows[index])), torch.tensor(targets[index])).backward()
                optimizer.step()
        epochs += settings.epoch_size
        found = score(model.eval())
        if found > best:
            best, kept = found, copy.deepcopy(model)
        else:
            stop = failures >= settings.tenacity
            failures += 1
    return kept, best, epochs


def senteval_network(settings, classes, decay, seed, rows, labels, dev):
    """What senteval/tools/classifier.py does, with its global generators."""
    np.random.seed(seed)  # noqa: NPY002
    torch.manual_seed(seed)
    hidden = settings.hidden
    layers = [torch.nn.Linear(5, hidden), torch.nn.Dropout(settings.dropout), torch.nn.Sigmoid()] if hidden else []
    model = torch.nn.Sequential(*layers, torch.nn.Linear(hidden or 5, classes))
    optimizer = torch.optim.Adam(model.parameters())
    optimizer.param_groups[0]["weight_decay"] = decay
    if dev is None:
        mixed = np.random.permutation(len(rows))  # noqa: NPY002
        held = int(0.05 * len(rows))
        dev = rows[mixed[:held]], labels[mixed[:held]]
        rows, labels = rows[mixed[held:]], labels[mixed[held:]]

    def accuracy(model):
        return (model(torch.tensor(dev[0])).argmax(1).numpy() == dev[1]).mean()

    loss = torch.nn.CrossEntropyLoss()
    kept, _, epochs = senteval_training(model, optimizer, settings, rows, labels, loss, accuracy)
    return list(kept.parameters()), epochs


NETWORK = Classifiers(batch_size=7, tenacity=2, epoch_size=2, max_epoch=30)


@pytest.mark.parametrize(
    ("settings", "has_dev", "last"),
    [
        (NETWORK, True, range(30)),  # so the early stop was part of it
        (NETWORK, False, range(40)),
        (replace(NETWORK, hidden=4, dropout=0.2), True, range(30)),
        (replace(NETWORK, hidden=4, dropout=0.2), False, range(40)),
        (replace(NETWORK, tenacity=10_000, epoch_size=3, max_epoch=6), True, [9]),  # as SentEval's: nepoch <= max_epoch
    ],
)
def test_the_network_is_sentevals(settings, has_dev, last):
    rows, labels = blobs()
    dev = blobs(30, seed=1) if has_dev else None
    expected, epochs = senteval_network(settings, 3, 1e-3, 5, rows, labels, dev)
    torch.manual_seed(77)
    before = torch.random.get_rng_state()
    ours = fit_network(settings, 3, 1e-3, 5, (rows, labels), dev)
    assert torch.equal(torch.random.get_rng_state(), before)
    for found, wanted in zip(ours.parameters(), expected, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-6, rtol=0)
    other = fit_network(settings, 3, 1e-3, 6, (rows, labels), dev)
    assert not torch.allclose(next(iter(other.parameters())), expected[0], atol=1e-3)
    assert epochs in last


def logistic(strength, rows, labels):
    return LogisticRegression(C=strength, max_iter=1000).fit(rows, labels)


def choose(rows, labels, grid, fold_seed):
    scores = []
    for strength in grid:
        folds = StratifiedKFold(3, shuffle=True, random_state=fold_seed).split(rows, labels)
        each = [logistic(strength, rows[a], labels[a]).score(rows[b], labels[b]) for a, b in folds]
        scores.append(round(100 * np.mean(each), 2))
    return grid[int(np.argmax(scores))], max(scores)


def test_nested_folds_are_sentevals():
    rows, labels = blobs(spread=3)
    grid = [2**power for power in range(-2, 4)]
    dev, test, chosen = [], [], []
    for a, b in StratifiedKFold(3, shuffle=True, random_state=1111).split(rows, labels):
        best, score = choose(rows[a], labels[a], grid, 1111)
        dev.append(score)
        test.append(round(100 * logistic(best, rows[a], labels[a]).score(rows[b], labels[b]), 2))
        chosen.append(best)
    fit = nested_cross_validate((rows, labels), 3, LOGISTIC, seed=4)
    assert (fit.dev, fit.test, fit.chosen) == (round(np.mean(dev), 2), round(np.mean(test), 2), tuple(chosen))
    assert len(set(chosen)) > 1


def test_folds_of_the_training_rows_are_sentevals():
    rows, labels = blobs(spread=3)
    test = blobs(45, seed=2, spread=3)
    best, score = choose(rows, labels, [2**power for power in range(-1, 6)], 7)
    fit = cross_validate((rows, labels), test, 3, LOGISTIC, seed=7)
    model = logistic(best, rows, labels)
    assert (fit.dev, fit.chosen, fit.test) == (score, (best,), round(100 * model.score(*test), 2))
    assert len({cross_validate((rows, labels), test, 3, LOGISTIC, seed=seed).dev for seed in range(4)}) > 1


def test_f1_is_that_of_the_predictions():
    train, test = blobs(classes=2, spread=3), blobs(45, classes=2, seed=2, spread=3)
    fit = cross_validate(train, test, 2, LOGISTIC, seed=7, has_f1=True)
    assert fit.others == {"f1": round(100 * f1_score(test[1], logistic(*fit.chosen, *train).predict(test[0])), 2)}
    assert fit.others["f1"] != fit.test


@pytest.mark.parametrize("settings", [LOGISTIC, FAST], ids=["logistic", "mlp"])
def test_a_dev_split_chooses(settings):
    train, dev, test = (blobs(45, seed=seed, spread=3) for seed in (0, 1, 2))
    grid = [2.0**p for p in range(-2, 4)] if settings is LOGISTIC else [10.0**p for p in range(-5, -1)]
    scores = []
    for strength in grid:
        predict = fit_classifier(settings, 3, strength, 3, train, dev)
        scores.append((round(100 * (predict(dev[0]) == dev[1]).mean(), 2), predict))
    best = int(np.argmax([score for score, _ in scores]))
    fit = split_validate(train, dev, test, 3, settings, 3)
    accuracy = round(100 * (scores[best][1](test[0]) == test[1]).mean(), 2)
    assert (fit.dev, fit.chosen, fit.test) == (scores[best][0], (grid[best],), accuracy)
    free = split_validate(train, dev, test, 3, settings, 3, regularize=False)
    assert free.chosen == ((1e9,) if settings is LOGISTIC else (1e-9,))


def test_limits():
    for knobs, where in (
        ({"batch_size": 0}, "--classifier-batch-size 0: "),
        ({"dropout": 1.0}, "--dropout 1.0"),
        ({"folds": 4}, "--folds 4: "),
    ):
        with pytest.raises(UserError, match=where):
            nested_cross_validate(blobs(9), 3, Classifiers(**knobs), 1)


# The regressor of SICK-R and STS-B

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
    known = Classifiers(batch_size=64, epoch_size=50, max_epoch=1000, tenacity=3)

    def predict(model, part):
        return model(torch.tensor(part[0])).detach().numpy() @ np.arange(1, 6)

    kept, best, epochs = senteval_training(
        *(model, torch.optim.Adam(model.parameters()), known, train[0], encode_scores(train[1])),
        *(torch.nn.MSELoss(), lambda model: stats.pearsonr(predict(model, dev), dev[1]).statistic),
    )
    predicted, updates = predict(kept, test), []
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
