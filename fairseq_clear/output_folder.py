"""Writes a folder atomically: under a temporary name, which is renamed at the end and removed on failure."""

import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import FrameType

from fairseq_clear.errors import UserError
from fairseq_clear.processes import STOP_SIGNALS, locked

# Files that identify the folder of a command, as ``markers`` of ``output_folder``.
DATA_FOLDER, EXPORT = ("train.idx", "shard0/train.idx"), ("fairseq_clear.json",)


@contextmanager
def output_folder(dest: Path, overwrite: bool, markers: Sequence[str] = ()) -> Iterator[Path]:
    """Yield a temporary folder next to ``dest``; it becomes ``dest`` on success and is removed on any failure.

    Raises:
        UserError: ``dest`` must not be written, see ``check_destination``; another process is writing it; or the disk is full.
    """
    dest = Path(os.path.realpath(dest))
    check_destination(dest, overwrite, markers)
    with partial_folder(dest) as (folder, check_signals):
        yield folder
        check_signals()
        with _signals_wait():
            _put_in_place(folder, dest)


@contextmanager
def partial_folder(dest: Path) -> Iterator[tuple[Path, Callable[[], None]]]:
    """Yield the folder ``.NAME.partial`` next to ``dest``, removed at the end unless it was renamed, and ``check_signals``.

    Call ``check_signals`` before renaming, see ``signals_raise``.

    SIGTERM and SIGHUP raise SystemExit (128 + signal) in the block, so they leave nothing behind. The folder of a process
    killed by ``kill -9`` is replaced by the next call for the same ``dest``.

    Raises:
        UserError: another process is writing ``dest``, or the disk is full.
    """
    made_parents = _make_parents(dest.parent)
    try:
        with signals_raise() as check_signals, _locked_folder(dest) as folder:
            yield folder, check_signals
    except BaseException as error:
        for parent in reversed(made_parents):
            if parent.is_dir() and not any(parent.iterdir()):
                parent.rmdir()
        if isinstance(error, OSError):
            # of a copy, the file that was written: a full disk is not that of the source
            what = f"{error.filename2 or error.filename or dest}: {error.strerror or error}"
            if isinstance(error, shutil.Error):  # all files of a folder that could not be copied
                _, copy, reason = error.args[0][0]
                what = f"{copy}: {reason.partition('] ')[2].partition(':')[0] or reason}"
            raise UserError(f"{what}; nothing was written; fix this and rerun") from error
        raise


@contextmanager
def _locked_folder(dest: Path) -> Iterator[Path]:
    """Make the temporary folder of ``dest``, under a lock where the file system has locks, and remove it at the end."""
    folder, guard = dest.with_name(f".{dest.name}.partial"), dest.with_name(f".{dest.name}.lock")
    with locked(guard, f"{dest}: another process is writing it; wait for it, or give another name") as is_locked:
        if not is_locked and folder.exists():
            raise UserError(f"{folder}: exists; remove it if no other process is writing {dest}")
        try:
            shutil.rmtree(folder, ignore_errors=True)  # of a killed process
            folder.mkdir()
            yield folder
        finally:
            with _signals_wait():
                shutil.rmtree(folder, ignore_errors=True)
                guard.unlink(missing_ok=True)


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a folder for temporary files, in ``TMPDIR``, which is removed at the end, also after a signal."""
    with signals_raise(), tempfile.TemporaryDirectory(prefix="fairseq-clear.") as folder:
        yield Path(folder)


def check_destination(dest: Path, overwrite: bool, markers: Sequence[str], *, for_fairseq: bool = False) -> None:
    """Raise UserError if ``dest`` must not be written.

    Args:
        markers: a folder that ``overwrite`` may replace is empty, or holds one of these files.
        for_fairseq: fairseq-train reads data in ``dest``.
    """
    if for_fairseq and os.pathsep in str(dest):
        raise UserError(f"--dest {dest}: fairseq separates data folders by {os.pathsep!r}; give a path without it")
    if not dest.exists():
        return
    if not overwrite:
        raise UserError(f"{dest}: exists already; choose another --dest, or replace it with --overwrite")
    if not dest.is_dir():
        raise UserError(f"{dest}: is a file; --overwrite replaces folders only")
    if any(dest.iterdir()) and not any((dest / name).is_file() for name in markers):
        what = f"has no {' or '.join(markers)}, so this command did not make it"
        raise UserError(f"{dest}: {what}; --overwrite replaces nothing else: choose another --dest, or remove it")


def check_outside(dest: Path, paths: Iterable[Path]) -> None:
    """Raise UserError for an input that is ``dest`` or inside it, and would be replaced."""
    for path in paths:
        if path.resolve().is_relative_to(dest.resolve()):
            raise UserError(f"{path}: is in --dest {dest}, which would be replaced; move it, or give another --dest")


def _make_parents(folder: Path) -> list[Path]:
    missing = [parent for parent in (folder, *folder.parents) if not parent.exists()][::-1]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: cannot make this folder ({error.strerror})") from None
    return missing


def _put_in_place(temporary: Path, dest: Path) -> None:
    if not dest.exists():
        os.rename(temporary, dest)
        return
    replaced = dest.with_name(f".{dest.name}.replaced")
    shutil.rmtree(replaced, ignore_errors=True)  # of a killed process
    os.rename(dest, replaced)
    try:
        os.rename(temporary, dest)
    except BaseException:
        os.rename(replaced, dest)
        raise
    shutil.rmtree(replaced, ignore_errors=True)


@contextmanager
def signals_raise() -> Iterator[Callable[[], None]]:
    """Turn the signals that end a process into SystemExit inside the block; does nothing outside the main thread.

    Python ignores a SystemExit that is raised in a finalizer (``__del__``), so it is raised once more at the end of the block,
    and by the function that this yields.
    """
    received: list[int] = []

    def leave(number: int, frame: FrameType | None) -> None:
        received.append(number)
        raise SystemExit(128 + number)

    def check() -> None:
        if received:
            raise SystemExit(128 + received[0])

    with _handlers(leave, STOP_SIGNALS):
        yield check
        check()


def _signals_wait() -> AbstractContextManager[None]:
    """Ignore signals during the last rename and the clean-up."""
    return _handlers(signal.SIG_IGN, (*STOP_SIGNALS, signal.SIGINT))


@contextmanager
def _handlers(handler: "signal._HANDLER", signals: tuple[signal.Signals, ...]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handled = [number for number in signals if signal.getsignal(number) is not signal.SIG_IGN]  # nohup ignores SIGHUP
    before = {number: signal.signal(number, handler) for number in handled}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
