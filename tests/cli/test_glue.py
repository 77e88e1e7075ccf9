"""``fairseq-clear glue`` as a user types it: real fine-tuning by fairseq-train, a few updates of a tiny model."""

import json
import logging
import os
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from fairseq.checkpoint_utils import load_model_ensemble_and_task
from fairseq_cli.train import cli_main
from scipy import stats

from fairseq_clear.cli.main import main
from fairseq_clear.evaluation.glue import glue_running
from fairseq_clear.evaluation.glue.glue_data import TaskData
from fairseq_clear.evaluation.glue.glue_predicting import HEAD, Classifier
from fairseq_clear.evaluation.glue.glue_running import Restart
from fairseq_clear.evaluation.glue.glue_tasks import GLUE_TASKS
from tests.conftest import SHARED
from tests.evaluation.glue.made import ROWS, write_glue
from tests.faults import commands

pytestmark = pytest.mark.slow

TASKS = ["RTE", "STS-B", "MNLI"]
# the recipe's learning rates move a model of 4 updates by less than a class
FAST = ["--epochs", "2", "--lr", "0.01", "--device", "cpu"]


@pytest.fixture(scope="module", autouse=True)
def forked_training():
    """fairseq-train in forked processes, which have imported fairseq already; the first one is a process as users start it."""
    start = glue_running._run_process
    calls = []

    def run(command, log, environment):
        if command[1:3] != ["-m", "fairseq_cli.train"]:
            return start(command, log, environment)
        calls.append(command)
        if len(calls) == 1:
            return start(command, log, environment)

        def work():
            os.environ.update(environment)
            logging.getLogger("fairseq").setLevel(logging.INFO)  # quiet in this process, in which the command runs
            sys.argv = ["fairseq-train", *command[3:]]
            cli_main()
            return 0

        return commands.run(work, Path(log.name))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(glue_running, "_run_process", run)
        yield
    assert calls


@pytest.fixture(scope="module")
def prepared(data_bin, tmp_path_factory):
    folder = tmp_path_factory.mktemp("glue")
    write_glue(folder / "raw", [*TASKS, "WNLI", "AX"])
    flags = ["--glue-dir", str(folder / "raw"), "--data-bin", str(data_bin), "--tokenizer", "whitespace"]
    assert main(["glue", "prepare", *flags, "--dest", str(folder / "bin"), "--tasks", *TASKS, "WNLI", "AX"]) == 0
    return folder / "bin"


def run_glue(checkpoint, prepared, output, *flags):
    base = ["glue", "run", "--checkpoint", str(checkpoint), "--data", str(prepared), "--recipe", "clear"]
    return main([*base, "--output", str(output), *FAST, *flags])


@pytest.fixture(scope="module")
def runs(checkpoint, prepared, tmp_path_factory):
    output = tmp_path_factory.mktemp("runs")
    assert run_glue(checkpoint, prepared, output, "--tasks", *TASKS, "--seeds", "1", "--local-jobs", "2") == 0
    return output


def result(runs, task, seed=1):
    return json.loads((runs / task / f"seed{seed}" / "result.json").read_text())


