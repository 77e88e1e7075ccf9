"""Failures during training: every worker exits with one line, and checkpoints stay unchanged.

In fairseq, a worker that runs out of memory skips its batch while the others wait in a collective of that batch. A NaN ends in
an error of the NaN detector itself. After a NaN score, any later score counts as the best. A missing ``--restore-file`` starts
a new run.
"""

import logging
import math
import re
import shlex
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from fairseq.distributed import utils as distributed_utils
from fairseq.file_io import PathManager
from fairseq.nan_detector import NanDetector
from fairseq.trainer import Trainer

from fairseq_clear.errors import UserError, exit_on_user_error, is_out_of_memory
from fairseq_clear.lifecycle import RunTask
from fairseq_clear.patches import original, stopping
from fairseq_clear.patches.checkpoint_files import newest_whole, watch_reading
from fairseq_clear.processes import holds, lock
from fairseq_clear.spec import setting_names

logger = logging.getLogger(__name__)

SKIPPED_IN_A_ROW = 3
OPTIMIZER_SETTINGS = ("weight_decay", "adam_betas", "adam_eps", "momentum")


@exit_on_user_error
def train_step(self: Trainer, samples: Any, raise_oom: bool = False) -> Any:
    """Replaces ``Trainer.train_step``: a non-finite gradient, or a worker without memory, ends all workers.

    With a single worker, a batch that is too large is skipped, as in fairseq, unless several in succession are too large.
    """
    update, skipped = self.get_num_updates() + 1, getattr(self, "_clear_skipped", 0)
    stock = original("fairseq.trainer:Trainer.train_step")
    if isinstance(self.task, RunTask):
        stopping.log_data_wait()
    try:
        output = stock(self, samples, raise_oom=raise_oom or self.data_parallel_world_size > 1)
    except FloatingPointError as error:
        # on several GPUs, fairseq also says so of norms that are not finite
        is_finite = re.search(r"= *(nan|inf)\b", str(error)) is None
        if "inconsistent" in str(error) and is_finite:  # between workers: no other setting helps
            raise
        reason = str(error).partition("\n")[0].rstrip(".") if is_finite else "gradients are Nan/Inf"
        raise UserError(
            f"update {update}: {reason}; this update is not saved, earlier checkpoints are unchanged: give a lower "
            "--lr, a longer --warmup-updates or --clip-norm"
        ) from error
    except (MemoryError, RuntimeError) as error:
        _raise_out_of_memory(f"update {update}", error)
    if self.get_num_updates() >= update:
        self._amp_retries = 0  # fairseq counts those of other updates too
    if getattr(self, "_clear_skipped", 0) == skipped:
        self._clear_skipped = 0
    elif self._clear_skipped >= SKIPPED_IN_A_ROW:
        _raise_out_of_memory(f"update {update}, {SKIPPED_IN_A_ROW} batches in succession", MemoryError())
    return output


@exit_on_user_error
def valid_step(self: Trainer, sample: Any, raise_oom: bool = False) -> Any:
    """Replaces ``Trainer.valid_step``: a signal can interrupt it, and with several workers a batch is not tried twice."""
    stopping.check_validation()
    stock = original("fairseq.trainer:Trainer.valid_step")
    try:
        return stock(self, sample, raise_oom=raise_oom or self.data_parallel_world_size > 1)
    except (MemoryError, RuntimeError) as error:
        _raise_out_of_memory("validation", error)


def log_oom(self: Trainer, exc: Exception) -> None:
    """Replaces ``Trainer._log_oom``: also counts batches that ran out of memory."""
    self._clear_skipped = getattr(self, "_clear_skipped", 0) + 1
    original("fairseq.trainer:Trainer._log_oom")(self, exc)


def _raise_out_of_memory(when: str, error: Exception) -> NoReturn:
    """Raise a UserError if the error means that memory ran out, otherwise the error itself."""
    if not is_out_of_memory(error):
        raise error
    raise UserError(
        f"{when}: out of memory; give a smaller --batch-size or --max-tokens with a larger --update-freq, a shorter "
        "--tokens-per-sample, or --encode-chunk-size"
    ) from error


class ForwardNanDetector(NanDetector):
    """Names the first module whose output is not finite.

    fairseq's detector also hooks the backward pass, which ends in StopIteration if a module returns a dictionary with anything
    but tensors, and it logs all gradients.
    """

    def __init__(self, model: Any) -> None:
        super().__init__(model, forward=True, backward=False)

    def __exit__(self, *raised: object) -> None:
        self.close()


