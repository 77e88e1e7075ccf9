"""``fairseq-clear glue`` as a user types it: real fine-tuning by fairseq-train, a few updates of a tiny model."""

import json
import os
import shutil
import signal
import sys
from unittest import mock

import numpy as np
import pytest
import torch
from fairseq.checkpoint_utils import load_model_ensemble_and_task
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import f1_score, matthews_corrcoef

from fairseq_clear.cli.main import main
from fairseq_clear.evaluation.glue import glue_running
from fairseq_clear.evaluation.glue.glue_running import GlueRun
from fairseq_clear.evaluation.glue.glue_tasks import GLUE_TASKS
from tests.conftest import rejected
from tests.evaluation.glue.made import write_glue
from tests.zygote import forked_python

pytestmark = pytest.mark.slow

TASKS = ["CoLA", "MRPC", "RTE", "STS-B", "MNLI"]
HEAD = "sentence_classification_head"
PYTHON = sys.executable


@pytest.fixture(scope="module", autouse=True)
def forked_training():
    with mock.patch.object(sys, "executable", forked_python()):
        yield


@pytest.fixture(scope="module")
def prepared(data_bin, tmp_path_factory):
    folder = tmp_path_factory.mktemp("glue")
    flags = ["--glue-dir", str(write_glue(folder / "raw", TASKS)), "--tasks", *TASKS, "--max-length", "24"]
    data = ["--data-bin", str(data_bin), "--tokenizer", "whitespace", "--dest", str(folder / "bin")]
    assert main(["glue", "prepare", *flags, *data]) == 0
    return folder / "bin"


def command_line(checkpoint, prepared, output, *flags):
    base = ["glue", "run", "--checkpoint", str(checkpoint), "--data", str(prepared), "--recipe", "clear"]
    # the recipe's learning rates move a model of 4 updates by less than a class
    return [*base, "--output", str(output), "--epochs", "2", "--lr", "0.01", "--device", "cpu", *flags]


def run_glue(*arguments):
    return main(command_line(*arguments))


@pytest.fixture(scope="module")
def runs(checkpoint, prepared, tmp_path_factory):
    output = tmp_path_factory.mktemp("runs")
    assert run_glue(checkpoint, prepared, output, "--tasks", *TASKS, "--seeds", "1", "--label", "tiny") == 0
    return output


def result(runs, task, seed=1):
    return json.loads((runs / task / f"seed{seed}" / "result.json").read_text())


@pytest.mark.parametrize("name", TASKS)
def test_the_scores_are_the_kept_models(name, runs, prepared):
    path, task = runs / name / "seed1" / "model.pt", GLUE_TASKS[name]
    overrides = {"data": str(prepared / name), "no_shuffle": True}
    (model,), _, host = load_model_ensemble_and_task([str(path)], arg_overrides=overrides)
    model.register_classification_head(HEAD, len(task.labels) or 1)
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"], strict=True)
    assert state["last_optimizer_state"] is None
    for split, scores in result(runs, name)["metrics"].items():
        dataset = host.load_dataset(split) or host.dataset(split)
        batch = dataset.collater([dataset[index] for index in range(len(dataset))])
        with torch.no_grad():
            outputs, _ = model.eval()(**batch["net_input"], features_only=True, classification_head_name=HEAD)
        gold, guess = batch["target"].view(-1).numpy(), outputs.argmax(1).numpy() if task.labels else outputs[:, 0]
        expected = {"accuracy": np.mean(guess == gold)} if task.labels else {}
        if name == "CoLA":
            expected["mcc"] = matthews_corrcoef(gold, guess)
        elif name == "MRPC":
            expected["f1"] = f1_score(gold, guess)
            expected["acc_and_f1"] = (expected["accuracy"] + expected["f1"]) / 2
        elif name == "STS-B":
            expected |= {"pearson": pearsonr(guess, gold)[0], "spearman": spearmanr(guess, gold)[0]}
            expected["pearson_and_spearman"] = (expected["pearson"] + expected["spearman"]) / 2
        assert scores.pop("loss") > 0
        assert scores == pytest.approx({key: 100 * x for key, x in expected.items()}, abs=0.06)  # of one decimal


