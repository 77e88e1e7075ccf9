"""Metrics against their definitions, written out."""

import logging

import numpy as np
import pytest

from fairseq_clear.evaluation.glue.glue_recipes import HEADLINE, measure
from fairseq_clear.evaluation.glue.glue_tasks import GLUE_TASKS

RNG = np.random.default_rng(1)
GOLD = (RNG.random(200) < 0.65).astype(np.int64)
PREDICTED = np.where(RNG.random(200) < 0.7, GOLD, 1 - GOLD)


def table(positive: int) -> tuple[int, int, int, int]:
    """True and false positives, true and false negatives."""
    pairs = [(int(p == positive), int(g == positive)) for p, g in zip(PREDICTED, GOLD, strict=True)]
    return pairs.count((1, 1)), pairs.count((1, 0)), pairs.count((0, 0)), pairs.count((0, 1))


def f1(positive: int) -> float:
    hits, wrong, _, missed = table(positive)
    precision, recall = hits / (hits + wrong), hits / (hits + missed)
    return 2 * precision * recall / (precision + recall)


def test_classes_against_their_definitions():
    tp, fp, tn, fn = table(1)
    matthews = (tp * tn - fp * fn) / ((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)) ** 0.5
    cola = measure(GLUE_TASKS["CoLA"], PREDICTED, GOLD)
    assert cola == {"matthews": pytest.approx(100 * matthews), "accuracy": pytest.approx(100 * (tp + tn) / 200)}
    for name in ("MRPC", "QQP"):
        found = measure(GLUE_TASKS[name], PREDICTED, GOLD)
        accuracy = (tp + tn) / 200
        assert found["f1"] == pytest.approx(100 * f1(1)) != pytest.approx(100 * f1(0))
        assert found["accuracy"] == pytest.approx(100 * accuracy)
        assert found["accuracy_and_f1"] == pytest.approx(50 * (accuracy + f1(1)))
    assert measure(GLUE_TASKS["MNLI"], np.array([0, 1, 2, 2]), np.array([0, 1, 2, 0])) == {"accuracy": 75.0}


def test_scores_against_their_definitions():
    gold = RNG.permutation(50) / 10  # no ties
    predicted = np.exp(gold) + RNG.normal(size=50)
    found = measure(GLUE_TASKS["STS-B"], predicted, gold)
    pearson = np.corrcoef(predicted, gold)[0, 1]
    ranks = [np.searchsorted(np.sort(values), values) for values in (predicted, gold)]
    spearman = 1 - 6 * ((ranks[0] - ranks[1]) ** 2).sum() / (50 * (50**2 - 1))
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
