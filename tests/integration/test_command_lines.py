"""A user's command lines, as subprocesses: train, resume, hydra, two workers, validate."""

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import zygote
from tests.conftest import ROOT, binarize, run, run_workers, tool
from tests.faults.commands import fairseq_train, same, saved
from tests.faults.commands import run as in_a_fork
from tests.faults.test_mistakes import CONFIG

pytestmark = pytest.mark.slow

RUN = (
    *"--user-dir fairseq_clear --task clear_lm --arch clear_roberta_tiny --criterion clear_nt_xent".split(),
    *("--sample-break-mode", "eos", "--tokens-per-sample", "32", "--augment", "del-word", "--pooling", "mean", "--cpu"),
    *("--optimizer", "adam", "--lr", "1e-3", "--lr-scheduler", "polynomial_decay", "--total-num-update", "100"),
    *("--batch-size", "8", "--log-format", "json", "--log-interval", "1", "--no-epoch-checkpoints"),
)


def train(data: Path, folder: Path, *flags: str, check: bool = True) -> Any:
    return run(*tool("train"), data, *RUN, "--save-dir", folder, *flags, check=check)


def numbers(result: Any, kind: str = "train_inner") -> list[dict[str, Any]]:
    """What was logged, line by line."""
    lines = re.findall(rf"\| {kind} \| (\{{.*\}})", result.stdout + result.stderr)
    return [json.loads(line) for line in lines]


def state(folder: Path) -> list[Any]:
    found = saved(folder)
    extra = found["extra_state"]
    return [found["model"], found["last_optimizer_state"], extra["train_iterator"], extra.get("ema")]


PRECISIONS: dict[str, tuple[str, ...]] = {
    "float32": (),
    "bf16": ("--bf16", "--optimizer", "clear_adamw"),
    "fp16": (
        *("--fp16", "--fp16-no-flatten-grads", "--fp16-init-scale", "4", "--fp16-scale-window", "5"),
        *("--optimizer", "clear_adamw"),
    ),
}
RECIPES: dict[str, tuple[str, ...]] = {
    "nt-xent": (),
    "self-guided": ("--criterion", "clear_self_guided", "--augment", "none", "--objective", "sg"),
    "moco": ("--criterion", "clear_moco", "--queue-size", "37", "--key-momentum", "0.9"),
}
RESUMED = {
    f"{recipe}, {precision}": (*own, *flags)
    for recipe, own in RECIPES.items()
    for precision, flags in PRECISIONS.items()
}
# 120 + 13 sentences in batches of 8: 17 an epoch, of other texts each time
RESUMED |= {f"mix, {how}": ("--mix", "DATA:0.9,OTHER:0.1", "--mix-batches", how) for how in ("any", "one")}


def take_over(folder: Path, update: int) -> list[Any]:
    """Begin the folder "resumed" as a run that was killed after this update of "straight" leaves it; returns its state."""
    (folder / "resumed").mkdir()
    (saved,) = (folder / "straight").glob(f"checkpoint_*_{update}.pt")
    saved.rename(folder / "resumed" / "checkpoint_last.pt")
    return state(folder / "resumed")


def interrupted(folder: Path, *command: str | Path) -> tuple[Any, list[Any]]:
    """Train 17 updates, and again from the checkpoint of the 11th. Returns the first run, and the state at the 11th."""
    command = (*command, "--max-update", "17", "--save-dir")
    straight = run(*command, folder / "straight", "--save-interval-updates", "11")
    halfway = take_over(folder, 11)
    resumed = run(*command, folder / "resumed")
    assert same(state(folder / "straight"), state(folder / "resumed"))
    assert not same(state(folder / "straight")[0], halfway[0])
    assert numbers(straight)[-1]["loss"] == numbers(resumed)[-1]["loss"]
    return straight, halfway


