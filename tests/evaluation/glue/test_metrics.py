"""Metrics against scikit-learn and scipy."""

import logging

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as oracle

from fairseq_clear.evaluation.glue.metrics import HEADLINE, measure
from fairseq_clear.evaluation.glue.tasks import GLUE_TASKS

RNG = np.random.default_rng(1)
GOLD = (RNG.random(200) < 0.65).astype(np.int64)
PREDICTED = np.where(RNG.random(200) < 0.7, GOLD, 1 - GOLD)


def test_classes_against_scikit_learn():
    cola = measure(GLUE_TASKS["CoLA"], PREDICTED, GOLD)
    assert cola["matthews"] == pytest.approx(100 * oracle.matthews_corrcoef(GOLD, PREDICTED))
    for name in ("MRPC", "QQP"):
        found = measure(GLUE_TASKS[name], PREDICTED, GOLD)
        accuracy, f1 = oracle.accuracy_score(GOLD, PREDICTED), oracle.f1_score(GOLD, PREDICTED)
        assert found["f1"] == pytest.approx(100 * f1)
        assert found["accuracy"] == pytest.approx(100 * accuracy)
        assert found["accuracy_and_f1"] == pytest.approx(50 * (accuracy + f1))
        assert found["f1"] != pytest.approx(100 * oracle.f1_score(GOLD, PREDICTED, pos_label=0))
    assert measure(GLUE_TASKS["MNLI"], np.array([0, 1, 2, 2]), np.array([0, 1, 2, 0])) == {"accuracy": 75.0}


def test_scores_against_scipy():
    gold = RNG.random(50) * 5
    predicted = np.exp(gold) + RNG.normal(size=50)
    found = measure(GLUE_TASKS["STS-B"], predicted, gold)
    pearson, spearman = stats.pearsonr(predicted, gold)[0], stats.spearmanr(predicted, gold)[0]
    assert found["pearson"] == pytest.approx(100 * pearson)
    assert found["spearman"] == pytest.approx(100 * spearman)
    assert found["pearson_and_spearman"] == pytest.approx(50 * (pearson + spearman))
    assert abs(pearson - spearman) > 0.01


def test_a_restart_that_predicts_one_class_scores_0_and_no_nan(caplog):
    constant = np.zeros_like(GOLD)
    assert measure(GLUE_TASKS["CoLA"], constant, GOLD)["matthews"] == 0
    assert measure(GLUE_TASKS["MRPC"], constant, GOLD)["f1"] == 0
    assert measure(GLUE_TASKS["MRPC"], constant, constant)["f1"] == 0
    with caplog.at_level(logging.WARNING):
        assert measure(GLUE_TASKS["STS-B"], np.ones(4), np.arange(4.0))["pearson_and_spearman"] == 0
    assert "STS-B" in caplog.text and "counted as 0" in caplog.text


@pytest.mark.parametrize("recipe", HEADLINE)
def test_headlines_are_measured(recipe):
    for name, metric in HEADLINE[recipe].items():
        values = np.array([0.0, 1.0, 1.0])
        assert metric in measure(GLUE_TASKS[name], values, values)
