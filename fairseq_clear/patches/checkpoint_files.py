"""Reads and writes checkpoints: files are written atomically, and reading one runs no code.

fairseq overwrites checkpoints in place, so a run that is killed meanwhile leaves an incomplete ``checkpoint_last.pt``. It uses
torch's default of ``weights_only``, and it saves weights that are not finite.
"""

import errno
import logging
import os
import pickle
import re
import shutil
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from fairseq.file_io import PathManager
from omegaconf.errors import OmegaConfBaseException

from fairseq_clear import files
from fairseq_clear.errors import UserError, exit_on_user_error, one_line
from fairseq_clear.patches import original

logger = logging.getLogger(__name__)

READ, WRITE = "fairseq.checkpoint_utils:load_checkpoint_to_cpu", "fairseq.checkpoint_utils:torch_persistent_save"
CRASH = "crash.pt"  # saved by fairseq when a run ends with an error
ATTEMPTS, SECONDS_BETWEEN = 3, 2.5  # fairseq's values, for file systems that recover
DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# Raised by torch.load and fairseq for a file that is cut off, or is not a checkpoint of fairseq.
DAMAGE = (
    *(RuntimeError, EOFError, LookupError, AttributeError, TypeError, ValueError, MemoryError),
    *(OmegaConfBaseException, zipfile.BadZipFile),
)
_watchers: list[Callable[[dict[str, Any]], object]] = []


@contextmanager
def watch_reading(check: Callable[[dict[str, Any]], object]) -> Iterator[None]:
    """Call ``check`` with the content of every checkpoint that is read within the block, before it is used."""
    _watchers.append(check)
    try:
        yield
    finally:
        _watchers.remove(check)


def read_checkpoint(path: str, arg_overrides: Any = None, load_on_all_ranks: bool = False) -> dict[str, Any]:
    """Replaces ``load_checkpoint_to_cpu``: loads with ``weights_only``; UserError if the file is damaged or could run code."""
    stock = torch.load
    torch.load = partial(stock, weights_only=True)
    try:
        _check_sums(path)
        state: dict[str, Any] = original(READ)(path, arg_overrides, load_on_all_ranks)
        state["model"].keys, state["cfg"]  # noqa: B018  (what follows cannot do without)
    except pickle.UnpicklingError as error:
        what, remedy = "checkpoint of fairseq-train", "give a checkpoint of fairseq-train"
        raise unloadable(path, error, what, "neither weights nor settings", remedy) from None
    except (OSError, *DAMAGE) as error:
        # EINVAL: torch looks for the end of the zip file before the beginning of a short file
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise UserError(f"{path}: cannot read it ({error.strerror or error})") from None
        raise UserError(f"{path}: not a complete checkpoint of fairseq-train ({one_line(error)})") from None
    finally:
        torch.load = stock
    for check in _watchers:
        check(state)
    return state


def unloadable(path: object, error: pickle.UnpicklingError, what: str, unlike: str, remedy: str) -> UserError:
    """Describe a file that ``weights_only`` rejects: torch's own message advises the user to turn the check off.

    The error of ``torch.load`` names a class or function, unless the file is damaged. ``what`` is what the file should be, and
    ``unlike`` what such a class is not.
    """
    found = re.search(r"(?:GLOBAL|unrecognized function) (\S+)", str(error))
    if found is None:
        return UserError(f"{path}: not a complete {what}")
    return UserError(f"{path}: holds a {found[1]}, which is {unlike} and could run code; {remedy}")


def _check_sums(path: str) -> None:
    """Check the CRC of every record of the zip file; torch does not notice a changed bit."""
    if not zipfile.is_zipfile(path):
        return  # a file of torch before 1.6, which has no checksums
    with zipfile.ZipFile(path) as archive:
        for record in archive.infolist():
            if record.CRC:  # torch can be configured not to write it
                with archive.open(record) as stream:
                    while stream.read(1 << 22):
                        pass


def write_whole(obj: Any, filename: str, async_write: bool = False) -> None:
    """Replaces ``torch_persistent_save``: writes atomically; UserError if a weight is not finite or the disk is full."""
    is_crash = os.path.basename(filename) == CRASH
    if not is_crash:
        _check_finite(obj, filename)
    if async_write or not PathManager.supports_rename(filename):
        original(WRITE)(obj, filename, async_write)
        return
    for attempt in range(ATTEMPTS):
        try:
            save(obj, filename)
            return
        except (OSError, RuntimeError) as error:
            if attempt + 1 < ATTEMPTS and getattr(error, "errno", None) not in DISK_FULL:
                time.sleep(SECONDS_BETWEEN)
                continue
            if is_crash:  # the error that ended the run is more important
                logger.warning("%s: cannot write it (%s)", filename, one_line(error))
                return
            raise UserError(
                f"{filename}: cannot write it ({getattr(error, 'strerror', None) or one_line(error)}); the checkpoints "
                "before it are complete: free some space, and rerun the same command"
            ) from None


@exit_on_user_error
def verify_folder(save_dir: str) -> None:
    """Replaces ``verify_checkpoint_directory``: if the folder cannot be written to, the error is one line."""
    try:
        Path(save_dir).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=save_dir):
            pass
    except OSError as error:
        raise UserError(f"--save-dir {save_dir}: cannot write there ({error.strerror or error})") from None


def save(state: Any, path: str | Path) -> None:
    """Call ``torch.save``, atomically, with an OSError instead of a RuntimeError if the disk is full."""
    try:
        with files.write_whole(path) as stream:
            torch.save(state, stream)
    except RuntimeError as error:
        raise _system_error(error) from None


def copy_whole(src_path: str, dst_path: str, overwrite: bool = False) -> bool:
    """Replaces ``PathManager.copy``: copies atomically."""
    if os.path.exists(dst_path) and not overwrite:
        return False
    try:
        with open(src_path, "rb") as content, files.write_whole(dst_path) as stream:
            shutil.copyfileobj(content, stream, 1 << 22)
    except OSError as error:
        what = f"{dst_path}: cannot write it ({error.strerror or error}); {src_path} is complete"
        raise UserError(f"{what}: free some space, copy it there, and give the same command again") from None
    return True


def newest_whole(path: str) -> Path | None:
    """The newest checkpoint in the folder of ``path`` that is not cut off, except ``path`` itself."""
    others = [other for other in Path(path).parent.glob("*.pt") if other.name not in (CRASH, Path(path).name)]
    whole = [other for other in others if other.is_file() and zipfile.is_zipfile(other)]
    return max(whole, key=lambda other: other.stat().st_mtime, default=None)


def _check_finite(state: Any, filename: str) -> None:
    weights = state.get("model") if isinstance(state, dict) else None
    for name, value in (weights or {}).items():
        if torch.is_tensor(value) and value.is_floating_point() and not torch.isfinite(value).all():
            updates = (state.get("optimizer_history") or [{}])[-1].get("num_updates")
            raise UserError(
                f"update {updates}: {name} is not finite any more, so {filename} is not written; earlier checkpoints are "
                "unchanged: resume from one with a lower --lr, a longer --warmup-updates or --clip-norm"
            )


def _system_error(error: BaseException) -> BaseException:
    """The OSError that caused the exception that torch raises if a stream cannot be written."""
    known: BaseException | None = error
    while known is not None and not isinstance(known, OSError):
        known = known.__cause__ or known.__context__
    return known or error
