"""Runs fairseq-train or fairseq-hydra-train under Slurm: saves and exits after a signal, exits if a worker is lost.

``python -m fairseq_clear.launch.preemption fairseq-train DATA ...`` runs one worker; scripts/slurm starts one per GPU. After
SIGUSR1 or SIGTERM to any worker, all workers finish the current update, save checkpoint_last.pt without validating, and exit
with 75. The same command then resumes as if the run had not been stopped.
"""

import logging
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, NoReturn
from urllib.parse import urlsplit

import torch.distributed as dist
from fairseq.distributed import utils as distributed_utils
from fairseq_cli import hydra_train
from fairseq_cli import train as plain_train

from fairseq_clear import register
from fairseq_clear.errors import UserError
from fairseq_clear.launch.peer_watchdog import PeerWatchdog
from fairseq_clear.patches import stopping

logger = logging.getLogger(__name__)

TIMEOUT = "FAIRSEQ_CLEAR_TIMEOUT"  # seconds that a collective may take; workers also wait while the first one validates
COMMANDS: dict[str, Callable[[], None]] = {
    "fairseq-train": plain_train.cli_main,
    "fairseq-hydra-train": hydra_train.cli_main,
}


class Preemption:
    """Adds to a worker under Slurm: checks of the settings, a timeout for collectives, and a watchdog for lost workers."""

    watchdog: PeerWatchdog | None = None

    def install(self) -> None:
        """Install the signal handlers and replace fairseq's functions; call once per process."""
        # scripts/slurm/start.py has blocked the signals until now
        stopping.listen(leave=lambda code: self.exit(stopping.EXIT_PREEMPTED, 0))
        self._call_main, self._distributed_init = distributed_utils.call_main, distributed_utils.distributed_init
        distributed_utils.call_main, distributed_utils.distributed_init = self.call_main, self.distributed_init

    def call_main(self, cfg: Any, main: Callable[..., None], **kwargs: Any) -> None:
        """Call fairseq's ``call_main``, after checking that the run can be resumed."""
        _check(cfg)
        self._call_main(cfg, main, **kwargs)

    def distributed_init(self, cfg: Any) -> int:
        """Call fairseq's ``distributed_init``, with a timeout and the watchdog."""
        stock = dist.init_process_group
        dist.init_process_group = partial(stock, timeout=timedelta(seconds=_timeout()))
        try:
            rank = self._distributed_init(cfg)
        finally:
            dist.init_process_group = stock
        if dist.get_world_size() > 1:
            # a new group has torch's timeout, not that of the default group
            group = dist.new_group(timeout=timedelta(seconds=_timeout()))
            distributed_utils.get_global_group._global_group = group
            method = urlsplit(cfg.distributed_training.distributed_init_method)
            host = os.environ["MASTER_ADDR"] if method.scheme == "env" else method.hostname or "localhost"
            self.watchdog = PeerWatchdog(host, stopping.main_device())
        return rank

    def exit(self, code: int, word: int) -> NoReturn:
        """Announce ``word`` and exit at once without clean-up, in which a closed connection would look like a lost worker."""
        if self.watchdog is not None:
            self.watchdog.leave(word)
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _timeout() -> int:
    text = os.environ.get(TIMEOUT, "600")
    if not text.isdecimal() or not int(text):
        raise UserError(f"{TIMEOUT}={text}: expected a whole number of seconds; unset it for 600")
    return int(text)


def _check(cfg: Any) -> None:
    """Raise UserError for settings with which a resumed run would differ from an uninterrupted one."""
    saving, workers = cfg.checkpoint, cfg.distributed_training
    if saving.no_save or saving.no_last_checkpoints:
        flag = "--no-save" if saving.no_save else "--no-last-checkpoints"
        raise UserError(f"{flag}: a preempted run resumes from checkpoint_last.pt; leave this flag out")
    for flag in stopping.start_flags(saving):
        repeated = "it would be repeated whenever the run resumes"
        raise UserError(f"{flag}: {repeated}; to start from other weights, use --finetune-from-model")
    if workers.distributed_world_size > 1 and not workers.distributed_no_spawn:
        size = f"--distributed-world-size {workers.distributed_world_size}"
        raise UserError(f"{size}: signals do not reach workers that fairseq starts; give --distributed-no-spawn")


def main(arguments: Sequence[str]) -> NoReturn:
    """Run the command that ``arguments`` begin with; never returns."""
    if not arguments or arguments[0] not in COMMANDS:
        sys.stderr.write(f"usage: python -m fairseq_clear.launch.preemption {'|'.join(COMMANDS)} ARGUMENTS\n")
        raise SystemExit(2)
    # The format that fairseq_cli.train sets at its import, which has no effect if fairseq was imported before.
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
