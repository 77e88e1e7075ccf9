"""The whole of SentEval on a small folder: readers of its tasks, features, averages, and the command ``senteval``."""

import json
from dataclasses import replace

import numpy as np
import pytest

from fairseq_clear.cli.main import main
from fairseq_clear.errors import UserError
from fairseq_clear.evaluation import senteval
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
from fairseq_clear.evaluation.senteval_data import (
    PROBING_TASKS,
    TRANSFER_TASKS,
    Classifiers,
    is_task_present,
    read_task,
)
from fairseq_clear.evaluation.sts import evaluate_sts, read_sts_tasks
from fairseq_clear.evaluation.sts_data import read_sts
from tests.conftest import SHARED
from tests.evaluation.senteval_files import write, write_senteval
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
    words, asked = Words(64), []
    words.encode = lambda texts, batch_size=32: asked.extend(texts) or Words(64).encode(texts)
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
        vectors = [Words(64).encode(side) for side in (split.first, split.second)]
        return pair_features(*vectors, both=task == "SNLI"), split.labels

    tasks, network = ["MRPC", "SICK-E", "SNLI"], Classifiers(folds=2, epoch_size=2, max_epoch=4, tenacity=1)
    result = evaluate_senteval(Words(64), read_tasks(folder, tasks), classifiers=network, seeds=[3])
    for task in tasks:
        parts = list(map(rows, read_task(folder, task).splits.values()))
        if task == "MRPC":
            fit = cross_validate(*parts, 2, network, 3)
        else:
            own = replace(network, epoch_size=1, max_epoch=15) if task == "SNLI" else network
            fit = split_validate(*parts, 3, own, 3, regularize=task != "SNLI")
        assert (result.means()[task], result.means("dev")[task]) == (fit.test, fit.dev)
    assert len(read_sts(folder, "SICK-R")) == 18


def test_snli_has_its_own_epochs(folder, monkeypatch):
    used, stock = {}, senteval.split_validate

    def watched(train, dev, test, classes, settings, seed, **further):
        used[further["regularize"]] = settings.epoch_size, settings.max_epoch
        return stock(train, dev, test, classes, settings, seed, **further)

    monkeypatch.setattr(senteval, "split_validate", watched)
    evaluate_senteval(
        Words(8), read_tasks(folder, ["SNLI", "SICK-E"]), classifiers=replace(FAST, epoch_size=3, max_epoch=7)
    )
    assert used == {False: (1, 15), True: (3, 7)}


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
    assert result.summary("dev") == {"Downstream": 56.0, "Probing": 20.0, "Avg.": 38.0}
    paraphrase = SentEvalResult({"MRPC": [Score(70, 60, {"f1": 80}), Score(70, 60, {"f1": 82})]})
    assert (paraphrase.summary(), paraphrase.means()) == ({"Downstream": 75.5}, {"MRPC": 70})
    assert paraphrase.summary("dev") == {"Downstream": 60}
    assert result.deviations()["MR"] == pytest.approx(2**0.5) and "STS12" not in result.deviations("dev")
    assert SentEvalResult({"MR": [Score(80, 70)]}).deviations() == {}
    assert SentEvalResult({"MR": [Score(80, 70)]}).summary() == {"Downstream": 80}


def test_a_collapsed_encoder_scores_0_where_a_correlation_is_not_defined(folder, caplog):
    class Collapsed:
        name = "collapsed"

        def encode(self, texts, batch_size=32):
            return np.zeros((len(texts), 3), np.float32)

    result = evaluate_senteval(Collapsed(), read_tasks(folder, ["MR", "SICK-R", "STS12"]), classifiers=FAST)
    assert result.scores["SICK-R"] == [Score(0, 0)] and result.scores["STS12"] == [Score(0, None)]
    assert result.means()["MR"] > 0 and caplog.text.count("counted as 0") == 2


def test_mistakes(folder, tmp_path):
    for tasks, message in ((["MR", "MR"], "--tasks MR: is given twice"), (["GLUE"], "--tasks GLUE: no such task")):
        with pytest.raises(UserError, match=message):
            read_tasks(folder, tasks)
    with pytest.raises(UserError, match="has none of MR, CR"):
        find_tasks(tmp_path, DOWNSTREAM_TASKS)
    for seeds in (), (1, 1, 2):
        with pytest.raises(UserError, match=r"--seeds .*: give one or more different seeds"):
            evaluate_senteval(Letters(), read_tasks(folder, ["MR"]), seeds=seeds)


# Readers


def test_every_task_is_read_from_sentevals_layout(folder):
    shapes = {}
    for name in [*TRANSFER_TASKS, *PROBING_TASKS]:
        assert is_task_present(folder, name)
        data = read_task(folder, name)
        shapes[name] = tuple(data.splits)
        assert all(set(split.labels) == set(range(data.classes)) for split in data.splits.values()), name
        assert all((split.second is not None) == (name in ("MRPC", "SICK-E", "SNLI")) for split in data.splits.values())
        assert all(len(digest) == 64 for digest in data.hashes.values()) and data.hashes
    assert [shapes[name] for name in ("MR", "TREC", "SNLI")] == [("all",), ("train", "test"), ("train", "dev", "test")]


