"""Commands as users give them, each in a process of its own that is forked after the imports, and killed on request."""

import builtins
import io
import logging
import os
import shutil
import signal
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from multiprocessing.util import _run_finalizers
from pathlib import Path
from typing import Any, TextIO

import torch

import fairseq_clear
from tests.conftest import ROOT

fairseq_clear.register()  # here, so that the processes that are forked have fairseq already

# 137 lines in batches of 8: 15 updates an epoch; a checkpoint after every third, one of an epoch's end between.
TRAINING = (
    *("--user-dir", str(ROOT / "fairseq_clear"), "--task", "clear_lm", "--cpu"),
    *("--sample-break-mode", "eos", "--tokens-per-sample", "32", "--augment", "del-word", "--pooling", "mean"),
    *("--arch", "clear_roberta_tiny", "--encoder-embed-dim", "32", "--encoder-ffn-embed-dim", "64"),
    *("--encoder-attention-heads", "2", "--num-workers", "0"),
    *("--optimizer", "adam", "--lr", "0.003", "--batch-size", "8", "--max-update", "20", "--log-format", "none"),
    *("--save-interval-updates", "3", "--no-epoch-checkpoints"),
)


# the recipe with most to resume: key encoder, queue
MOCO = ("--criterion", "clear_moco", "--queue-size", "64")
NT_XENT = ("--criterion", "clear_nt_xent")


def fairseq_train(data: Path, folder: Path, *flags: str, recipe: tuple[str, ...] = MOCO) -> int:
    """``fairseq-train`` in this process; its exit code."""
    from fairseq_cli.train import cli_main

    sys.argv = ["fairseq-train", str(data), *TRAINING, *recipe, "--save-dir", str(folder), *flags]
    return exit_code(cli_main)


def train_and_read(data: Path, folder: Path, *flags: str, recipe: tuple[str, ...] = MOCO) -> tuple[int, str]:
    """``fairseq_train`` in a process of its own; its exit code and log."""
    log = folder.parent / f"{folder.name}.log"
    log.unlink(missing_ok=True)
    return run(lambda: fairseq_train(data, folder, *flags, recipe=recipe), log), log.read_text()


def fairseq_hydra_train(config: Path, *overrides: str) -> int:
    """``fairseq-hydra-train`` with a configuration file in this process; its exit code."""
    from fairseq_cli.hydra_train import cli_main

    fairseq_clear.register()  # patches of the command, imported after the plugin here
    named = ("--config-dir", str(config.parent), "--config-name", config.stem)
    sys.argv = ["fairseq-hydra-train", *named, f"hydra.run.dir={config.parent / 'outputs'}", *overrides]
    return exit_code(cli_main)


def fairseq_clear_command(*arguments: object) -> int:
    """``fairseq-clear`` in this process; its exit code."""
    from fairseq_clear.cli.main import main

    return exit_code(lambda: main([str(argument) for argument in arguments]))


def exit_code(command: Callable[[], int | None]) -> int:
    try:
        return command() or 0
    except SystemExit as left:
        return left.code if isinstance(left.code, int) else int(left.code is not None)


def fork(work: Callable[[], int], log: Path, *, arm: Callable[[], None] | None = None) -> int:
    """Start ``work`` in a process of its own, whose output goes to ``log``; its process id."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        with log.open("a") as stream:
            os.dup2(stream.fileno(), 1)
            os.dup2(stream.fileno(), 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w", 1), os.fdopen(2, "w", 1)
        warnings.simplefilter("ignore")
        form = "%(levelname)s | %(name)s | %(message)s"
        logging.basicConfig(level=logging.INFO, stream=sys.stdout, force=True, format=form)
        if arm:
            arm()
        code = work()
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
    finally:
        sys.stdout.flush()
        _run_finalizers()  # which remove temporary folders
        os._exit(code)


def fork_piped(work: Callable[[], int]) -> tuple[int, TextIO]:
    """Start ``work`` as ``fork`` does; its process id, and what it and its own processes write, to its end."""
    read, write = os.pipe()
    child = fork(work, Path(f"/dev/fd/{write}"))
    os.close(write)
    return child, os.fdopen(read)


def ended(child: int) -> int:
    """The exit code of a child, the negative signal where one killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def run(work: Callable[[], int], log: Path, *, arm: Callable[[], None] | None = None) -> int:
    return ended(fork(work, log, arm=arm))