def test_the_numbers_are_those_of_the_kept_model_and_of_fairseq(runs, prepared):
    for name in TASKS:
        data = TaskData.open(prepared, GLUE_TASKS[name])
        found = result(runs, name)
        assert set(found["metrics"]) == set(data.labelled())
        for split in data.labelled():
            predicted = np.load(runs / name / "seed1" / f"{split}.npy")
            if name == "STS-B":
                expected = 50 * (stats.pearsonr(predicted, data.gold(split))[0]
                                 + stats.spearmanr(predicted, data.gold(split))[0])  # fmt: skip
                assert found["metrics"][split]["pearson_and_spearman"] == pytest.approx(expected)
                continue
            assert found["metrics"][split]["accuracy"] == pytest.approx(100 * (predicted == data.gold(split)).mean())
        if name != "STS-B":
            assert found["agrees_with_fairseq"]
            assert found["fairseq_accuracy"] == pytest.approx(found["metrics"]["valid"]["accuracy"], abs=0.1)
        assert found["updates"] == found["epoch"] * (24 // 16 + 1 if name != "MNLI" else 1)


@pytest.mark.parametrize("name", TASKS)
def test_outputs_are_those_of_fairseqs_own_loading_and_batches(name, runs, prepared):
    data = TaskData.open(prepared, GLUE_TASKS[name])
    path = runs / name / "seed1" / "model.pt"
    ours = Classifier(path, data).outputs(data, "valid", 24, batch_size=3)
    overrides = {"data": str(data.folder), "no_shuffle": True}
    (model,), _, task = load_model_ensemble_and_task([str(path)], arg_overrides=overrides)
    model.register_classification_head(HEAD, data.task.outputs)
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"], strict=True)
    assert state["last_optimizer_state"] is None
    dataset = task.load_dataset("valid") or task.dataset("valid")
    batch = dataset.collater([dataset[index] for index in range(len(dataset))])
    model.eval()
    with torch.no_grad():
        theirs, _ = model(**batch["net_input"], features_only=True, classification_head_name=HEAD)
    np.testing.assert_allclose(ours, theirs.numpy(), atol=1e-5)
    assert not np.allclose(ours, ours[::-1], atol=1e-3)  # order matters


def test_the_report_has_median_and_best_and_what_they_were_made_of(runs, checkpoint, prepared, capsys):
    assert run_glue(checkpoint, prepared, runs, "--tasks", *TASKS, "--seeds", "1", "--label", "tiny") == 0
    report = json.loads((runs / "report.json").read_text())
    assert report["columns"] == ["STS-B", "MNLI-m", "MNLI-mm", "RTE", "Avg."]
    middle, best = report["rows"]
    assert (middle["label"], best["label"]) == ("tiny median of 1", "tiny best of 1")
    scores = middle["scores"]
    assert scores["MNLI-mm"] == result(runs, "MNLI")["metrics"]["valid1"]["accuracy"]
    assert scores["Avg."] == pytest.approx(
        (scores["STS-B"] + scores["RTE"] + (scores["MNLI-m"] + scores["MNLI-mm"]) / 2) / 3
    )
    assert report["protocol"]["metrics"]["STS-B"] == "pearson_and_spearman"
    assert set(report["data"]["RTE"]) == {"train.tsv", "dev.tsv", "test.tsv"}
    assert middle["details"]["settings"]["RTE"]["epochs"] == 2
    out = capsys.readouterr().out
    assert "tiny median of 1" in out and "recipe clear; split dev" in out


def test_what_is_finished_is_not_done_again(runs, checkpoint, prepared, monkeypatch, capsys):
    monkeypatch.setattr(Restart, "_train", lambda *_: pytest.fail("trained again"))
    before = (runs / "report.json").read_text()
    assert run_glue(checkpoint, prepared, runs, "--tasks", *TASKS, "--seeds", "1", "--label", "tiny") == 0
    assert (runs / "report.json").read_text() == before
    capsys.readouterr()
    (runs / "report.json").rename(runs / "kept.json")
    (runs / "report.json").mkdir()
    assert run_glue(checkpoint, prepared, runs, "--tasks", *TASKS, "--seeds", "1", "--label", "tiny") == 2
    out, err = capsys.readouterr()
    assert "tiny median of 1" in out and "report.json: cannot write it" in err  # the table is printed all the same
    (runs / "report.json").rmdir()
    (runs / "kept.json").rename(runs / "report.json")
    with pytest.raises(pytest.fail.Exception):
        run_glue(checkpoint, prepared, runs, "--tasks", "RTE", "--seeds", "7", "8")


def test_a_half_done_restart_goes_on_and_ends_as_if_it_had_not_stopped(
    runs, checkpoint, prepared, tmp_path, monkeypatch
):
    train = Restart._train

    def interrupted(self, command, environment):
        train(self, [*command, "--max-epoch", "1"], environment)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Restart, "_train", interrupted)
        assert run_glue(checkpoint, prepared, tmp_path, "--tasks", "RTE", "--seeds", "1") == 130
    folder = tmp_path / "RTE" / "seed1"
    assert (folder / "checkpoint_last.pt").is_file() and not (folder / "result.json").exists()
    assert run_glue(checkpoint, prepared, tmp_path, "--tasks", "RTE", "--seeds", "1") == 0
    log = (folder / "train.log").read_text()
    assert log.count("loading pretrained model from") == 1 and "@ 2 updates" in log
    assert "@ 4 updates" in log and log.count("begin training epoch 1") == 1
    mine, other = (torch.load(f / "RTE" / "seed1" / "model.pt", weights_only=True) for f in (tmp_path, runs))
    assert all(torch.equal(value, other["model"][key]) for key, value in mine["model"].items())
    assert not (folder / "checkpoint_last.pt").exists() and not (folder / "checkpoint_best.pt").exists()


