"""Stops a run at a signal and saves a checkpoint: Ctrl-C, SIGTERM or SIGUSR1, with one worker or several.

After the current update, all workers save checkpoint_last.pt without validating, and exit: with 130 after Ctrl-C, with 75 after
the other signals. The same command then resumes as if the run had not been stopped. A validation that was due after that update
is skipped: ``--patience``, the best checkpoint and reduce_lr_on_plateau do without it. A second Ctrl-C exits at once.
"""

import atexit
import logging
import math
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.util import get_temp_dir
from types import FrameType
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from fairseq import checkpoint_utils
from fairseq.data.iterators import EpochBatchIterator
from fairseq.logging import metrics

from fairseq_clear.errors import UserError, exit_on_user_error
from fairseq_clear.patches import original

logger = logging.getLogger(__name__)

EXIT_PREEMPTED = 75  # EX_TEMPFAIL of sysexits.h: temporary failure, rerun
EXIT_INTERRUPTED = 128 + signal.SIGINT
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
LAST = "checkpoint_last.pt"
LONGEST_FOLDER = 76  # bytes; multiprocessing adds 32 to a path, which has at most 107
RESETS = ("reset_optimizer", "reset_lr_scheduler", "reset_meters", "reset_dataloader")
# torchrun, or fairseq's own parent process, forwards Ctrl-C to the workers, which may also receive it from the terminal: within
# this time, both count as one.
SECONDS_FORWARDED = 5.0


class _Interrupted(Exception):
    """Raised when the workers agree to stop in the middle of a validation."""


@dataclass
class _State:
    """The signal received, if any, and the state of the run."""

    code: int = 0  # exit code that a signal requests; 0 without a signal
    since: float = 0.0  # time of the signal
    is_training: bool = False  # whether an update has been made, so that there is something to save
    is_validating: bool = False
    is_leaving: bool = False  # whether the process is exiting
    began: float = 0.0  # time at which the last update began
    ended: float = 0.0  # time at which it was validated and saved, if due; 0 until then
    leave: Callable[[int], Any] = sys.exit  # called to exit, once everything is saved
    update: int = 0  # number of the last update
    update_freq: Sequence[int] = (1,)  # batches of an update, of each epoch


_state = _State()
# best: the best score of a validation; misses: number of validations since; update: after which the last one was made
early_stopping: dict[str, float] = {}


def listen(*, leave: Callable[[int], Any] | None = None) -> None:
    """Handle SIGNALS, and call ``leave`` with the exit code when everything is saved (default: ``sys.exit``).

    Does nothing outside the main thread, or for a signal that is ignored (``nohup``).
    """
    if leave is not None:
        _state.leave = leave
    if threading.current_thread() is not threading.main_thread():
        return
    taken = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    for number in taken:
        signal.signal(number, _handle_signal)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, taken)
    # A terminal and Slurm also signal the data loader's processes, which would end before the update is done.
    os.register_at_fork(after_in_child=partial(_block_in_child, taken))
    _share_temporary_folder()
    atexit.register(_kill_children)


def _share_temporary_folder() -> None:
    """Make the folder of sockets that the data loader's processes share: it is removed at exit, though they are killed.

    It is in /tmp if TMPDIR is too long for the path of a socket, after which error the data loader would wait for ever.
    """
    with suppress(OSError):  # no folder can be written: runs without --num-workers need none
        folder = tempfile.gettempdir()
        tempfile.tempdir = folder if len(os.fsencode(folder)) < LONGEST_FOLDER else "/tmp"
        get_temp_dir()
        tempfile.tempdir = folder


def _block_in_child(signals: list[signal.Signals]) -> None:
    if not _state.is_leaving:
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)


def _kill_children() -> None:
    """Kill the data loader's processes at exit: multiprocessing sends them SIGTERM, which they block, and waits for them."""
    _state.is_leaving = True
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler would report their end as an error
    for process in multiprocessing.active_children():
        if process.daemon:
            process.kill()


