"""fairseq-train and fairseq-hydra-train that stop at a signal with all saved, and end when a worker is lost.

``python -m fairseq_clear.preemption fairseq-train DATA ...``, one process a worker; scripts/slurm starts it. SIGUSR1 or
SIGTERM to any worker: after the update at hand all of them save checkpoint_last.pt, without validating, and exit with 75.
The same command then goes on as if it had not been stopped.
"""

import logging
import math
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from types import FrameType
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from fairseq import checkpoint_utils
from fairseq.distributed import utils as host_distributed
from fairseq.file_io import PathManager
from fairseq.trainer import Trainer
from fairseq_cli import hydra_train
from fairseq_cli import train as host_train

from fairseq_clear.errors import UserError
from fairseq_clear.lifeline import Lifeline

__all__ = ["COMMANDS", "EXIT_PREEMPTED", "Preemption", "main"]

logger = logging.getLogger(__name__)

EXIT_PREEMPTED = 75  # EX_TEMPFAIL of sysexits.h: call again
SIGNALS = (signal.SIGUSR1, signal.SIGTERM)
TIMEOUT = "FAIRSEQ_CLEAR_TIMEOUT"  # seconds that a collective may take; others wait for the first worker's validation
COMMANDS: dict[str, Callable[[], None]] = {
    "fairseq-train": host_train.cli_main,
    "fairseq-hydra-train": hydra_train.cli_main,
}


class _Interrupted(Exception):
    """The workers agreed to stop in the midst of a validation."""


class Preemption:
    """What the signals asked for, and the hooks in fairseq by which it happens."""

    def __init__(self) -> None:
        self.signalled = False
        self.validating = False
        self.lifeline: Lifeline | None = None

    def install(self) -> None:
        """Take the signals and the hooks, once in a process."""
        for number in SIGNALS:
            signal.signal(number, self._note)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # scripts/slurm/start.py lets them wait
        # Slurm signals the loaders of batches too, which would die of it before the update is over.
        os.register_at_fork(after_in_child=partial(signal.pthread_sigmask, signal.SIG_BLOCK, SIGNALS))
        self._call_main, self._distributed_init = host_distributed.call_main, host_distributed.distributed_init
        self._validate_and_save, self._valid_step = host_train.validate_and_save, Trainer.valid_step
        host_distributed.call_main, host_distributed.distributed_init = self.call_main, self.distributed_init
        host_train.validate_and_save = self.validate_and_save
        Trainer.valid_step = lambda trainer, *args, **kwargs: self.valid_step(trainer, *args, **kwargs)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signalled = True

    def call_main(self, cfg: Any, main: Callable[..., None], **kwargs: Any) -> None:
        """The host's, for a configuration that can be resumed."""
        _check(cfg)
        self._call_main(cfg, main, **kwargs)

    def distributed_init(self, cfg: Any) -> int:
        """The host's, with a timeout, gloo for ``--cpu``, and the workers watching each other."""
        if cfg.common.cpu and cfg.distributed_training.distributed_backend == "nccl":
            cfg.distributed_training.distributed_backend = "gloo"
        stock = dist.init_process_group
        dist.init_process_group = partial(stock, timeout=timedelta(seconds=_timeout()))
        try:
            rank = self._distributed_init(cfg)
        finally:
            dist.init_process_group = stock
        method = cfg.distributed_training.distributed_init_method
        if dist.get_world_size() > 1:
            reached = method.removeprefix("tcp://").rsplit(":", 1)[0] if method.startswith("tcp://") else "localhost"
            self.lifeline = Lifeline(os.environ.get("MASTER_ADDR", reached) if "env:" in method else reached, _device())
        return rank

    def validate_and_save(
        self, cfg: Any, trainer: Trainer, task: Any, epoch_itr: Any, valid_subsets: list[str], end_of_epoch: bool
    ) -> tuple[list[float | None], bool]:
        """The host's, after every update; where the workers were signalled it only saves, and does not return."""
        if self._agreed():
            self._save_and_exit(cfg, trainer, epoch_itr)
        self.validating = True
        try:
            return self._validate_and_save(cfg, trainer, task, epoch_itr, valid_subsets, end_of_epoch)
        except _Interrupted:
            self._save_and_exit(cfg, trainer, epoch_itr)
        finally:
            self.validating = False

    def valid_step(self, trainer: Trainer, *args: Any, **kwargs: Any) -> Any:
        """The host's; a validation may take longer than the notice that Slurm gives."""
        if self.validating and self._agreed():
            raise _Interrupted
        return self._valid_step(trainer, *args, **kwargs)

    def _agreed(self) -> bool:
        """Whether any worker was signalled; every worker must call, after the same update."""
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return self.signalled
        flag = torch.tensor([self.signalled], dtype=torch.int32, device=_device())
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag.item())

    def _save_and_exit(self, cfg: Any, trainer: Trainer, epoch_itr: Any) -> NoReturn:
        checkpoint_utils.save_checkpoint(cfg.checkpoint, trainer, epoch_itr, None)
        if cfg.checkpoint.write_checkpoints_asynchronously:
            PathManager.async_close()
        self._agreed()  # nobody leaves before all is written: Slurm ends the others with the first that does
        logger.info("preempted after update %d: saved without validating", trainer.get_num_updates())
        self.exit(EXIT_PREEMPTED, 0)

    def exit(self, code: int, word: int) -> NoReturn:
        """Leave at once, threads and connections as they are: workers that leave apart would be taken for lost."""
        if self.lifeline is not None:
            self.lifeline.leave(word)
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _device() -> torch.device:
    if dist.get_backend() == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def _timeout() -> float:
    text = os.environ.get(TIMEOUT, "600")
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise UserError(f"{TIMEOUT}={text}: expected seconds above 0; unset it for 600")
    return seconds