@pytest.mark.parametrize("recipe", RESUMED)
def test_resumed_is_uninterrupted(
    recipe: str,
    data_bin: Path,
    other_bin: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # a folder of sockets, or one whose name is too long for them
    tmp_path, temporary = (
        tmp_path_factory.mktemp("run"),
        tmp_path_factory.mktemp("t" * 80 if recipe == "mix, any" else "t"),
    )
    monkeypatch.setenv("TMPDIR", str(temporary))
    # 120 sentences in batches of 8 at update frequency 2: 8 updates an epoch, so 11 is in the middle of the second, whose
    # batches are its own.
    named = [flag.replace("DATA", str(data_bin)).replace("OTHER", str(other_bin)) for flag in RESUMED[recipe]]
    flags = (*named, "--update-freq", "2", "--num-workers", "2")
    _, halfway = interrupted(tmp_path, *tool("train"), data_bin, *RUN, *flags)
    assert halfway[2]["iterations_in_epoch"] == (4 if "mix" in recipe else 6)
    assert not list(temporary.glob("pymp*"))  # of the data loader's processes


def test_half_precision_resumes_from_masters_not_from_rounded_weights(data_bin: Path, tmp_path: Path) -> None:
    train(data_bin, tmp_path / "run", "--bf16", "--max-update", "3")
    path = tmp_path / "run" / "checkpoint_last.pt"
    state = saved(tmp_path / "run")
    masters = state["last_optimizer_state"].pop("clear_fp32_masters")
    assert all(master.dtype == torch.float32 for master in masters)
    assert any(not torch.equal(master, master.bfloat16().float()) for master in masters)
    torch.save(state, path)
    rounded = train(data_bin, tmp_path / "run", "--bf16", "--max-update", "4")
    assert "holds no float32 master weights" in rounded.stdout + rounded.stderr


def test_a_text_of_three_samples_is_trained_on_and_validated(data_bin: Path, tmp_path: Path) -> None:
    """fairseq leaves such a block out of training, and ends with an error in validation."""
    lines = ["bada befe", " ".join(["bada"] * 96), "begi"]
    binarize(tmp_path / "bin", data_bin / "dict.txt", train=lines, valid=lines)
    flags = ("--sample-break-mode", "complete", "--tokens-per-sample", "32", "--max-epoch", "1", "--batch-size", "1")
    result = train(tmp_path / "bin", tmp_path / "run", *flags, "--criterion", "masked_lm")
    log = result.stdout + result.stderr
    for split in ("train", "valid"):
        assert f"({split}): 1 sentences longer than --tokens-per-sample 32, split into 4 samples" in log
    assert "skipped" not in log
    assert len(numbers(result, "valid")) == 1 and int(numbers(result, "train")[0]["train_num_updates"]) == 6


TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of fairseq's commands whose processes are forked."""
    folder = tmp_path_factory.mktemp("bin")
    zygote.write_scripts(folder, "fairseq-train", "fairseq-hydra-train")
    return folder


@pytest.mark.parametrize("backend", ["legacy_ddp", "pytorch_ddp"])
def test_two_workers_under_torchrun(backend: str, data_bin: Path, scripts: Path, tmp_path: Path) -> None:
    """README's line, and the same with ``-m``; 120 sentences in batches of 8 are 15 batches: one worker runs out first."""
    command = ("--no-python", scripts / "fairseq-train") if backend == "legacy_ddp" else ("-m", "fairseq_cli.train")
    flags = (*RUN, "--save-dir", tmp_path / "run", "--update-freq", "4", "--max-epoch", "2", "--ddp-backend", backend)
    result = run(*TORCHRUN, *command, data_bin, *flags)
    train_lines = numbers(result, "train_inner")
    assert [int(line["num_updates"]) for line in train_lines] == [1, 2, 3, 4], "one run, not two"
    assert max(float(line["negatives_per_query"]) for line in train_lines) == 30
    assert saved(tmp_path / "run")["extra_state"]["train_iterator"]["epoch"] == 3
    assert "workers    2 on CPUs" in result.stdout


def test_two_workers_train_the_run_of_one(data_bin: Path, tmp_path: Path) -> None:
    """Not only an update: two epochs with half the batch each. The control: half the batch on one worker."""
    command = (*tool("train"), data_bin, *RUN, "--dropout", "0", "--attention-dropout", "0", "--disable-validation")
    weights = []
    for name, workers, batch in (("one", 1, 16), ("two", 2, 8), ("half", 1, 8)):
        told = ("--batch-size", str(batch), "--max-update", "16", "--save-dir", tmp_path / name)
        run_workers(workers, *command, *told)
        weights.append(torch.cat([weight.flatten() for weight in saved(tmp_path / name)["model"].values()]))
    two, half = ((weights[0] - other).norm() / weights[0].norm() for other in weights[1:])
    assert two < 1e-4 < 1e-2 < half, (two, half)


def test_two_workers_resume_a_mix(data_bin: Path, other_bin: Path, tmp_path: Path) -> None:
    """120 + 24 sentences in batches of 4: 30 and 6 batches, 9 updates an epoch; 12 is in the middle of the second."""
    mix = ("--mix", f"{data_bin}:5,{other_bin}:1", "--mix-batches", "one", "--batch-size", "4", "--update-freq", "2")
    command = (*tool("train"), data_bin, *RUN, *mix, "--disable-validation")
    command = (*command, "--max-update", "15", "--save-dir")
    straight, _ = run_workers(2, *command, tmp_path / "straight", "--save-interval-updates", "12")
    halfway = take_over(tmp_path, 12)
    assert (halfway[2]["epoch"], halfway[2]["iterations_in_epoch"]) == (2, 6)
    run_workers(2, *command, tmp_path / "resumed")
    assert same(state(tmp_path / "straight"), state(tmp_path / "resumed"))
    assert not same(state(tmp_path / "straight")[0], halfway[0])
    for said in ("weight 5, 83.3% of an epoch (120)", "weight 1, 16.7% of an epoch (24); each batch of one corpus"):
        assert said in straight.stdout + straight.stderr


def test_two_workers_resume_with_the_same_patience(data_bin: Path, tmp_path: Path) -> None:
    """Only the first worker reads the checkpoint; the others must know its count too, or they wait for it at the end."""
    patient = ("--lr", "1e-12", "--patience", "2", "--validate-interval-updates", "2", "--save-dir", tmp_path / "run")
    command = (*tool("train"), data_bin, *RUN, *patient, "--max-update")
    run_workers(2, *command, "4")
    (ended, _) = run_workers(2, *command, "20")
    assert "early stop: loss has not improved for 2 validations" in ended.stdout + ended.stderr


def test_hydra_under_torchrun(data_bin: Path, scripts: Path, tmp_path: Path) -> None:
    """fairseq-hydra-train loads the plugin after it has decided how many workers there are."""
    config = CONFIG.format(plugin=ROOT / "fairseq_clear", data=data_bin, save_dir=tmp_path / "run")
    (tmp_path / "run.yaml").write_text(config)
    command = (scripts / "fairseq-hydra-train", "--config-dir", tmp_path, "--config-name", "run")
    logged = (f"hydra.run.dir={tmp_path}", "common.log_format=json", "common.log_interval=1")
    result = run(*TORCHRUN, "--no-python", *command, *logged)
    assert "workers    2 on CPUs" in result.stdout and result.stdout.count("done training") == 1, result.stdout[-3000:]
    assert max(map(float, re.findall(r'"negatives_per_query": "?([0-9.]+)', result.stdout))) == 30


PLACE, THREE = "RANK=0 MASTER_ADDR=localhost MASTER_PORT=1", "--distributed-world-size 3"


@pytest.mark.parametrize(
    ("variables", "flags", "said"),
    [
        ("", "", "WORLD_SIZE=2: RANK and MASTER_ADDR and MASTER_PORT not set"),
        (PLACE, THREE, "--distributed-world-size 3: WORLD_SIZE is 2"),
        (PLACE, f"{THREE} --distributed-init-method tcp://localhost:1", "--distributed-world-size 3: WORLD_SIZE is 2"),
    ],
)
def test_an_environment_of_other_workers(variables, flags, said, data_bin, tmp_path) -> None:
    def work() -> int:
        os.environ.update(WORLD_SIZE="2", **dict(variable.split("=") for variable in variables.split()))
        return fairseq_train(data_bin, tmp_path / "run", *flags.split())

    assert in_a_fork(work, tmp_path / "log") == 2
    text = (tmp_path / "log").read_text()
    assert said in text and "Traceback" not in text and not (tmp_path / "run").exists()


VALIDATE = tuple("--user-dir fairseq_clear --task clear_lm --cpu --batch-size 8 --valid-subset valid".split())


def test_validate(data_bin: Path, other_bin: Path, tmp_path: Path) -> None:
    """Without the data of a mix, which only training needs."""
    other = Path(shutil.copytree(other_bin, tmp_path / "other"))
    trained = train(data_bin, tmp_path / "run", "--mix", f"{data_bin}:1,{other}:1", "--max-update", "3")
    shutil.rmtree(other)
    last = tmp_path / "run" / "checkpoint_last.pt"
    result = run(*tool("validate"), data_bin, *VALIDATE, "--path", last, "--log-format", "json")
    again, before = numbers(result, "valid")[-1], numbers(trained, "valid")[-1]
    assert float(again["valid_loss"]) == pytest.approx(float(before["valid_loss"]), abs=2e-3)
