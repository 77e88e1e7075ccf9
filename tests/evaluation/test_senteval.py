"""The whole of SentEval on a small folder, its features, its averages."""

import json
from dataclasses import replace

import numpy as np
import pytest

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.classifiers import Score, cross_validate, split_validate
from fairseq_clear.evaluation.encoders import CachedEncoder
from fairseq_clear.evaluation.senteval import (
    DOWNSTREAM_TASKS,
    SentEvalResult,
    evaluate_senteval,
    find_tasks,
    hashes_of,
    pair_features,
    read_tasks,
)
from fairseq_clear.evaluation.senteval_data import PROBING_TASKS, Classifiers, read_task
from fairseq_clear.evaluation.sts import evaluate_sts, read_sts_tasks
from fairseq_clear.evaluation.sts_data import read_sts
from tests.evaluation.senteval_files import write_senteval
from tests.evaluation.toys import Letters, Words

FAST = Classifiers(kind="logistic", folds=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_senteval(tmp_path_factory.mktemp("senteval"))


def test_features_of_pairs():
    u, v = np.array([[1.0, 5.0]], np.float32), np.array([[3.0, 2.0]], np.float32)
    assert pair_features(u, v).tolist() == [[2, 3, 3, 10]]
    assert pair_features(u, v, both=True).tolist() == [[1, 5, 3, 2, 3, 10, 2, 3]]


@pytest.mark.slow
def test_every_task_runs_and_sentences_are_embedded_once(folder):
    words = Words(64)
    asked = []
    encode = words.encode
    words.encode = lambda texts, batch_size=32: asked.extend(texts) or encode(texts)
    tasks = [task for task in [*DOWNSTREAM_TASKS, *PROBING_TASKS] if not task.startswith("STS1") or task == "STS12"]
    data = read_tasks(folder, tasks)
    result = evaluate_senteval(CachedEncoder(words), data, classifiers=FAST)
    assert list(result.scores) == tasks and len(asked) == len(set(asked))
    assert set(find_tasks(folder, [*DOWNSTREAM_TASKS, *PROBING_TASKS])) == set(tasks)
    for task in ("MR", "TREC", "SST5", "Depth"):
        assert result.means()[task] > 100 / read_task(folder, task).classes
    assert 0 < result.scores["MRPC"][0].others["f1"] <= 100
    assert result.scores["STS12"][0].dev is None
    found = evaluate_sts(Words(64), read_sts_tasks(folder, ["STS12"]), aggregation="mean")
    assert result.means()["STS12"] == pytest.approx(found["STS12"].spearman)
    assert set(result.scores["STS-B"][0].others) == {"pearson", "mse"}
    assert result.scores["SNLI"][0].chosen == (1e9,) and result.scores["SICK-E"][0].chosen != (1e9,)
    assert set(hashes_of(data)["SICK-R"]) == {"SICK_train.txt", "SICK_trial.txt", "SICK_test_annotated.txt"}
    read = json.loads(json.dumps(result.to_dict()))
    assert set(read["summary"]["test"]) == {"Downstream", "Probing", "Avg."}


def test_tasks_are_validated_as_senteval_does(folder):
    def rows(split):
        return pair_features(Words(64).encode(split.first), Words(64).encode(split.second)), split.labels

    result = evaluate_senteval(Words(64), read_tasks(folder, ["MRPC", "SICK-E"]), classifiers=FAST, seeds=[3])
    splits = read_task(folder, "MRPC").splits
    fit = cross_validate(rows(splits["train"]), rows(splits["test"]), 2, FAST, 3)
    assert (result.means()["MRPC"], result.means("dev")["MRPC"]) == (fit.test, fit.dev)
    splits = read_task(folder, "SICK-E").splits
    fit = split_validate(*(rows(splits[name]) for name in ("train", "dev", "test")), 3, FAST, 3)
    assert (result.means()["SICK-E"], result.means("dev")["SICK-E"]) == (fit.test, fit.dev)
    assert len(read_sts(folder, "SICK-R")) == 18


def test_word_content_has_no_hidden_layer(folder):
    network = Classifiers(hidden=3, epoch_size=1, max_epoch=1)
    for task, is_same in (("WordContent", True), ("Depth", False)):
        scores = [
            evaluate_senteval(Words(64), read_tasks(folder, [task]), classifiers=settings, seeds=[1, 2, 3]).scores[task]
            for settings in (network, replace(network, hidden=0))
        ]
        assert (scores[0] == scores[1]) == is_same


def test_averages_are_declutrs():
    scores = {"MR": [Score(80, 70), Score(82, 74)], "STS12": [Score(40, None)] * 2, "Depth": [Score(30, 20)] * 2}
    result = SentEvalResult(scores)
    assert result.summary() == {"Downstream": 60.5, "Probing": 30.0, "Avg.": 45.25}
    assert result.summary("dev") == {"Downstream": 72.0, "Probing": 20.0, "Avg.": 46.0}
    assert result.deviations()["MR"] == pytest.approx(2**0.5) and "STS12" not in result.deviations("dev")
    assert SentEvalResult({"MR": [Score(80, 70)]}).deviations() == {}
    assert SentEvalResult({"MR": [Score(80, 70)]}).summary() == {"Downstream": 80}


def test_mistakes(folder, tmp_path):
    for tasks, message in ((["MR", "MR"], "--tasks MR: is given twice"), (["GLUE"], "--tasks GLUE: no such task")):
        with pytest.raises(UserError, match=message):
            read_tasks(folder, tasks)
    with pytest.raises(UserError, match="has none of MR, CR"):
        find_tasks(tmp_path, DOWNSTREAM_TASKS)
    for seeds in (), (1, 1, 2):
        with pytest.raises(UserError, match=r"--seeds .*: give one or more different seeds"):
            evaluate_senteval(Letters(), read_tasks(folder, ["MR"]), seeds=seeds)
