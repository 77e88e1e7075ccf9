"""Median, best and the choice among restarts, on made-up results; the submission's texts."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.glue import glue_running
from fairseq_clear.evaluation.glue.glue_data import TaskData
from fairseq_clear.evaluation.glue.glue_predicting import (
    SUBMISSION_FILES,
    format_predictions,
    majority,
    write_submission,
)
from fairseq_clear.evaluation.glue.glue_recipes import RECIPES
from fairseq_clear.evaluation.glue.glue_running import Restart, Start, build_report, run_restarts, seed_list
from fairseq_clear.evaluation.glue.glue_tasks import GLUE_TASKS
from fairseq_clear.output_folder import signals_raise


def start(segments=1):
    model = SimpleNamespace(args=SimpleNamespace(segments=segments))
    loaded = SimpleNamespace(architecture="a", updates=1, vocabulary_hash="v", model=model)
    return Start(Path("c.pt"), "hash", loaded)


START = start()


def made(folder, name, metrics):
    """Finished restarts of a task whose results are ``metrics``, one dictionary a seed."""
    splits = dict.fromkeys(metrics[0], 10)
    data = TaskData(GLUE_TASKS[name], folder, splits, "c", {"train.tsv": "h"})
    restarts = []
    for seed, one in enumerate(metrics, 1):
        home = folder / name / f"seed{seed}"
        home.mkdir(parents=True)
        (home / "result.json").write_text(json.dumps({"task": name, "seed": seed, "metrics": one}))
        (home / "model.pt").touch()
        restarts.append(Restart(data, seed, RECIPES["clear"][name], home))
    return restarts


def accuracy(*values):
    return dict(zip(("valid", "heldout"), ({"accuracy": value} for value in values), strict=False))


def test_median_and_best_by_task_and_their_mean(tmp_path):
    restarts = made(tmp_path, "RTE", [accuracy(value) for value in (50.0, 70.0, 52.0, 53.0)])
    mrpc = {"accuracy": 80.0, "f1": 90.0, "accuracy_and_f1": 85.0}
    restarts += made(tmp_path, "MRPC", [{"valid": mrpc}])
    report = build_report(restarts, "clear", START, "x")
    assert report.columns == ["RTE", "MRPC", "Avg."]
    assert [row.label for row in report.rows] == ["x median of 1/4", "x best of 1/4"]
    assert report.rows[0].scores == {"RTE": 52.5, "MRPC": 85.0, "Avg.": pytest.approx(68.75)}
    assert report.rows[1].scores == {"RTE": 70.0, "MRPC": 85.0, "Avg.": 77.5}
    assert build_report(restarts, "cert", START, "x").rows[0].scores["MRPC"] == 90.0


def test_a_split_dev_set_chooses_by_one_part_and_reports_the_other(tmp_path):
    restarts = made(tmp_path, "RTE", [accuracy(60.0, 51.0), accuracy(55.0, 59.0), accuracy(60.0, 40.0)])
    report = build_report(restarts, "clear", START, "x")
    assert report.protocol["split"] == "held-out part of dev"
    assert report.rows[0].scores == {"RTE": 51.0}
    assert report.rows[0].details["best_seed"] == {"RTE": 1}


def test_the_input_is_described_with_the_segments_that_the_encoder_has(tmp_path):
    restarts = made(tmp_path, "RTE", [accuracy(60.0)])
    described = [build_report(restarts, "clear", start(n), "x").protocol["input"] for n in (1, 2)]
    assert described == ["<s> a </s> </s> b </s> (no segments)", "<s> a </s> b </s> (2 segments)"]


def test_unfinished_restarts_are_left_out(tmp_path):
    restarts = made(tmp_path, "RTE", [accuracy(60.0), accuracy(70.0)])
    (restarts[1].folder / "model.pt").unlink()
    assert build_report(restarts, "clear", START, "x").rows[1].label == "x best of 1"
    (restarts[0].folder / "result.json").unlink()
    with pytest.raises(UserError, match="none of the restarts is finished"):
        build_report(restarts, "clear", START, "x")
    (restarts[1].folder / "model.pt").touch()
    (restarts[1].folder / "result.json").write_text("{")
    with pytest.raises(UserError, match=r"result.json: not valid JSON"):
        build_report(restarts, "clear", START, "x")


def test_seeds():
    assert seed_list([5]) == [1, 2, 3, 4, 5]
    assert seed_list([7, 3]) == [7, 3]


def test_predictions_in_gluess_words():
    assert format_predictions(GLUE_TASKS["RTE"], np.array([1, 0])) == (
        "index\tprediction\n0\tnot_entailment\n1\tentailment\n"
    )
    scores = format_predictions(GLUE_TASKS["STS-B"], np.array([-0.2, 2.34567, 5.5]))
    assert scores.splitlines()[1:] == ["0\t0.000", "1\t2.346", "2\t5.000"]


def test_the_majority_is_that_of_training():
    def data(name, gold):
        return SimpleNamespace(task=GLUE_TASKS[name], gold=lambda split: np.array(gold) if split == "train" else None)

    assert majority(data("WNLI", [1, 0, 1]), 3).tolist() == [1, 1, 1]
    assert majority(data("STS-B", [1.0, 4.0]), 2).tolist() == [2.5, 2.5]


def test_the_same_predictions_make_the_same_zip(tmp_path):
    contents = {name: name for name in reversed(SUBMISSION_FILES)}
    assert write_submission(tmp_path / "a.zip", contents) == []
    assert write_submission(tmp_path / "b.zip", dict(sorted(contents.items()))) == []
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    assert write_submission(tmp_path / "c.zip", {"AX.tsv": ""}) == [n for n in SUBMISSION_FILES if n != "AX.tsv"]
    with pytest.raises(UserError, match="cannot write it"):
        write_submission(tmp_path / "absent" / "a.zip", contents)


def test_a_signal_ends_the_trainings(tmp_path, monkeypatch):
    """SIGTERM reaches the command alone, not its trainings, which are other processes."""
    code = "import os, signal; print('begun', flush=True); os.kill(os.getppid(), signal.SIGTERM); signal.pause()"
    (restart,) = made(tmp_path, "RTE", [accuracy(50.0)])
    (restart.folder / "result.json").unlink()
    monkeypatch.setattr(Restart, "check", lambda *_: None)
    monkeypatch.setattr(
        Restart,
        "run",
        lambda self, *_: self._train([sys.executable, "-c", code], {}),  # what comes after was not trained
    )
    with pytest.raises(SystemExit, match="143"), signals_raise():
        run_restarts([restart], START)
    assert (restart.folder / "train.log").read_text() == "begun\n"
    assert glue_running._running == []