def test_another_recipe_or_data_in_the_same_folder_is_refused(runs, checkpoint, prepared, capsys):
    assert run_glue(checkpoint, prepared, runs, "--tasks", "RTE", "--seeds", "1", "--dropout", "0") == 2
    assert "holds a restart with another settings" in capsys.readouterr().err
    assert run_glue(runs / "RTE" / "seed1" / "model.pt", prepared, runs, "--tasks", "RTE", "--seeds", "1") == 2
    assert "holds a restart with another checkpoint_hash" in capsys.readouterr().err


def test_failed_training_is_one_line_and_leaves_the_log(checkpoint, prepared, tmp_path, capsys, monkeypatch):
    failing = [sys.executable, "-c", "import sys; sys.exit('out of everything')"]
    monkeypatch.setattr(Restart, "command", lambda *_: failing)
    assert run_glue(checkpoint, prepared, tmp_path, "--tasks", "RTE", "--seeds", "1") == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert "RTE seed 1: fairseq-train ended with status 1 (out of everything); see" in error
    assert (tmp_path / "RTE" / "seed1" / "train.log").read_text().strip() == "out of everything"


def test_an_output_that_is_a_file(checkpoint, prepared, tmp_path, capsys):
    (tmp_path / "file").touch()
    for flags in (), ("--slurm",):
        assert run_glue(checkpoint, prepared, tmp_path / "file", "--tasks", "RTE", *flags) == 2
        error = capsys.readouterr().err
        assert f"--output {tmp_path / 'file'}" in error and "cannot write it" in error and error.count("\n") == 1


def test_slurm_array_runs_one_restart_a_task(checkpoint, prepared, tmp_path, capsys, monkeypatch):
    flags = ("--tasks", "RTE", "MNLI", "--seeds", "3")
    output = tmp_path / "g r"
    assert run_glue(checkpoint, prepared, output, *flags, "--slurm=--partition=gpu --comment='a b' --gres=gpu:1") == 0
    script = output / "glue.sbatch"
    assert shlex.split(capsys.readouterr().out) == ["sbatch", str(script)]
    text = script.read_text()
    assert [shlex.split(line) for line in text.splitlines() if line.startswith("#SBATCH")] == [
        ["#SBATCH", flag]
        for flag in (
            *("--job-name=glue", "--array=0-5", f"--output={output}/slurm-%a.log"),
            *("--partition=gpu", "--comment=a b", "--gres=gpu:1"),
        )
    ]
    subprocess.run(["bash", "-n", str(script)], check=True)
    line = next(line for line in text.splitlines() if line.startswith("srun"))
    arguments = shlex.split(line.replace('"$SLURM_ARRAY_TASK_ID"', "4"))[4:]
    ran = []
    monkeypatch.setattr(Restart, "run", lambda self, *_: ran.append((self.data.task.name, self.seed, self.settings)) or {
        "metrics": {"valid": {"accuracy": 1.0}}, "epoch": 1, "agrees_with_fairseq": True})  # fmt: skip
    assert main(arguments) == 0
    # tasks come in the table's order
    assert [entry[:2] for entry in ran] == [("RTE", 2)]
    assert ran[0][2].learning_rate == 0.01 and ran[0][2].epochs == 2
    assert main([*arguments[:-1], "6"]) == 2
    assert "--restart 6: there are restarts 0 to 5" in capsys.readouterr().err


