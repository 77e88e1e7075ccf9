"""How a run of fairseq ends when something goes wrong in it: with one line, on every worker, and its checkpoints as they were.

Stock, a worker without memory leaves its batch out while the others wait in a collective of that batch; a NaN ends in an error
of the detector that looks for it; after a score that is NaN any other is the best; a ``--restore-file`` that is not there
begins a new run; a run that is over and called again makes one more update.
"""

import logging
import math
import sys
from types import ModuleType
from typing import Any, NoReturn

from fairseq import checkpoint_utils as host
from fairseq import trainer as host_trainer
from fairseq.file_io import PathManager
from fairseq.logging import metrics
from fairseq.nan_detector import NanDetector
from fairseq.trainer import Trainer

from fairseq_clear.checkpoint_files import newest_whole
from fairseq_clear.errors import UserError, exit_on_user_error

__all__ = ["install"]

logger = logging.getLogger(__name__)

LAST = "checkpoint_last.pt"
OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")
SKIPPED_IN_A_ROW = 3
_stock_train_step, _stock_valid_step, _stock_log_oom = Trainer.train_step, Trainer.valid_step, Trainer._log_oom
_stock_load, _stock_save = Trainer.load_checkpoint, host.save_checkpoint


def install() -> None:
    """Take the hooks in fairseq."""
    Trainer.train_step, Trainer.valid_step, Trainer._log_oom = train_step, valid_step, _log_oom
    Trainer.load_checkpoint, host.save_checkpoint = load_checkpoint, save_checkpoint
    host_trainer.NanDetector = ForwardNanDetector


def _end_once(module: ModuleType) -> None:
    """Let ``fairseq_cli.train`` end a run that is over and called again after its last validation."""
    stock = module.train
    if getattr(stock, "_clear_ends", False):
        return

    def train(cfg: Any, trainer: Trainer, task: Any, epoch_itr: Any) -> tuple[list[float | None], bool]:
        if trainer.get_num_updates() < (cfg.optimization.max_update or math.inf):
            return stock(cfg, trainer, task, epoch_itr)
        epoch_itr.next_epoch_itr(fix_batches_to_gpus=cfg.distributed_training.fix_batches_to_gpus)
        subsets = cfg.dataset.valid_subset.split(",")
        with metrics.aggregate("train"):
            return module.validate_and_save(cfg, trainer, task, epoch_itr, subsets, False)

    train._clear_ends = True  # type: ignore[attr-defined]
    module.train = train  # type: ignore[attr-defined]


@exit_on_user_error
def train_step(self: Trainer, samples: Any, raise_oom: bool = False) -> Any:
    """The host's; a gradient that is not finite and memory that does not suffice end every worker.

    One worker alone leaves out a batch that is too large, as fairseq does, unless that is all it would do.
    """
    update, skipped = self.get_num_updates() + 1, getattr(self, "_clear_skipped", 0)
    try:
        output = _stock_train_step(self, samples, raise_oom=raise_oom or self.data_parallel_world_size > 1)
    except FloatingPointError as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise UserError(
            f"update {update}: {reason}; nothing of it is saved, the checkpoints of before stay as they are: give a lower "
            "--lr, a longer --warmup-updates or --clip-norm"
        ) from error
    except (MemoryError, RuntimeError) as error:
        _end_without_memory(f"update {update}", error)
    if getattr(self, "_clear_skipped", 0) == skipped:
        self._clear_skipped = 0
    elif self._clear_skipped >= SKIPPED_IN_A_ROW:
        _end_without_memory(f"update {update}, {SKIPPED_IN_A_ROW} batches in succession", MemoryError())
    return output


@exit_on_user_error
def valid_step(self: Trainer, sample: Any, raise_oom: bool = False) -> Any:
    """The host's; a batch is not tried again where other workers wait for the first try."""
    try:
        return _stock_valid_step(self, sample, raise_oom=raise_oom or self.data_parallel_world_size > 1)
    except (MemoryError, RuntimeError) as error:
        _end_without_memory("validation", error)


def _log_oom(self: Trainer, error: Exception) -> None:
    self._clear_skipped = getattr(self, "_clear_skipped", 0) + 1
    _stock_log_oom(self, error)


def _end_without_memory(when: str, error: Exception) -> NoReturn:
    """Raise the error as it is if it is another."""
    if not isinstance(error, MemoryError) and not any(text in str(error) for text in OUT_OF_MEMORY):
        raise error
    raise UserError(
        f"{when}: out of memory; give a smaller --batch-size or --max-tokens with a larger --update-freq, a shorter "
        "--tokens-per-sample, or --encode-chunk-size"
    ) from error


class ForwardNanDetector(NanDetector):
    """Says which module's output is not finite first. fairseq's looks at the backward pass too, by hooks that end in
    StopIteration where a module returns a dictionary of other things than tensors, and writes all gradients to the log.
    """

    def __init__(self, model: Any) -> None:
        super().__init__(model, forward=True, backward=False)

    def __exit__(self, *raised: object) -> None:
        self.close()


@exit_on_user_error
def load_checkpoint(self: Trainer, filename: str, *args: Any, **kwargs: Any) -> Any:
    """The host's; what cannot be loaded is one line, which names a checkpoint that may be."""
    if "fairseq_cli.train" in sys.modules:  # which comes here before it trains
        _end_once(sys.modules["fairseq_cli.train"])
    named = self.cfg.checkpoint.restore_file
    if named != LAST and not PathManager.isfile(filename):
        raise UserError(f"--restore-file {named}: no such file, and training would begin anew; leave it out for that")
    try:
        return _stock_load(self, filename, *args, **kwargs)
    except UserError as error:
        other = newest_whole(filename)
        hint = f"; go on from another one: cp {other} {filename}" if other and "not a whole" in str(error) else ""
        raise UserError(f"{error}{hint}") from None
    except AssertionError as error:  # another criterion or optimizer, with what to do
        raise UserError(f"{filename}: {error}") from None
    except Exception as error:
        if not str(error).startswith("Cannot load model parameters"):
            raise
        if isinstance(error.__context__, UserError):  # says by itself what to do
            raise UserError(f"{filename}: {error.__context__}") from None
        reason = " ".join(str(error.__context__).split())[:300]
        raise UserError(
            f"{filename}: its weights are not of this model; give the flags it was trained with ({reason})"
        ) from None


@exit_on_user_error
def save_checkpoint(cfg: Any, trainer: Trainer, epoch_itr: Any, val_loss: float | None) -> Any:
    """The host's; a score that is NaN is none: the host would forget the best one, and take the next for it."""
    if val_loss is not None and math.isnan(val_loss):
        logger.warning(
            "update %d: --best-checkpoint-metric %s is NaN: checkpoint_best.pt stays as it is",
            trainer.get_num_updates(),
            cfg.best_checkpoint_metric,
        )
        val_loss = None
    return _stock_save(cfg, trainer, epoch_itr, val_loss)