def run_and_kill(work: Callable[[], int], log: Path, seconds: float) -> int:
    """``work``, killed by SIGKILL after ``seconds`` unless it has ended."""
    child = fork(work, log)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    return ended(child)


PART = 1024


class Instants:
    """Kills this process just before the n-th time that it changes the disk below ``folder``; half of a write is done then.

    An instant is a write of some size (torch writes a checkpoint in thousands of pieces), a sync, a rename, a file removed.
    With ``instant`` 0 nothing is killed. The file ``passed`` gets a line for each instant: the path that it is about.
    """

    def __init__(self, folder: Path, instant: int = 0, passed: Path | None = None) -> None:
        self.folder, self.instant, self.count = str(folder), instant, 0
        self.passed = passed.open("a", buffering=1) if passed else None

    def __call__(self) -> None:
        stock = builtins.open

        def opened(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
            name = os.readlink(f"/proc/self/fd/{file}") if isinstance(file, int) else str(file)
            if "b" in mode and set(mode) & set("wax+") and name.startswith(self.folder):
                return _Ticking(self, name, file, mode)
            return stock(file, mode, *args, **options)

        builtins.open = opened  # type: ignore[assignment]
        for name in ("fsync", "replace", "rename", "unlink", "remove"):
            setattr(os, name, self._before(getattr(os, name)))

    def tick(self, name: str) -> bool:
        """Whether this is the instant."""
        self.count += 1
        if self.passed is not None:
            self.passed.write(f"{name}\n")
        return self.count == self.instant

    def _before(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def armed(*args: Any, **options: Any) -> Any:
            if self.tick(str(args[-1])):
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **options)

        return armed


class _Ticking:
    """A binary file without a buffer whose writes are instants."""

    def __init__(self, instants: Instants, name: str, file: Any, mode: str) -> None:
        self._instants, self._name = instants, name
        self._file = io.FileIO(file, mode.replace("b", ""), closefd=not isinstance(file, int))

    def write(self, content: Any) -> int:
        view = memoryview(content).cast("B")
        if len(view) >= PART and self._instants.tick(self._name):
            self._file.write(view[: len(view) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        rest = view
        while rest:
            rest = rest[self._file.write(rest) :]
        return len(view)

    def __enter__(self) -> "_Ticking":
        return self

    def __exit__(self, *raised: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def stock_files() -> None:
    """Take back what the plugin does to fairseq's writing and copying of checkpoints."""
    from fairseq import checkpoint_utils
    from fairseq.file_io import PathManager

    from fairseq_clear.patches import original
    from fairseq_clear.patches.checkpoint_files import WRITE

    def copy(source: str, target: str, overwrite: bool = False) -> bool:
        with open(source, "rb") as one, open(target, "wb") as other:  # copyfile's, where it cannot ask the kernel
            shutil.copyfileobj(one, other)
        return True

    checkpoint_utils.torch_persistent_save = original(WRITE)
    PathManager.copy = staticmethod(copy)


def saved(folder: Path) -> dict[str, Any]:
    """The last checkpoint of a run."""
    state: dict[str, Any] = torch.load(folder / "checkpoint_last.pt", weights_only=False)
    return state


def updates(folder: Path) -> int:
    """The number of updates of a run."""
    return int(saved(folder)["optimizer_history"][-1]["num_updates"])


def state_of(checkpoint: Path) -> dict[str, Any]:
    """What a resumed run must share with one that was not stopped: all of it but times and the meters that hold them."""
    state = torch.load(checkpoint, map_location="cpu", weights_only=True)
    for name in ("metrics", "previous_training_time"):
        state["extra_state"].pop(name, None)
    updates = state["optimizer_history"][-1]["num_updates"]
    return {"updates": updates, **{name: state[name] for name in ("model", "last_optimizer_state", "extra_state")}}


def same(one: Any, other: Any) -> bool:
    """Whether nested states are equal to the bit."""
    if torch.is_tensor(one):
        return torch.is_tensor(other) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, Sequence) and not isinstance(one, str):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)
