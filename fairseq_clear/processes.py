"""Locks that keep two processes from writing the same thing, and children that end with their parent.

A lock belongs to an open file: it ends with its process, however that ends, and nothing remains to be removed by hand.
"""

import ctypes
import errno
import fcntl
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_clear.errors import UserError

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

STOP_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
NO_LOCKS = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF}  # errors of file systems without such locks
_PR_SET_PDEATHSIG = 1  # of Linux's prctl
_prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None
_held: dict[int, Path] = {}  # file descriptor of each lock of this process -> its path


def _leave_locks_to_parent() -> None:
    """Close the files of locks in a forked child; else a lock would be held until the last child ends."""
    for held in _held:
        with suppress(OSError):
            os.close(held)
    _held.clear()


os.register_at_fork(after_in_child=_leave_locks_to_parent)


def lock(path: Path, *, wait: bool = False) -> int:
    """Lock a file, which is made if it is missing, or a folder, until ``unlock`` of the result or the end of this process.

    Raises:
        BlockingIOError: another process holds the lock; with ``wait``, the call waits for it instead.
        OSError: the file cannot be made, or its file system has no locks.
    """
    flags = os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT
    while True:
        file = os.open(path, flags | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_still(path, file):
                _held[file] = path.resolve()
                return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)  # the process that held the lock has renamed or removed the file


def unlock(file: int) -> None:
    """Release a lock."""
    _held.pop(file, None)
    os.close(file)


def holds(path: Path) -> bool:
    """Whether this process holds the lock of a file or folder."""
    return path.resolve() in _held.values()


@contextmanager
def locked(path: Path, message: str) -> Iterator[bool]:
    """Hold the lock of a file or folder inside the block; UserError with the message if another process holds it.

    Yields whether it is locked: False on a file system without locks.
    """
    file = None
    try:
        file = lock(path)
    except BlockingIOError:
        raise UserError(message) from None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    try:
        yield file is not None
    finally:
        if file is not None:
            unlock(file)


def _is_still(path: Path, file: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(file))
    except FileNotFoundError:
        return False


def die_with_parent() -> None:
    """Let Linux kill this process when its parent ends; for ``preexec_fn`` of ``subprocess.Popen``."""
    if _prctl is not None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@contextmanager
def worker_pool(
    workers: int, setup: Callable[..., object] = bool, arguments: tuple[Any, ...] = ()
) -> Iterator["ProcessPoolExecutor"]:
    """Yield a pool of ``workers`` processes, which first call the importable function ``setup`` with ``arguments``.

    Processes are forked on Linux. They end with this one, also after a failure, an interrupt, or (on Linux) a ``kill -9``.

    Raises:
        UserError: a worker was killed, usually because memory ran out.
    """
    import multiprocessing
    from concurrent.futures.process import BrokenProcessPool, ProcessPoolExecutor

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