def _check(cfg: Any) -> None:
    """Refuse what would make the resumed run another one."""
    saving, workers = cfg.checkpoint, cfg.distributed_training
    for flag in ("no_save", "no_last_checkpoints"):
        if saving[flag]:
            raise UserError(
                f"--{flag.replace('_', '-')}: a run that is preempted goes on from checkpoint_last.pt; drop it"
            )
    for flag in ("reset_optimizer", "reset_lr_scheduler", "reset_meters", "reset_dataloader"):
        if saving[flag]:
            raise UserError(
                f"--{flag.replace('_', '-')}: it would be done again whenever the run resumes; "
                "start from other weights by --finetune-from-model"
            )
    if saving.restore_file != "checkpoint_last.pt":
        raise UserError(
            f"--restore-file {saving.restore_file}: the run would begin there again whenever it resumes; "
            "use --finetune-from-model"
        )
    if workers.distributed_world_size > 1 and not workers.distributed_no_spawn:
        raise UserError(
            f"--distributed-world-size {workers.distributed_world_size}: signals reach no worker that fairseq starts; "
            "start one process a worker with --distributed-no-spawn, as scripts/slurm/launch.sh does"
        )


def main(arguments: Sequence[str]) -> NoReturn:
    """Run the command that ``arguments`` begin with; never returns."""
    if not arguments or arguments[0] not in COMMANDS:
        sys.stderr.write(f"usage: python -m fairseq_clear.preemption {'|'.join(COMMANDS)} ARGUMENTS\n")
        raise SystemExit(2)
    # As fairseq_cli.train says at its import, where fairseq itself was not imported before.
    form = "%(asctime)s | %(levelname)s | %(name)s | %(message)s"
    level = os.environ.get("LOGLEVEL", "INFO").upper()
    logging.basicConfig(format=form, datefmt="%Y-%m-%d %H:%M:%S", level=level, stream=sys.stdout, force=True)
    preemption = Preemption()
    preemption.install()
    sys.argv = list(arguments)
    code: Any = 0
    try:
        COMMANDS[arguments[0]]()
    except UserError as error:
        logger.error("%s", error)
        code = 2
    except SystemExit as left:
        code = left.code
        if isinstance(code, str):
            logger.error("%s", code)
    except BaseException:
        traceback.print_exc()
        code = 1
    code = code if isinstance(code, int) else int(code is not None)
    if code == 0:
        if preemption.lifeline is not None:
            preemption.lifeline.leave(0)
        raise SystemExit(0)
    if preemption.lifeline is not None:
        preemption.lifeline.settle()
    preemption.exit(code, code)


if __name__ == "__main__":
    main(sys.argv[1:])
