"""Stopped by a signal and resumed, or with a worker killed: the run is the run that was not, and nothing waits for ever."""

import os
import re
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fairseq_clear.errors import UserError
from fairseq_clear.launch import preemption
from fairseq_clear.launch.peer_watchdog import EXIT_LOST, PeerWatchdog
from fairseq_clear.patches import stopping
from fairseq_clear.patches.stopping import EXIT_INTERRUPTED, EXIT_PREEMPTED
from tests import zygote
from tests.conftest import ROOT, Ranks, free_port, run
from tests.faults.commands import NT_XENT, TRAINING, same, saved
from tests.training import configuration

pytestmark = pytest.mark.slow

# 120 sentences in batches of 4 for two workers at update frequency 2: 8 updates an epoch.
FLAGS = (
    *(*TRAINING, *NT_XENT, "--batch-size", "4", "--update-freq", "2", "--max-update", "13", "--num-workers", "1"),
    *("--save-interval-updates", "0", "--log-format", "json", "--log-interval", "1"),
)
MINUTE = 60
# Tells the first update that ends from the test: the run goes on only when the test has sent its signal.
PAUSE = """
import pathlib, sys, time
import fairseq_cli.train as host
from fairseq.trainer import Trainer
folder, name, when = pathlib.Path(sys.argv.pop(1)), sys.argv.pop(1), int(sys.argv.pop(1))
stock, calls = getattr(Trainer, name), []
def paused(self, *args, **kwargs):
    calls.append(1)
    if len(calls) == when:
        (folder / f"at{self.data_parallel_rank}").touch()
        while not (folder / "go").exists():
            time.sleep(0.01)
    return stock(self, *args, **kwargs)
setattr(Trainer, name, paused)
"""
PLAIN_PAUSE = PAUSE + "sys.argv.pop(1); host.cli_main()"
PAUSE += "from fairseq_clear.launch.preemption import main\nmain(sys.argv[1:])"