def _handle_signal(number: int, frame: FrameType | None) -> None:
    now = time.monotonic()
    is_child = "TORCHELASTIC_RUN_ID" in os.environ or multiprocessing.parent_process() is not None
    is_forwarded = is_child and now - _state.since < SECONDS_FORWARDED
    if number == signal.SIGINT and not _state.is_training:
        _exit_now("interrupted before the first update: nothing was saved")
    if number == signal.SIGINT and _state.code and not is_forwarded:
        _exit_now("interrupted again: exiting without saving, earlier checkpoints are unchanged")
    if not _state.code:
        _state.code, _state.since = EXIT_INTERRUPTED if number == signal.SIGINT else EXIT_PREEMPTED, now
        if number == signal.SIGINT:
            os.write(2, b"stopping after this update; Ctrl-C again exits at once, without saving\n")


def _exit_now(message: str) -> NoReturn:
    os.write(2, f"{message}\n".encode())  # logging may hold a lock that this handler interrupted
    os._exit(EXIT_INTERRUPTED)


@exit_on_user_error
def validate_and_save(
    cfg: Any, trainer: Any, task: Any, epoch_itr: Any, valid_subsets: list[str], end_of_epoch: bool
) -> tuple[list[float | None], bool]:
    """Replaces ``validate_and_save``, which runs after every update: after a signal to any worker, saves and exits."""
    _state.is_training = True
    if code := _agreed_exit_code():
        _save_and_leave(code, cfg, trainer, epoch_itr)
    _state.is_validating, _state.update = True, trainer.get_num_updates()
    try:
        stock = original("fairseq_cli.train:validate_and_save")
        return stock(cfg, trainer, task, epoch_itr, valid_subsets, end_of_epoch)
    except KeyError as error:
        flag = f"--best-checkpoint-metric {(metric := cfg.checkpoint.best_checkpoint_metric)}"
        if error.args != (metric,):
            raise
        raise UserError(f"{flag}: the validation did not measure it; give a larger --batch-size-valid") from None
    except _Interrupted:
        _save_and_leave(_agreed_exit_code(), cfg, trainer, epoch_itr)
    finally:
        _state.is_validating, _state.ended = False, time.monotonic()


def begin_run(update_freq: Sequence[int]) -> None:
    """Forget the run before in this process, such as the previous job of ``fairseq-hydra-train --multirun``."""
    early_stopping.clear()
    _state.update_freq = update_freq
    vars(checkpoint_utils.save_checkpoint).pop("best", None)
    _state.is_training, _state.ended = False, 0.0


def should_stop_early(cfg: Any, valid_loss: float | None) -> bool:
    """Replaces ``should_stop_early``: counts the validations since the best one in ``early_stopping``, which is saved."""
    if valid_loss is None or cfg.checkpoint.patience <= 0:
        return False
    if early_stopping.get("update") == _state.update:  # after an overflow, or when a run that is over is started again
        return has_stopped_early(cfg)
    early_stopping["update"] = _state.update
    settings, best = cfg.checkpoint, early_stopping.get("best", math.nan)
    # a NaN is a miss, and never the best
    is_miss = valid_loss <= best if settings.maximize_best_checkpoint_metric else valid_loss >= best
    if not (is_miss or math.isnan(valid_loss)):
        early_stopping.update(best=float(valid_loss), misses=0)
        return False
    early_stopping["misses"] = early_stopping.get("misses", 0) + 1
    return has_stopped_early(cfg)


def continue_best(state: dict[str, Any], counted: dict[str, float], settings: Any) -> None:
    """Continue the best score of a checkpoint, and ``counted`` for --patience, unless they belong to another metric."""
    before = getattr(state.get("cfg"), "checkpoint", settings)
    if any(before[name] != settings[name] for name in ("best_checkpoint_metric", "maximize_best_checkpoint_metric")):
        metric = f"{before.best_checkpoint_metric}, now {settings.best_checkpoint_metric}"
        logger.warning("--best-checkpoint-metric %s: the best score and --patience begin anew", metric)
        (state.get("extra_state") or {}).pop("best", None)
    elif not settings.reset_meters:
        early_stopping.update(counted)