@exit_on_user_error
def load_checkpoint(
    self: Trainer,
    filename: str,
    reset_optimizer: bool = False,
    reset_lr_scheduler: bool = False,
    optimizer_overrides: Any = None,
    reset_meters: bool = False,
) -> Any:
    """Replaces ``Trainer.load_checkpoint``: locks --save-dir, the task checks the file first, and errors are one line."""
    stopping.begin_run(self.cfg.optimization.update_freq)
    is_ours, named = isinstance(self.task, RunTask), self.cfg.checkpoint.restore_file
    if is_ours and self.is_data_parallel_master and not self.cfg.checkpoint.no_save:
        _lock_save_dir(Path(self.cfg.checkpoint.save_dir))
    if named != stopping.LAST and not PathManager.isfile(filename):
        raise UserError(f"--restore-file {named}: no such file; leave it out to start from scratch")

    def check(state: dict[str, Any]) -> None:
        state.setdefault("extra_state", None)
        if is_ours:
            self.task.check_checkpoint(self, filename, state, resumes=not reset_optimizer)

    if is_ours and setting_names(self.cfg.task.allow_change) & set(OPTIMIZER_SETTINGS):  # torch keeps the saved ones
        config = self.optimizer.optimizer_config.items()
        optimizer_overrides = {n: v for n, v in config if n != "lr"} | dict(optimizer_overrides or {})
    stock = original("fairseq.trainer:Trainer.load_checkpoint")
    try:
        with watch_reading(check):
            state = stock(self, filename, reset_optimizer, reset_lr_scheduler, optimizer_overrides, reset_meters)
        if is_ours and self.data_parallel_world_size > 1:  # fairseq reads the file on the first worker alone
            group, counted = self.data_parallel_process_group, stopping.early_stopping
            counted.update(distributed_utils.broadcast_object(counted, 0, group, self.device))
        return state
    except UserError as error:
        is_start = filename == self.cfg.checkpoint.finetune_from_model  # no other file stands in for it
        if "not a complete" in str(error) and not is_start and (other := newest_whole(filename)):
            raise UserError(
                f"{error}; continue from an earlier one: {shlex.join(['cp', str(other), filename])}"
            ) from None
        raise
    except AssertionError as error:  # another criterion or optimizer, as in a checkpoint of stock masked_lm
        start = f"; or give another --save-dir, with --finetune-from-model {filename} to start a run from these weights"
        raise UserError(f"{filename}: {error}{start if is_ours else ''}") from None
    except Exception as error:
        if isinstance(error, ValueError) and "parameter group" in str(error):
            start = f"--reset-optimizer, or another --save-dir with --finetune-from-model {filename}"
            raise UserError(f"{filename}: its optimizer has other weights than this run trains; give {start}") from None
        if not str(error).startswith("Cannot load model parameters"):
            raise
        if isinstance(error.__context__, UserError):  # its message says what to do
            raise UserError(f"{filename}: {error.__context__}") from None
        reason = " ".join(str(error.__context__).split())[:300]
        raise UserError(f"{filename}: its weights do not fit; give the flags it was trained with ({reason})") from None


def _lock_save_dir(folder: Path) -> None:
    """Lock the folder of checkpoints until the run ends; UserError if another run writes there."""
    with suppress(OSError):  # the lock of a missing path would be a file of that name
        folder.mkdir(parents=True, exist_ok=True)
    for path in (folder, folder / ".lock"):  # NFS cannot lock a folder
        try:
            if not holds(path):
                lock(path)
            return
        except BlockingIOError:
            raise UserError(f"--save-dir {folder}: another run is writing there; give another folder") from None
        except OSError:
            continue
    logger.warning("--save-dir %s: its file system has no locks: a second run in it would not be noticed", folder)


@exit_on_user_error
def save_checkpoint(cfg: Any, trainer: Trainer, epoch_itr: Any, val_loss: float | None) -> Any:
    """Replaces ``save_checkpoint``: ignores a NaN score, after which fairseq would treat any later score as the best."""
    if val_loss is not None and math.isnan(val_loss):
        logger.warning(
            "--best-checkpoint-metric %s is NaN: checkpoint_best.pt is not changed", cfg.best_checkpoint_metric
        )
        val_loss = None
    return original("fairseq.checkpoint_utils:save_checkpoint")(cfg, trainer, epoch_itr, val_loss)