def test_the_report_has_median_and_best_over_the_seeds(runs, checkpoint, prepared, tmp_path):
    report = json.loads((runs / "report.json").read_text())
    assert report["columns"] == [*TASKS[:4], "MNLI-m", "MNLI-mm", "Avg."] and report["seeds"] == [1]
    flags = ("--tasks", "RTE", "MNLI", "--seeds", "1", "2", "3", "--epochs", "1")
    assert run_glue(checkpoint, prepared, tmp_path, *flags) == 0
    middle, best = json.loads((tmp_path / "report.json").read_text())["rows"]
    for row, place in ((middle, 1), (best, 2)):
        rte, matched, other = (
            sorted(result(tmp_path, task, seed)["metrics"][split]["accuracy"] for seed in (1, 2, 3))[place]
            for task, split in (("RTE", "valid"), ("MNLI", "valid"), ("MNLI", "valid1"))
        )
        average = (rte + (matched + other) / 2) / 2
        assert row["scores"] == {"RTE": rte, "MNLI-m": matched, "MNLI-mm": other, "Avg.": pytest.approx(average)}


def test_what_is_finished_is_not_done_again(runs, checkpoint, prepared, monkeypatch):
    before = (runs / "report.json").read_text()
    monkeypatch.setattr(glue_running.subprocess, "run", lambda *_, **__: pytest.fail("trained again"))
    assert run_glue(checkpoint, prepared, runs, "--tasks", *TASKS, "--seeds", "1", "--label", "tiny") == 0
    assert (runs / "report.json").read_text() == before
    with pytest.raises(pytest.fail.Exception):
        run_glue(checkpoint, prepared, runs, "--tasks", "RTE", "--seeds", "7")


@pytest.mark.parametrize("name", ["result.json", "settings.json"])
def test_a_damaged_record_is_one_line(name, runs, checkpoint, prepared, tmp_path, capsys):
    shutil.copytree(runs / "RTE", tmp_path / "RTE")
    (tmp_path / "RTE" / "seed1" / name).write_text("{")
    command = command_line(checkpoint, prepared, tmp_path, "--tasks", "RTE", "--seeds", "1")
    rejected(capsys, command, f"{name}: not valid JSON")


def test_a_run_that_was_stopped_ends_as_if_it_had_not(runs, checkpoint, prepared, tmp_path, monkeypatch):
    run = glue_running.subprocess.run

    def interrupted(command, **options):
        run([*command, "--max-epoch", "1"], **options)
        with open(options["stdout"].name, "a") as end:
            end.write('2026-01-01 00:00:00 | INFO | valid | {"epoch": 2, "valid_lo\n')
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(glue_running.subprocess, "run", interrupted)
        assert run_glue(checkpoint, prepared, tmp_path, "--tasks", "RTE", "--seeds", "1") == 130
    folder = tmp_path / "RTE" / "seed1"
    assert (folder / "checkpoint_last.pt").is_file() and not (folder / "result.json").exists()
    assert run_glue(checkpoint, prepared, tmp_path, "--tasks", "RTE", "--seeds", "1") == 0
    assert (folder / "train.log").read_text().count("begin training epoch 1") == 1
    assert result(tmp_path, "RTE") == result(runs, "RTE")
    mine, other = (torch.load(f / "RTE" / "seed1" / "model.pt", weights_only=True) for f in (tmp_path, runs))
    assert all(torch.equal(value, other["model"][key]) for key, value in mine["model"].items())
    assert not (folder / "checkpoint_last.pt").exists() and not (folder / "checkpoint_best.pt").exists()


@pytest.mark.parametrize("cause", ["signal", "failure"])
def test_a_training_that_ends_early(cause, checkpoint, prepared, tmp_path, capsys, monkeypatch):
    """SIGTERM reaches the command alone, not its training, which is another process."""
    code = "import os, signal; print(os.getpid(), flush=True); os.kill(os.getppid(), signal.SIGTERM); signal.pause()"
    code = code if cause == "signal" else "import os; print(os.getpid()); raise SystemExit(1)"
    monkeypatch.setattr(GlueRun, "command", lambda _: [PYTHON, "-c", code])
    command = command_line(checkpoint, prepared, tmp_path, "--tasks", "RTE", "--seeds", "1")
    if cause == "signal":
        with pytest.raises(SystemExit, match="143"):
            main(command)
    else:
        # nothing was trained, so other settings may follow
        for flags in ([], ["--batch-size", "8"]):
            (tmp_path / "RTE" / "seed1" / "train.log").unlink(missing_ok=True)
            rejected(capsys, [*command, *flags], "status 1; see the last lines of ")
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "RTE" / "seed1" / "train.log").read_text()), signal.SIGCONT)


