"""scripts/slurm on a real Slurm (scripts/slurm/local_cluster.sh): preemption, a killed worker, cancellation, arrays.

``make test-slurm`` starts Slurm, runs these tests and stops it.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, run
from tests.launch.test_preemption import FLAGS, same, saved

pytestmark = [pytest.mark.slow, pytest.mark.slurm]
SLURM = ROOT / "scripts/slurm"
MINUTES = 60.0
# Replaces python: on its first start, it blocks before the 11th update until it receives a signal.
PYTHON = f"""#!{sys.executable}
import os, pathlib, signal, sys, time
from fairseq.trainer import Trainer
from fairseq_clear.launch.preemption import main
folder, stock, calls, told = pathlib.Path(os.environ["PAUSE_IN"]), Trainer.train_step, [], []
def watch(number):
    handle = signal.getsignal(number)
    def noted(*args):
        handle(*args)
        told.append(1)
    signal.signal(number, noted)
def paused(self, *args, **kwargs):
    calls.append(1)
    at = folder / f"at{{self.data_parallel_rank}}"
    if len(calls) == 11 and not at.exists():
        watch(signal.SIGUSR1), watch(signal.SIGTERM)
        begun = folder / f"pid{{self.data_parallel_rank}}"
        begun.write_text(str(os.getpid()))
        begun.rename(at)
        while not told:
            time.sleep(0.01)
    return stock(self, *args, **kwargs)
Trainer.train_step = paused
assert sys.argv[1].endswith("scripts/slurm/start.py")
main(sys.argv[2:])
"""


def slurm(*command: str | Path, **variables: str) -> str:
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1", **variables}
    line = [str(part) for part in command]
    return subprocess.run(line, check=True, capture_output=True, text=True, cwd=ROOT, env=environment).stdout.strip()


def facts(job: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in slurm("scontrol", "show", "job", job).split() if "=" in part)


def until(what: Callable[[], Any], seconds: float = 10 * MINUTES) -> float:
    """Poll until ``what`` is true; return the seconds it took."""
    begin = time.monotonic()
    while not what():
        assert time.monotonic() < begin + seconds, "timed out"
        time.sleep(0.2)
    return time.monotonic() - begin


def submit(data: Path, folder: Path, *flags: str, pause: bool = False) -> str:
    """Submit a pretraining with two tasks; return the job id."""
    folder.mkdir(parents=True, exist_ok=True)
    variables = {"PYTHON": sys.executable}
    if pause:
        python = folder / "python"
        python.write_text(PYTHON)
        python.chmod(0o755)
        variables = {"PYTHON": str(python), "PAUSE_IN": str(folder)}
    training = ("fairseq-train", data, *FLAGS, "--save-dir", folder, *flags)
    job = ("--parsable", "--ntasks=2", f"--output={folder}/log", SLURM / "pretrain.sbatch")
    return slurm("sbatch", *job, *training, **variables)


def wait_until_paused(job: str, folder: Path) -> list[int]:
    """Wait until both workers are paused; return their process ids."""
    files = [folder / f"at{rank}" for rank in range(2)]
    until(lambda: all(file.exists() for file in files) or facts(job)["JobState"] in {"FAILED", "COMPLETED"})
    assert all(file.exists() for file in files), (folder / "log").read_text()[-3000:]
    return [int(file.read_text()) for file in files]


def ended(job: str, folder: Path, state: str = "COMPLETED", restarts: int = 0) -> None:
    until(lambda: facts(job)["JobState"] in {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"})
    said = (folder / "log").read_text()
    assert facts(job)["JobState"] == state, said[-3000:]
    assert facts(job)["Restarts"] == str(restarts), said[-3000:]


@pytest.fixture(scope="module")
def undisturbed(data_bin: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    ended(submit(data_bin, folder), folder)
    return folder


@pytest.mark.parametrize("name", ["USR1", "TERM"])
def test_preempted_requeued_resumed(name: str, undisturbed: Path, data_bin: Path, tmp_path: Path) -> None:
    job = submit(data_bin, tmp_path, pause=True)
    wait_until_paused(job, tmp_path)
    slurm("scancel", f"--signal={name}", job)
    waited = until(lambda: facts(job)["Restarts"] == "1")
    halfway = saved(tmp_path)
    ended(job, tmp_path, restarts=1)
    log = (tmp_path / "log").read_text()
    assert log.count("stopped by a signal after update 11: ") == 1
    assert "pretrain.sbatch: preempted; back into the queue after 0 restarts" in log
    assert halfway["extra_state"]["train_iterator"]["iterations_in_epoch"] == 6  # of 16: in the middle of the epoch
    assert same(saved(undisturbed)["model"], saved(tmp_path)["model"])
    assert not same(saved(undisturbed)["model"], halfway["model"])
    print(f"{name}: {waited:.1f} s to the queue")


@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_worker(killed: int, undisturbed: Path, data_bin: Path, tmp_path: Path) -> None:
    job = submit(data_bin, tmp_path, "--save-interval-updates", "4", "--disable-validation", pause=True)
    workers = wait_until_paused(job, tmp_path)
    os.kill(workers[killed], signal.SIGKILL)
    waited = until(lambda: facts(job)["Restarts"] == "1", MINUTES)  # a hang would take longer
    ended(job, tmp_path, restarts=1)
    log = (tmp_path / "log").read_text()
    assert re.search(r"lost a worker \(exit code (76|1\d\d)\); back into the queue", log)
    assert "resumes    from update 8 of" in log
    assert same(saved(undisturbed)["model"], saved(tmp_path)["model"])
    print(f"worker {killed} killed: {waited:.1f} s to the queue")


def test_a_mistake_is_not_requeued(data_bin: Path, tmp_path: Path) -> None:
    job = submit(data_bin, tmp_path, "--no-save")
    ended(job, tmp_path, "FAILED")
    log = (tmp_path / "log").read_text()
    assert "exit code 2 after 0 restarts; not put back into the queue" in log and "Traceback" not in log
    assert facts(job)["ExitCode"] == "2:0"


def test_cancelled_is_cancelled(data_bin: Path, tmp_path: Path) -> None:
    job = submit(data_bin, tmp_path, pause=True)
    wait_until_paused(job, tmp_path)
    slurm("scancel", job)
    ended(job, tmp_path, "CANCELLED")
    assert "back into the queue" not in (tmp_path / "log").read_text()


def test_workers_of_a_job_embed_one_file(checkpoint: Path, data_bin: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("bada kefe\nligi\n" * 12_000)
    encoder = ["--checkpoint", checkpoint, "--data-bin", data_bin, "--tokenizer", "whitespace"]
    command = ["embed", tmp_path / "in.txt", *encoder, "--output"]
    job = [SLURM / "work.sbatch", *command, tmp_path / "two.npy"]
    slurm("sbatch", "--wait", "--ntasks=2", f"--output={tmp_path}/log", *job, PYTHON=sys.executable)
    assert "24,000 sentences" in (tmp_path / "log").read_text()
    run(sys.executable, "-m", "fairseq_clear.cli", *command, tmp_path / "one.npy")
    assert (tmp_path / "two.npy").read_bytes() == (tmp_path / "one.npy").read_bytes()