def start(command: Sequence[str], data: Path, folder: Path, *flags: str, workers: int = 2) -> list[zygote.Forked]:
    """Workers that meet over TCP, each with its output in a file."""
    folder.mkdir(parents=True, exist_ok=True)
    meet = f"tcp://localhost:{free_port()}"
    started = []
    for rank in range(workers):
        line = [*command, "fairseq-train", str(data), *FLAGS, "--save-dir", str(folder), *flags]
        if workers > 1:
            line += ["--distributed-init-method", meet, "--distributed-world-size", str(workers), "--device-id", "0"]
            line += ["--distributed-rank", str(rank), "--distributed-no-spawn", "--distributed-backend", "gloo"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        with (folder / f"log{rank}").open("a") as log:  # a session of its own, as of a terminal
            options: Any = {"stdout": log.fileno(), "stderr": log.fileno(), "start_new_session": True}
            started.append(zygote.start(line, cwd=ROOT, env=environment, **options))
    return started


WRAPPED = (sys.executable, "-m", "fairseq_clear.launch.preemption")
STOCK = (sys.executable, "-c", "import sys; sys.argv.pop(1); from fairseq_cli.train import cli_main; cli_main()")


@contextmanager
def paused(
    data: Path, folder: Path, *flags: str, workers: int = 2, step: str = "train_step", at: int = 11, script: str = PAUSE
) -> Iterator[Any]:
    """Workers that stand still before the ``at``-th call of a step; they go on when the block ends."""
    command = (sys.executable, "-c", script, str(folder), step, str(at))
    processes = start(command, data, folder, *flags, workers=workers)
    try:
        while not all((folder / f"at{rank}").exists() for rank in range(workers)):
            assert all(process.poll() is None for process in processes), (folder / "log0").read_text()[-3000:]
            os.sched_yield()
        yield processes
        (folder / "go").touch()
        for process in processes:
            process.wait(MINUTE)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def finish(processes: list[zygote.Forked]) -> list[int]:
    try:
        return [process.wait(5 * MINUTE) for process in processes]
    finally:
        for process in processes:
            process.kill()


def log(folder: Path, rank: int = 0) -> str:
    return (folder / f"log{rank}").read_text()


@pytest.fixture(scope="module")
def undisturbed(data_bin: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two workers, 13 updates, by fairseq itself."""
    folder = tmp_path_factory.mktemp("undisturbed")
    assert finish(start(STOCK, data_bin, folder)) == [0, 0], log(folder)[-3000:]
    return folder


def test_without_a_signal_it_is_the_same_run(undisturbed: Path, data_bin: Path, tmp_path: Path) -> None:
    assert finish(start(WRAPPED, data_bin, tmp_path)) == [0, 0], log(tmp_path)[-3000:]
    assert finish(start(WRAPPED, data_bin, tmp_path)) == [0, 0]  # over already: fairseq alone would make a 14th update
    assert same(saved(undisturbed)["model"], saved(tmp_path)["model"])


@pytest.mark.parametrize(
    ("step", "at", "told", "number", "updates", "epoch"),
    [
        ("train_step", 11, 1, signal.SIGUSR1, 11, 2),  # in the midst of an epoch
        ("valid_step", 2, 1, signal.SIGUSR1, 8, 2),
        ("train_step", 13, 0, signal.SIGTERM, 13, 2),  # the last update
    ],
)
def test_one_worker_is_told_to_stop(step, at, told, number, updates, epoch, undisturbed, data_bin, tmp_path) -> None:
    with paused(data_bin, tmp_path, step=step, at=at) as processes:
        processes[told].send_signal(number)
    assert [process.returncode for process in processes] == [EXIT_PREEMPTED] * 2, log(tmp_path)[-3000:]
    halfway, extra = saved(tmp_path), saved(tmp_path)["extra_state"]
    assert (halfway["optimizer_history"][-1]["num_updates"], extra["train_iterator"]["epoch"]) == (updates, epoch)
    if at == 11:
        assert extra["train_iterator"]["iterations_in_epoch"] == 6  # of 16, two an update
        assert log(tmp_path).count("| valid | {") == 1  # that of the first epoch's end
    assert at != 13 or extra["val_loss"] is None
    assert finish(start(WRAPPED, data_bin, tmp_path)) == [0, 0], log(tmp_path)[-3000:]
    whole, resumed = saved(undisturbed), saved(tmp_path)
    assert same(whole["model"], resumed["model"]) and same(whole["model"], halfway["model"]) == (at == 13)
    losses = [path["extra_state"]["val_loss"] for path in (whole, resumed)]
    assert losses[0] == pytest.approx(losses[1])  # a validation that was left out is made up for


@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_on_plain_fairseq_train(workers: int, undisturbed: Path, data_bin: Path, tmp_path: Path) -> None:
    """A terminal signals every process of a command, the data loader's too; with two workers, one is signalled here."""
    with paused(data_bin, tmp_path / "run", workers=workers, script=PLAIN_PAUSE) as processes:
        os.killpg(processes[-1].pid, signal.SIGINT)
    assert [process.returncode for process in processes] == [EXIT_INTERRUPTED] * workers, log(tmp_path / "run")[-3000:]
    text = log(tmp_path / "run")
    assert "stopped by a signal after update 11" in text and "the same command resumes from there" in text
    assert "Traceback" not in text
    assert finish(start(STOCK, data_bin, tmp_path / "run", workers=workers)) == [0] * workers
    assert "from update 11 of" in log(tmp_path / "run")
    if workers == 1:
        undisturbed = tmp_path / "straight"
        assert finish(start(STOCK, data_bin, undisturbed, workers=1)) == [0]
    assert same(saved(undisturbed)["model"], saved(tmp_path / "run")["model"])


@pytest.mark.parametrize("at", [1, 3])
def test_leaves_at_once(at: int, data_bin: Path, tmp_path: Path) -> None:
    """At the first Ctrl-C where no update was made, else at the second."""
    with paused(data_bin, tmp_path, workers=1, at=at, script=PLAIN_PAUSE) as (process,):
        process.send_signal(signal.SIGINT)
        if at > 1:
            while "stopping after this update" not in log(tmp_path):
                assert process.poll() is None
                os.sched_yield()
            process.send_signal(signal.SIGINT)
        assert process.wait(MINUTE) == EXIT_INTERRUPTED
    said = "interrupted before the first update" if at == 1 else "interrupted again"
    assert said in log(tmp_path) and not (tmp_path / "checkpoint_last.pt").exists()


LEFT_BEHIND = """
import multiprocessing, time
from fairseq_clear.patches import stopping
stopping.listen()
context = multiprocessing.get_context("fork")
begun = context.Event()
context.Process(target=lambda: (begun.set(), time.sleep(600)), daemon=True).start()
begun.wait()
"""


def test_a_process_ends_though_the_data_loader_s_processes_block_signals() -> None:
    """multiprocessing sends them SIGTERM at exit, then waits for them."""
    assert run(sys.executable, "-c", LEFT_BEHIND).returncode == 0


@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_worker_ends_the_others(killed: int, undisturbed: Path, data_bin: Path, tmp_path: Path) -> None:
    flags = ("--save-interval-updates", "4", "--disable-validation")
    with paused(data_bin, tmp_path, *flags) as processes:
        processes[killed].kill()
        # The other stands still, outside of any collective: only the peer watchdog can notice it.
        assert processes[1 - killed].wait(MINUTE) == EXIT_LOST
    assert f"worker {killed} is lost" in log(tmp_path, 1 - killed)
    if killed == 0:
        return
    assert saved(tmp_path)["optimizer_history"][-1]["num_updates"] == 8
    assert finish(start(WRAPPED, data_bin, tmp_path, *flags)) == [0, 0]
    assert same(saved(undisturbed)["model"], saved(tmp_path)["model"])


@pytest.mark.parametrize(
    ("flags", "workers", "said"),
    [
        (["--no-save"], 1, "--no-save: a preempted run resumes"),
        (["--reset-optimizer"], 1, "--reset-optimizer: it would be repeated"),
        (["--restore-file", "other.pt"], 1, "--restore-file: it would be repeated"),
        ([], 2, "--distributed-world-size 2: signals do not reach workers"),
    ],
)
def test_what_cannot_be_resumed_is_rejected(flags: list[str], workers: int, said: str, data_bin: Path) -> None:
    preemption._check(configuration(data_bin))
    preemption._check(configuration(data_bin, "--distributed-no-spawn", world_size=2))
    with pytest.raises(UserError, match=re.escape(said)):
        preemption._check(configuration(data_bin, *flags, world_size=workers))


@pytest.mark.parametrize("text", ["soon", "0", "inf"])
def test_a_timeout_is_seconds(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert preemption._timeout() == 600
    monkeypatch.setenv("FAIRSEQ_CLEAR_TIMEOUT", text)
    with pytest.raises(UserError, match=f"FAIRSEQ_CLEAR_TIMEOUT={text}: expected a whole number of seconds"):
        preemption._timeout()


def test_an_error_of_one_worker_is_the_error_of_all(data_bin: Path, tmp_path: Path) -> None:
    broken = PAUSE.replace("while not", "if self.data_parallel_rank: raise SystemExit(3)\n        while not")
    processes = start((sys.executable, "-c", broken, str(tmp_path), "train_step", "2"), data_bin, tmp_path)
    assert finish(processes) == [3, 3], log(tmp_path)[-3000:]
    assert "worker 1 ended with exit code 3" in log(tmp_path)


def test_usage() -> None:
    done = run(*WRAPPED, "fairseq-generate", check=False)
    assert done.returncode == 2 and done.stderr.splitlines()[-1].startswith("usage: ")


def meet_beside_strangers(rank: int, host: str) -> list[str]:
    connect = socket.create_connection

    def after_strangers(place: tuple[str, int], timeout: float) -> socket.socket:
        with connect(place), connect(place) as talking:
            talking.sendall(b"GET / HTTP/1.1\r\n\r\n")
        return connect(place, timeout)

    socket.create_connection = after_strangers  # type: ignore[assignment]  # in a process of its own
    watchdog = PeerWatchdog(host, torch.device("cpu"))
    names = list(watchdog.peers.values())
    torch.distributed.barrier()
    watchdog.leave(0)
    return names


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.parametrize("host", ["127.0.0.1", *(["::1"] if has_ipv6() else [])])
def test_a_stranger_who_connects_takes_no_workers_place(ranks: Ranks, host: str) -> None:
    assert ranks(2, meet_beside_strangers, host) == [["worker 1"], ["worker 0"]]


def test_the_timeout_is_that_of_all_collectives(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[float] = []
    monkeypatch.setenv("FAIRSEQ_CLEAR_TIMEOUT", "77")
    monkeypatch.setattr(preemption.dist, "new_group", lambda timeout: made.append(timeout.total_seconds()) or "group")
    monkeypatch.setattr(preemption.dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(preemption, "PeerWatchdog", lambda host, device: None)
    monkeypatch.setattr(preemption.stopping, "main_device", lambda: None)
    monkeypatch.setattr(preemption.distributed_utils.get_global_group, "_global_group", None, raising=False)
    run_ = preemption.Preemption()
    run_._distributed_init = lambda cfg: 0
    cfg = SimpleNamespace(distributed_training=SimpleNamespace(distributed_init_method="tcp://node:1"))
    assert run_.distributed_init(cfg) == 0
    assert made == [77] and preemption.distributed_utils.get_global_group._global_group == "group"


@pytest.mark.parametrize("is_worker", [True, False])
def test_a_forwarded_interrupt_counts_once(is_worker: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # fairseq's parent process forwards Ctrl-C to its workers, which the terminal has signalled too
    exits: list[str] = []
    monkeypatch.setattr(stopping, "_exit_now", exits.append)
    monkeypatch.setattr(stopping, "_state", stopping._State(is_training=True))
    monkeypatch.setattr("multiprocessing.parent_process", lambda: object() if is_worker else None)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    for _ in range(2):
        stopping._handle_signal(signal.SIGINT, None)
    assert stopping._state.code == EXIT_INTERRUPTED and len(exits) == (not is_worker)


# A machine of two GPUs for fairseq's parent process, whose workers find none and train on the CPU.
SPAWNED = """
import runpy, sys, torch
if __name__ == "__main__":
    torch.cuda.device_count = lambda: 2
    runpy.run_module("fairseq_cli.train", run_name="__main__", alter_sys=True)
"""


def test_workers_that_fairseq_starts_are_patched(data_bin: Path, tmp_path: Path) -> None:
    flags = "--max-update 1 --distributed-backend gloo --ddp-backend pytorch_ddp --save-dir".split()
    done = run(sys.executable, "-c", SPAWNED, data_bin, *FLAGS, *flags, tmp_path)
    assert saved(tmp_path) and "2 on CPUs, float32" in done.stdout  # of RunTask.begin, which a patch calls
