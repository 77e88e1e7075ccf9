"""Runs fairseq-train or fairseq-hydra-train under Slurm: saves and exits after a signal, exits when a worker is lost.

``python -m fairseq_clear.launch.preemption fairseq-train DATA ...`` is one worker; scripts/slurm starts one per GPU. After
SIGUSR1 or SIGTERM to any worker, all workers finish the current update, save checkpoint_last.pt without validating, and exit
with 75. The same command then resumes as if the run had not been stopped.
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
from typing import Any, NoReturn

import torch.distributed as dist
from fairseq.distributed import utils as host_distributed
from fairseq_cli import hydra_train
from fairseq_cli import train as host_train

from fairseq_clear import register
from fairseq_clear.errors import UserError
from fairseq_clear.launch.peer_watchdog import PeerWatchdog
from fairseq_clear.patches import stopping

__all__ = ["COMMANDS", "Preemption", "main"]

logger = logging.getLogger(__name__)

SIGNALS = (signal.SIGUSR1, signal.SIGTERM)
TIMEOUT = "FAIRSEQ_CLEAR_TIMEOUT"  # seconds that a collective may take; others wait for the first worker's validation
COMMANDS: dict[str, Callable[[], None]] = {
    "fairseq-train": host_train.cli_main,
    "fairseq-hydra-train": hydra_train.cli_main,
}


class Preemption:
    """What a worker under Slurm adds to a plain run: checks, a timeout for collectives, and a watchdog for lost workers."""

    def __init__(self) -> None:
        self.watchdog: PeerWatchdog | None = None

    def install(self) -> None:
        """Take the signals and the hooks, once in a process."""
        stopping.listen(
            SIGNALS, leave=lambda code: self.exit(stopping.EXIT_PREEMPTED, 0)
        )  # scripts/slurm/start.py held them back
        self._call_main, self._distributed_init = host_distributed.call_main, host_distributed.distributed_init
        host_distributed.call_main, host_distributed.distributed_init = self.call_main, self.distributed_init

    def call_main(self, cfg: Any, main: Callable[..., None], **kwargs: Any) -> None:
        """fairseq's, for a configuration that can be resumed."""
        _check(cfg)
        self._call_main(cfg, main, **kwargs)

    def distributed_init(self, cfg: Any) -> int:
        """fairseq's, with a timeout, gloo for ``--cpu``, and the workers watching each other."""
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
            self.watchdog = PeerWatchdog(
                os.environ.get("MASTER_ADDR", reached) if "env:" in method else reached, stopping.main_device()
            )
        return rank

    def exit(self, code: int, word: int) -> NoReturn:
        """Exit at once without cleaning up: the others would take a worker that closes its connections first for lost."""
        if self.watchdog is not None:
            self.watchdog.leave(word)
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


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
    """Reject settings with which a resumed run would differ from one that was not stopped."""
    saving, workers = cfg.checkpoint, cfg.distributed_training
    for flag in ("no_save", "no_last_checkpoints"):
        if saving[flag]:
            raise UserError(
                f"--{flag.replace('_', '-')}: a preempted run resumes from checkpoint_last.pt; leave this flag out"
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
        sys.stderr.write(f"usage: python -m fairseq_clear.launch.preemption {'|'.join(COMMANDS)} ARGUMENTS\n")
        raise SystemExit(2)
    # As fairseq_cli.train says at its import, where fairseq itself was not imported before.
    form = "%(asctime)s | %(levelname)s | %(name)s | %(message)s"
    level = os.environ.get("LOGLEVEL", "INFO").upper()
    logging.basicConfig(format=form, datefmt="%Y-%m-%d %H:%M:%S", level=level, stream=sys.stdout, force=True)
    register()
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
        if preemption.watchdog is not None:
            preemption.watchdog.leave(0)
        raise SystemExit(0)
    if preemption.watchdog is not None:
        preemption.watchdog.settle()
    preemption.exit(code, code)


if __name__ == "__main__":
    main(sys.argv[1:])
