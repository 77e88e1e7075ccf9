"""Files that appear whole or not at all, and bytes that are on disk when a call returns."""

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO

__all__ = ["remove_leftovers", "sync_folder", "write_all", "write_atomically"]


def write_atomically(path: Path, parts: Iterable[bytes]) -> None:
    """Write a file that appears whole, with the permissions of any other, or not at all."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.writing.")
    try:
        with os.fdopen(handle, "wb") as stream:
            for part in parts:
                stream.write(part)
            stream.flush()
            os.fsync(stream.fileno())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def remove_leftovers(path: Path) -> None:
    """Remove what killed calls of ``write_atomically`` left; for who holds the path's lock."""
    for leftover in path.parent.glob(f".{path.name}.writing.*"):
        leftover.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Have the names in a folder on disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_all(stream: IO[bytes], content: bytes) -> None:
    """All of the content, on disk; an unbuffered file may take less than it is given."""
    rest = memoryview(content)
    while rest:
        rest = rest[stream.write(rest) :]
    os.fsync(stream.fileno())