@pytest.mark.parametrize("name", ["train.log/", ".model.pt.writing/", "train.log"])
def test_a_full_disk_is_one_line(name, checkpoint, prepared, tmp_path, capsys, monkeypatch):
    """Folders stand for files that cannot be written; a full disk leaves a log without the scores."""
    folder = tmp_path / "RTE" / "seed1"
    folder.mkdir(parents=True)
    if name.endswith("/"):
        (folder / name).mkdir()
    else:
        (folder / name).write_text("epoch 001 | valid on 'valid' subset | loss 1 | num_updates 99\n")
    shutil.copyfile(checkpoint, folder / "checkpoint_best.pt")
    monkeypatch.setattr(GlueRun, "command", lambda _: [PYTHON, "-c", ""])
    said = "seed1: cannot write it (" if name.endswith("/") else "train.log: holds no scores of update "
    rejected(capsys, command_line(checkpoint, prepared, tmp_path, "--tasks", "RTE", "--seeds", "1"), said)
    assert not (folder / "result.json").exists()


@pytest.mark.parametrize(
    ("flags", "where"),
    [
        ("--seeds 2 2", "--seeds 2 2: "),
        ("--tasks QQP", "glue prepare --tasks QQP"),
        ("--tasks XNLI", "argument --tasks: invalid choice: 'XNLI'"),
        ("--epochs 0", "--epochs 0: "),
        ("--lr -1", "--lr -1: "),
        ("--precision fp16 --device cpu", "--precision fp16: needs a GPU"),
        ("--batch-size 8", "another settings"),
        ("--checkpoint RTE/seed1/model.pt", "another checkpoint_hash"),
        (f"--output {__file__}", f"--output {__file__}/RTE/seed1: "),
        ("--data long --output out", "--max-length 24"),
        ("--data other --output out", "was prepared with another dict.txt"),
    ],
)
def test_mistakes_are_told_before_anything_runs(flags, where, runs, checkpoint, prepared, capsys, monkeypatch):
    monkeypatch.chdir(runs)
    monkeypatch.setattr(glue_running.subprocess, "run", lambda *_, **__: pytest.fail("trained"))
    for name in {"long", "other"} & {*flags.split()}:
        shutil.copytree(prepared / "RTE", runs / name / "RTE")
        record = json.loads((prepared / "RTE" / "glue.json").read_text())
        record["splits"]["valid"]["longest"] = 25  # which the checkpoint has no positions for
        record |= {"vocabulary_hash": "0"} if name == "other" else {}
        (runs / name / "RTE" / "glue.json").write_text(json.dumps(record))
    command = command_line(checkpoint, prepared, runs, "--tasks", "RTE", "--seeds", "1", *flags.split())
    rejected(capsys, command, where)


def test_text_writes_each_training_text_as_a_document(tmp_path, capsys):
    (tmp_path / "RTE").mkdir()
    rows = ('A "cat.\tA cat.', "Dogs ran.\tDogs ran.", "One.\t ", "bad")
    lines = ["sentence1\tsentence2\tlabel", *(f"{row}\tentailment" for row in rows)]
    (tmp_path / "RTE" / "train.tsv").write_text("\n".join(lines) + "\n")
    flags = ["--glue-dir", str(tmp_path), "--tasks", "RTE", "--dest", str(tmp_path / "out")]
    assert main(["glue", "text", *flags]) == 0
    assert "RTE: 5 texts, 1 malformed lines dropped" in capsys.readouterr().out
    assert (tmp_path / "out" / "RTE.txt").read_text() == 'A "cat.\n\nA cat.\n\nDogs ran.\n\nDogs ran.\n\nOne.\n'
    flags[3:4] = ["WNLI", "RTE"]
    assert main(["glue", "text", *flags]) == 2 and "RTE.txt: exists already" in capsys.readouterr().err