def epoch_state(self: EpochBatchIterator) -> dict[str, Any]:
    """Replaces ``EpochBatchIterator.state_dict``: the position in the epoch is saved with the number of steps."""
    return {**original("fairseq.data.iterators:EpochBatchIterator.state_dict")(self), "steps": len(self)}


def load_epoch_state(self: EpochBatchIterator, state_dict: dict[str, Any]) -> None:
    """Replaces ``EpochBatchIterator.load_state_dict``: the run goes on at the same share of the epoch.

    The position is a multiple of --update-freq; otherwise fairseq's groups would end before the epoch, which is then repeated.
    """
    self.epoch = state_dict["epoch"]  # of which ``len`` makes the batches
    position = state_dict.get("iterations_in_epoch", 0) * len(self) // (state_dict.get("steps") or len(self) or 1)
    if position < len(self):
        position -= position % _state.update_freq[min(self.epoch, len(_state.update_freq)) - 1]
    stock = original("fairseq.data.iterators:EpochBatchIterator.load_state_dict")
    stock(self, {**state_dict, "iterations_in_epoch": position})


def start_flags(settings: Any) -> list[str]:
    """The flags given that change from what a run starts, and that would change it again when the run resumes."""
    given = [f"--{name.replace('_', '-')}" for name in RESETS if settings[name]]
    return given + ["--restore-file"] * (settings.restore_file != LAST)


def has_stopped_early(cfg: Any) -> bool:
    """Log, and return, whether the run is over because the last ``--patience`` validations were not the best."""
    settings = cfg.checkpoint
    if not 0 < settings.patience <= early_stopping.get("misses", 0):
        return False
    logger.info(
        "early stop: %s has not improved for %d validations", settings.best_checkpoint_metric, settings.patience
    )
    return True


def log_data_wait() -> None:
    """Log the share of the time since the last update began in which this worker waited for its data.

    An update that ``--amp`` repeats after an overflow loads no data, so it is not counted.
    """
    now, since = time.monotonic(), _state.began
    if _state.ended:
        metrics.log_scalar("data_wait", (now - _state.ended) / (now - since), weight=now - since, round=3)
    _state.began, _state.ended = now, 0.0


def check_validation() -> None:
    """Stop a validation after a signal, because it may take longer than Slurm's grace period."""
    if _state.is_validating and _agreed_exit_code():
        raise _Interrupted


def _agreed_exit_code() -> int:
    """The exit code that a signal to any worker requests, or 0. A collective: all workers call it after the same update."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return _state.code
    code = torch.tensor([_state.code], dtype=torch.int32, device=main_device())
    dist.all_reduce(code, op=dist.ReduceOp.MAX)
    return int(code.item())


def _save_and_leave(code: int, cfg: Any, trainer: Any, epoch_itr: Any) -> NoReturn:
    checkpoint_utils.save_checkpoint(cfg.checkpoint, trainer, epoch_itr, None)
    _agreed_exit_code()  # a barrier: once one worker exits, torchrun and Slurm end the others
    flags, name = start_flags(cfg.checkpoint), LAST.replace(".", f"{trainer.checkpoint_suffix}.")
    without = f", without {' and '.join(flags)}," if flags else ""
    what = f"{cfg.checkpoint.save_dir}/{name} is saved; the same command{without} resumes from there"
    if cfg.checkpoint.no_save or cfg.checkpoint.no_last_checkpoints:
        what = f"{LAST} is not saved (--no-save or --no-last-checkpoints)"
    logger.info("stopped by a signal after update %d: %s", trainer.get_num_updates(), what)
    _state.leave(code)
    raise SystemExit(code)


def main_device() -> torch.device:
    """The device of tensors for this run's collectives."""
    if dist.get_backend() == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
