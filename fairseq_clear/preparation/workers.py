"""A pool of worker processes that ends with its parent: after a failure, an interrupt, or (on Linux) a killed parent."""

import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any

from fairseq_clear.errors import UserError
from fairseq_clear.output_folder import STOP_SIGNALS
from fairseq_clear.processes import die_with_parent


@contextmanager
def worker_pool(
    workers: int, setup: Callable[..., object] = bool, arguments: tuple[Any, ...] = ()
) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool of ``workers`` processes, which first call the importable function ``setup`` with ``arguments``.

    Processes are forked on Linux.

    Raises:
        UserError: a worker was killed, usually because memory ran out.
    """
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else None)
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(workers, context, _start_worker, (setup, arguments))
    try:
        with warnings.catch_warnings():
            # Python 3.12 warns about fork in a process with threads, such as numpy's; the workers do not use them
            warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
            pool.submit(os.getpid)  # starts all processes now, before a progress bar adds a thread
        yield pool
        pool.shutdown()
    except BaseException as error:
        for process in set(multiprocessing.active_children()) - others:
            process.kill()
            process.join()
        pool.shutdown(wait=False, cancel_futures=True)
        if isinstance(error, BrokenProcessPool):
            raise UserError(
                "a process was killed, usually because memory ran out; rerun with fewer --workers"
            ) from None
        raise


def _start_worker(setup: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    die_with_parent()
    setup(*arguments)