def test_the_submission_has_every_row_in_gluess_words(runs, prepared, tmp_path, capsys):
    output = tmp_path / "submission.zip"
    flags = ["--data", str(prepared), "--output", str(output), "--device", "cpu"]
    assert main(["glue", "predict", "--checkpoints", str(runs), *flags, "--majority", "WNLI"]) == 0
    with zipfile.ZipFile(output) as archive:
        files = {name: archive.read(name).decode().splitlines() for name in archive.namelist()}
    rows = {"STS-B.tsv": "test", "MNLI-m.tsv": "test", "MNLI-mm.tsv": "test1", "RTE.tsv": "test", "WNLI.tsv": "test"}
    rows["AX.tsv"] = "test"
    assert {name: len(lines) - 1 for name, lines in files.items()} == {name: ROWS[s] for name, s in rows.items()}
    for name, lines in files.items():
        assert lines[0] == "index\tprediction"
        cells = [line.split("\t") for line in lines[1:]]
        assert [cell[0] for cell in cells] == [str(number) for number in range(len(cells))]
        labels = GLUE_TASKS[{"MNLI-m": "MNLI", "MNLI-mm": "MNLI"}.get(name[:-4], name[:-4])].labels
        assert all(cell[1] in labels if labels else 0 <= float(cell[1]) <= 5 for cell in cells), name
    data = TaskData.open(prepared, GLUE_TASKS["AX"])
    expected = Classifier(runs / "MNLI" / "seed1" / "model.pt", data).predict(data, "test", 24)
    assert [line.split("\t")[1] for line in files["AX.tsv"][1:]] == [data.task.labels[i] for i in expected]
    assert len({line.split("\t")[1] for line in files["WNLI.tsv"][1:]}) == 1
    captured = capsys.readouterr()
    assert "GLUE's server also needs: CoLA.tsv, SST-2.tsv, MRPC.tsv, QNLI.tsv, QQP.tsv" in captured.err
    assert main(["glue", "predict", "--checkpoints", str(runs), *flags]) == 2
    assert "exists already" in capsys.readouterr().err
    # a single checkpoint, by name; it makes the same file
    single = f"RTE={runs / 'RTE' / 'seed1' / 'model.pt'}"
    assert main(["glue", "predict", "--checkpoints", single, *flags, "--overwrite"]) == 0
    with zipfile.ZipFile(output) as archive:
        assert archive.read("RTE.tsv").decode().splitlines() == files["RTE.tsv"]
    # of another task
    assert main(["glue", "predict", "--checkpoints", single.replace("RTE=", "MNLI="), *flags, "--overwrite"]) == 2
    assert "has 2 outputs, but MNLI needs 3" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tasks", "AX"], "AX: has no training data; glue predict predicts it with the model of MNLI"),
        (["--tasks", "RTE", "--seeds", "2", "2"], "--seeds 2 2: give a number of restarts, or different seeds"),
        (["--tasks", "RTE", "--seeds", "0"], "--seeds 0"),
        (["--tasks", "CoLA"], "has no CoLA prepared"),
        (["--tasks", "RTE", "--slurm=--comment='a b"], "--slurm --comment='a b: No closing quotation; balance the"),
        (["--tasks", "RTE", "--local-jobs", "0"], "--local-jobs 0"),
        (["--tasks", "RTE", "--epochs", "0"], "--epochs 0: must be 1 or more"),
        (["--tasks", "RTE", "--lr", "-1"], "--lr -1.0: must be 0 or more"),
    ],
)
def test_mistakes_are_told_before_anything_runs(arguments, message, checkpoint, prepared, tmp_path, capsys):
    assert run_glue(checkpoint, prepared, tmp_path / "out", *arguments) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.real
def test_real_cola_and_rte(checkpoint, data_bin, tmp_path, capsys):
    folder = SHARED / "glue"
    if not folder.is_dir():
        pytest.skip(f"no {folder}")
    flags = ["--glue-dir", str(folder), "--data-bin", str(data_bin), "--tokenizer", "whitespace"]
    dest = tmp_path / "bin"
    assert main(["glue", "prepare", *flags, "--tasks", "CoLA", "RTE", "--dest", str(dest), "--split-dev", "10/90"]) == 0
    out = capsys.readouterr().out
    assert "train 8,551, valid 104, heldout 939" in out and "train 2,490, valid 28, heldout 249" in out
    more = ("--tasks", "CoLA", "RTE", "--seeds", "1", "--epochs", "1", "--batch-size", "64")
    assert run_glue(checkpoint, dest, tmp_path / "runs", *more) == 0
    report = json.loads((tmp_path / "runs" / "report.json").read_text())
    assert report["columns"] == ["CoLA", "RTE", "Avg."]
    assert report["protocol"]["split"] == "held-out part of dev"
    assert all(one["agrees_with_fairseq"] for one in report["rows"][0]["details"]["restarts"])
    # a tiny model that knows none of the words scores about the share of the larger class
    assert 40 < report["rows"][0]["scores"]["RTE"] < 60
