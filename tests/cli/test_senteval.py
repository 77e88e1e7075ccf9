"""``fairseq-clear senteval`` as a user types it."""

import json

import pytest

from fairseq_clear.cli.main import main
from fairseq_clear.evaluation.senteval import evaluate_senteval, read_tasks
from fairseq_clear.evaluation.senteval_data import PROBING_TASKS, Classifiers
from tests.evaluation.senteval_files import write_senteval
from tests.evaluation.toys import Words

WORDS = ["--encoder", "tests.evaluation.toys:Words"]
FAST = "--preset self-guided --folds 2 --epoch-size 1 --max-epoch 1 --classifier-batch-size 9".split()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_senteval(tmp_path_factory.mktemp("senteval"))


def test_seeds_give_mean_and_deviation(folder, tmp_path, capsys):
    output = tmp_path / "r.json"
    arguments = ["--tasks", "TREC", "Tense", "--seeds", "1", "2", *FAST, "--output", str(output)]
    assert main(["senteval", "--data", str(folder), *WORDS, *arguments]) == 0
    settings = Classifiers(hidden=50, folds=2, epoch_size=1, max_epoch=1, batch_size=9)
    expected = evaluate_senteval(Words(), read_tasks(folder, ["TREC", "Tense"]), classifiers=settings, seeds=[1, 2])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["TREC", "Tense", "Downstream", "Probing", "Avg."]
    assert lines[1].split()[1] == f"{expected.means()['TREC']:.2f}\u00b1{expected.deviations()['TREC']:.2f}"
    assert "split test; preset self-guided; classifier mlp; folds 2; hidden 50; optimizer adam" in lines[2]
    assert lines[2].endswith("seeds 1 2")
    report = json.loads(output.read_text())
    assert report["seeds"] == [1, 2] and report["command"] == "senteval"
    assert [score["test"] for score in report["rows"][0]["details"]["scores"]["TREC"]] == [
        score.test for score in expected.scores["TREC"]
    ]


def test_dev_scores_and_presets(folder, capsys):
    flags = ["--tasks", "TREC", "--preset", "logistic", "--folds", "2", "--split", "dev"]
    assert main(["senteval", "--data", str(folder), *WORDS, *flags]) == 0
    lines = capsys.readouterr().out.splitlines()
    expected = evaluate_senteval(
        Words(), read_tasks(folder, ["TREC"]), classifiers=Classifiers(kind="logistic", folds=2)
    )
    assert lines[1].split()[1] == f"{expected.means('dev')['TREC']:.2f}" and lines[2].endswith("seeds 1111")


def test_many_tasks_are_rows(folder, capsys):
    flags = ["--tasks", "TREC", "probing", "--preset", "logistic", "--folds", "2"]
    assert main(["senteval", "--data", str(folder), *WORDS, *flags]) == 0
    columns = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:-1]]
    assert columns == ["TREC", *PROBING_TASKS, "Downstream", "Probing", "Avg."]
