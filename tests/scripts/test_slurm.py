"""scripts/slurm without a Slurm: what a worker is told, by the variables that srun would set, and the mistakes named."""

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, run

SLURM = ROOT / "scripts/slurm"
VARIABLES = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
    "SLURM_NTASKS": "16",
    "SLURM_PROCID": "11",
    "SLURM_LOCALID": "3",
    "SLURM_JOB_NODELIST": "node[03-04]",
}
PORT = str(10000 + 77 * 17)
STUBS = {
    "scontrol": '[ "$1" = requeue ] && echo "requeue $2" && exit\n'
    '[ "$1 $2 $3" = "show hostnames node[03-04]" ] || exit 1\nprintf "node03\\nnode04\\n"\n',
    "srun": 'printf "%s " srun "$@"\necho\nexit "${CODE:-0}"\n',
}


@pytest.fixture
def stubs(tmp_path: Path) -> Path:
    """A PATH on which Slurm's own commands say what they were told."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, body in STUBS.items():
        (folder / name).write_text(f"#!/usr/bin/env bash\n{body}")
        (folder / name).chmod(0o755)
    return folder


def call(stubs: Path, script: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "CUDA", "MAX_REST"))}
    environment = {**clean, "PATH": f"{stubs}:{os.environ['PATH']}", "PYTHON": "python", **variables}
    return run("bash", SLURM / script, *arguments, check=False, env=environment)


def rank(stubs: Path, *arguments: str, **variables: str) -> list[str]:
    """The command line of one worker, by --dry-run."""
    done = call(stubs, "launch.sh", "--dry-run", *arguments, **{**VARIABLES, **variables})
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert done.stdout.count("\n") == 1
    return done.stdout.split()


def test_a_worker_on_gpus_or_cpus(stubs: Path) -> None:
    assert rank(stubs, "fairseq-train", "bin", "--fp16") == [
        *("python", str(SLURM / "start.py"), "fairseq-train", "bin", "--fp16"),
        *("--distributed-init-method", f"tcp://node03:{PORT}", "--distributed-world-size", "16"),
        *("--distributed-rank", "11", "--distributed-backend", "nccl", "--distributed-no-spawn", "--device-id", "3"),
    ]
    told = rank(stubs, "/somewhere/fairseq-train", "bin", "--cpu")
    assert told[2:4] == ["fairseq-train", "bin"] and "gloo" in told
    told = rank(stubs, "fairseq-train", "bin", SLURM_NTASKS="1", SLURM_PROCID="0", SLURM_LOCALID="0")
    assert told[4:] == ["--distributed-world-size", "1", "--distributed-no-spawn", "--device-id", "0"]


def test_a_worker_of_a_hydra_recipe(stubs: Path) -> None:
    told = rank(stubs, "examples/train.sh", "clear/tiny", "bin", "-", "3", "common.cpu=true")
    assert told[:5] == [
        *("python", str(SLURM / "start.py"), "fairseq-hydra-train", "--config-dir"),
        f"{ROOT}/examples/clear/config",
    ]
    assert told[-7:] == [
        "common.cpu=true",
        f"distributed_training.distributed_init_method=tcp://node03:{PORT}",
        *("distributed_training.distributed_world_size=16", "distributed_training.distributed_rank=11"),
        *("distributed_training.distributed_backend=gloo", "distributed_training.distributed_no_spawn=true"),
        "distributed_training.device_id=3",
    ]
    told = rank(stubs, "examples/train.sh", "clear/base_256gpu", "bin", "-", "3", "++common.cpu=true")
    assert "distributed_training.distributed_backend=gloo" in told


@pytest.mark.parametrize(("visible", "device"), [("5", "0"), ("0,1,2,3", "3"), ("4,5", "1"), ("", "3")])
def test_the_device_is_one_that_the_worker_sees(stubs: Path, visible: str, device: str) -> None:
    assert rank(stubs, "fairseq-train", "bin", CUDA_VISIBLE_DEVICES=visible)[-1] == device


def test_ports_of_jobs_steps_and_restarts_differ(stubs: Path) -> None:
    def port(**variables: str) -> str:
        told = rank(stubs, "fairseq-train", "bin", **variables)
        return told[told.index("--distributed-init-method") + 1].rsplit(":", 1)[1]

    found = {port(), port(SLURM_JOB_ID="78"), port(SLURM_STEP_ID="1"), port(SLURM_RESTART_COUNT="1")}
    assert len(found) == 4 and all(10000 <= int(one) < 32768 for one in found)
    assert rank(stubs, "--port", "4321", "fairseq-train", "bin")[5].endswith(":4321")


@pytest.mark.parametrize(
    ("arguments", "variables", "said"),
    [
        ([], {}, "usage: "),
        (["fairseq-generate", "bin"], {}, "fairseq-generate: expected fairseq-train"),
        (["--port", "0", "fairseq-train"], {}, "--port 0: expected a number"),
        (["fairseq-train", "bin", "--distributed-rank", "0"], {}, "--distributed-rank: the launcher sets this"),
        (["fairseq-train", "bin"], {"SLURM_PROCID": ""}, "SLURM_PROCID=: expected a number; start by srun"),
        (["fairseq-train", "bin"], {"SLURM_PROCID": "16"}, "SLURM_PROCID=16 of SLURM_NTASKS=16"),
        (["fairseq-train", "bin"], {"SLURM_JOB_NODELIST": "x"}, "scontrol show hostnames x failed"),
    ],
)
def test_mistakes(stubs: Path, arguments: list[str], variables: dict[str, str], said: str) -> None:
    done = call(stubs, "launch.sh", *arguments, **{**VARIABLES, **variables})
    assert done.returncode == 2 and done.stdout == ""
    assert said in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.slow
def test_signals_wait_while_fairseq_is_loaded(tmp_path: Path) -> None:
    """And the wrapper takes them when it is there; without it they end a process at once."""
    loading = "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n"
    launch = tmp_path / "fairseq_clear" / "launch"
    launch.mkdir(parents=True)
    (launch.parent / "__init__.py").write_text(loading)
    (launch / "__init__.py").touch()
    (launch / "preemption.py").write_text("import sys\nprint(sys.argv[1:], sys.path[0])\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}

    def start(*command: str | Path) -> tuple[int, str]:
        line = (sys.executable, *command, "fairseq-train", "bin")
        done = run(*line, check=False, cwd=tmp_path, env=environment)
        return done.returncode, done.stdout

    assert start(SLURM / "start.py") == (0, f"['fairseq-train', 'bin'] {tmp_path}\n")
    assert start("-m", "fairseq_clear.launch.preemption")[0] == -signal.SIGTERM
    taken = (
        "import os, signal\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "from fairseq_clear.launch.preemption import Preemption\n"
        "preemption = Preemption()\n"
        "preemption.install()\n"
        "from fairseq_clear.patches import stopping\n"
        "assert stopping._state.code == stopping.EXIT_PREEMPTED\n"
    )
    run(sys.executable, "-c", taken, fresh=True)


@pytest.mark.parametrize(
    ("code", "restarts", "queued"),
    [(0, 0, False), (75, 0, True), (75, 999, True), (76, 0, True), (137, 19, True), (137, 20, False), (2, 0, False)],
)
def test_what_goes_back_into_the_queue(stubs: Path, code: int, restarts: int, queued: bool) -> None:
    done = call(
        stubs, "pretrain.sbatch", "fairseq-train", "bin",
        CODE=str(code), SLURM_RESTART_COUNT=str(restarts), SLURM_SUBMIT_DIR=str(ROOT), SLURM_JOB_ID="77",
    )  # fmt: skip
    assert done.stdout.splitlines()[0].split() == [
        *("srun", "--kill-on-bad-exit=1", str(SLURM / "launch.sh"), "fairseq-train", "bin")
    ]
    assert ("requeue 77" in done.stdout) == queued
    assert done.returncode == (0 if queued else code)


def test_a_worker_of_a_command_that_shares_its_work(stubs: Path) -> None:
    told = rank(stubs, "fairseq-clear", "embed", "in.txt", "--output", "o.npy", CUDA_VISIBLE_DEVICES="0,1")
    place = ["WORLD_SIZE=16", "RANK=11", "LOCAL_RANK=1", "MASTER_ADDR=node03", f"MASTER_PORT={PORT}"]
    command = ["python", "-m", "fairseq_clear.cli", "embed", "in.txt", "--output", "o.npy"]
    assert told == ["env", *place, *command]
    alone = rank(stubs, "fairseq-clear", "embed", SLURM_NTASKS="1", SLURM_PROCID="0", SLURM_LOCALID="0")
    assert alone == ["env", *command[:4]]
    quoted = rank(stubs, "fairseq-clear", "embed", "my file.txt", SLURM_NTASKS="1", SLURM_PROCID="0", SLURM_LOCALID="0")
    assert shlex.split(" ".join(quoted))[-1] == "my file.txt"
    batch = call(stubs, "work.sbatch", "embed", "in.txt", SLURM_SUBMIT_DIR=str(ROOT))
    launch = str(SLURM / "launch.sh")
    assert batch.stdout.split() == ["srun", "--kill-on-bad-exit=1", launch, "fairseq-clear", "embed", "in.txt"]


def test_the_array_of_glue(stubs: Path) -> None:
    ids = {"SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_MIN": "0", "SLURM_ARRAY_TASK_MAX": "7"}
    glue = call(stubs, "glue_array.sbatch", "--output", "o", **ids)
    assert glue.stdout.strip() == "srun fairseq-clear glue run --output o --seeds 3"
    done = call(stubs, "glue_array.sbatch")
    assert done.returncode == 2 and "submit with sbatch --array=1-LAST" in done.stderr