def test_order_and_labels_are_sentevals(tmp_path):
    write(tmp_path / "MR" / "rt-polarity.pos", ["a  b c ", "d"])
    write(tmp_path / "MR" / "rt-polarity.neg", ["e", "clichM-i\u00e9 f"])
    split = read_task(tmp_path, "MR").splits["all"]
    # by the number of words, then by label, then as they came; UTF-8 stays what Latin-1 makes of it
    assert split.first == ("e", "d", "clichM-i\u00c3\u00a9 f", "a b c") and split.labels.tolist() == [0, 1, 0, 1]
    write(tmp_path / "TREC" / "train_5500.label", ["NUM:dist How  far : caf\u00e9 ?", "ABBR:exp What"], "latin-1")
    write(tmp_path / "TREC" / "TREC_10.label", ["HUM:x Who"])
    split = read_task(tmp_path, "TREC").splits["train"]
    assert split.first == ("What", "How far : caf\u00e9 ?") and split.labels.tolist() == [0, 5]
    write(tmp_path / "past_present.txt", ["tr\tb\tone", "tr\ta\ttwo words", "va\ta\tx", "te\tb\ty"])
    data = read_task(tmp_path, "Tense")
    assert (data.classes, [data.splits[name].labels.tolist() for name in ("train", "test")]) == (2, [[1, 0], [1]])


def test_broken_files_are_named_by_line(tmp_path):
    write_senteval(tmp_path)
    for task, file, lines, message in (
        ("TREC", "TREC/TREC_10.label", ["HUM:x ok", "no colon"], "TREC_10.label:2: no colon"),
        ("TREC", "TREC/TREC_10.label", ["ZOO:x ok"], "TREC_10.label:1: the label 'ZOO' is not one of ABBR"),
        ("SST2", "SST/binary/sentiment-dev", ["a\t2"], "sentiment-dev:1: the label '2' is not one of 0, 1"),
        ("SST5", "SST/fine/sentiment-dev", ["9 a"], "sentiment-dev:1: the label '9'"),
        ("MRPC", "MRPC/msr_paraphrase_test.txt", ["h", "1\tx\ty\ta"], "test.txt:2: 4 tab-separated columns"),
        ("SNLI", "SNLI/s2.dev", ["a"], "s2.dev: 1 lines, but .*labels.dev has 18"),
        ("SICK-E", "SICK/SICK_trial.txt", ["header"], "SICK-E: its dev split holds no text"),
        ("MR", "MR/rt-polarity.neg", [], "MR: its all split has texts of only one label .rt-polarity.pos"),
        ("SST2", "SST/binary/sentiment-train", ["a\t1"], "SST2: its train split has texts of only one label"),
        ("Tense", "../probing/past_present.txt", ["xx\ta\tb"], "past_present.txt:1: the split 'xx'"),
    ):
        path = tmp_path / "downstream" / file
        whole = path.read_bytes()
        write(path, lines)
        with pytest.raises(UserError, match=message):
            read_task(tmp_path, task)
        path.write_bytes(whole)


def test_missing_files(tmp_path):
    write_senteval(tmp_path)
    with pytest.raises(UserError, match="has no MR, nor"):
        read_task(tmp_path / "probing", "MR")
    (tmp_path / "downstream" / "SICK" / "SICK_test_annotated.txt").unlink()
    assert not is_task_present(tmp_path, "SICK-E") and is_task_present(tmp_path, "MRPC")
    with pytest.raises(UserError, match="SICK_test_annotated.txt: cannot read it"):
        read_task(tmp_path, "SICK-E")


@pytest.mark.real
@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared real data")
def test_real_sets_have_their_published_sizes():
    for name, sizes in {"MR": [10662], "CR": [3775], "TREC": [5452, 500], "MRPC": [4076, 1725]}.items():
        assert [len(split.first) for split in read_task(SHARED, name).splits.values()] == sizes


# The command

OF_WORDS = ["--encoder", "tests.evaluation.toys:Words"]
BRIEF = "--preset self-guided --folds 2 --epoch-size 1 --max-epoch 1 --classifier-batch-size 9".split()


def test_seeds_give_mean_and_deviation(folder, tmp_path, capsys):
    output = tmp_path / "r.json"
    arguments = ["--tasks", "TREC", "Tense", "--seeds", "1", "2", *BRIEF, "--output", str(output)]
    assert main(["senteval", "--data", str(folder), *OF_WORDS, *arguments]) == 0
    settings = Classifiers(hidden=50, folds=2, epoch_size=1, max_epoch=1, batch_size=9)
    expected = evaluate_senteval(Words(), read_tasks(folder, ["TREC", "Tense"]), classifiers=settings, seeds=[1, 2])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["TREC", "Tense", "Downstream", "Probing", "Avg."]
    assert lines[1].split()[1] == f"{expected.means()['TREC']:.2f}\u00b1{expected.deviations()['TREC']:.2f}"
    assert "split test; preset self-guided; classifier mlp; folds 2; hidden 50; optimizer adam" in lines[2]
    assert lines[2].endswith("seeds 1 2")
    report = json.loads(output.read_text())
    assert report["seeds"] == [1, 2] and report["command"] == "senteval"
    found = report["rows"][0]["details"]["scores"]["TREC"]
    assert [score["test"] for score in found] == [score.test for score in expected.scores["TREC"]]


def test_dev_scores_of_many_tasks_are_rows(folder, capsys):
    flags = ["--tasks", "TREC", "probing", "--preset", "logistic", "--folds", "2", "--split", "dev"]
    assert main(["senteval", "--data", str(folder), *OF_WORDS, *flags]) == 0
    _, *rows, caption = (line.split() for line in capsys.readouterr().out.splitlines())
    assert [row[0] for row in rows] == ["TREC", *PROBING_TASKS, "Downstream", "Probing", "Avg."]
    expected = evaluate_senteval(Words(), read_tasks(folder, ["TREC"]), classifiers=FAST)
    assert rows[0][1] == f"{expected.means('dev')['TREC']:.2f}" and caption[-2:] == ["seeds", "1111"]
