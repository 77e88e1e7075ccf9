"""Finished chunks on disk, so that a run killed at any instant goes on where it was.

``OUTPUT.partial`` holds ``settings.json``, ``lines`` (the text of the chunks, in the order in which they were finished) and
``journal`` (a record a chunk: its number, where its text lies, the text's hash, its counts). The text is on disk before its
record is, so whatever a record names is there; what no record names is cut off at the next start and made again.
"""

import fcntl
import hashlib
import json
import os
import shutil
import socket
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from fairseq_clear.errors import UserError
from fairseq_clear.preparation.back_translation.atomic import sync_folder, write_all, write_atomically
from fairseq_clear.preparation.back_translation.roundtrip import ChunkResult

__all__ = ["Journal", "open_journal", "partial_folder", "remove_partial"]

JOURNAL, LINES, SETTINGS, LOCK = "journal", "lines", "settings.json", "lock"


@dataclass(frozen=True)
class Record:
    """A finished chunk: ``size`` bytes of ``lines`` from ``offset``."""

    chunk: int
    offset: int
    size: int
    sha256: str
    counts: dict[str, int]


class Journal:
    """The chunks that are done, in an open folder.

    Args:
        folder: ``OUTPUT.partial``.
        journal, lines: its files, open for reading and appending.
    """

    def __init__(self, folder: Path, journal: IO[bytes], lines: IO[bytes]) -> None:
        self.folder = folder
        self._journal, self._lines = journal, lines
        self.records: dict[int, Record] = {}
        self._recover()

    @property
    def counts(self) -> Counter[str]:
        """Sums over the finished chunks."""
        total: Counter[str] = Counter()
        for record in self.records.values():
            total.update(record.counts)
        return total

    def append(self, result: ChunkResult) -> None:
        """Add a chunk; when this returns, it survives anything but the disk's own loss."""
        body = "".join(f"{line}\n" for line in result.lines).encode("utf-8")
        offset = self._lines.seek(0, os.SEEK_END)
        digest = hashlib.sha256(body).hexdigest()
        record = Record(result.chunk, offset, len(body), digest, dict(result.counts))
        write_all(self._lines, body)
        write_all(self._journal, json.dumps(asdict(record)).encode("utf-8") + b"\n")
        self.records[result.chunk] = record

    def texts(self, chunks: Iterable[int]) -> Iterator[bytes]:
        """The text of the chunks, in the given order.

        Raises:
            UserError: the disk gave back other bytes than were written.
        """
        for chunk in chunks:
            record = self.records[chunk]
            self._lines.seek(record.offset)
            body = self._lines.read(record.size)
            if hashlib.sha256(body).hexdigest() != record.sha256:
                raise UserError(
                    f"{self.folder / LINES}: chunk {chunk} is damaged; remove {self.folder} and start again"
                )
            yield body

    def _recover(self) -> None:
        """Read the records, and cut off what a kill left unfinished behind the last whole one."""
        self._journal.seek(0)
        whole = end = 0
        for line in self._journal.read().splitlines(keepends=True):
            record = _parse(line)
            if record is None:
                break
            self.records[record.chunk] = record
            whole += len(line)
            end = max(end, record.offset + record.size)
        size = self._lines.seek(0, os.SEEK_END)
        if size < end:
            raise UserError(f"{self.folder / LINES}: is shorter than its journal says; remove {self.folder}")
        self._journal.truncate(whole)
        self._lines.truncate(end)
        self._journal.seek(whole)


def partial_folder(output: Path) -> Path:
    """Where what is done is kept until all of it is."""
    return output.with_name(output.name + ".partial")


@contextmanager
def open_journal(output: Path, settings: dict[str, Any], overwrite: bool) -> Iterator[Journal]:
    """The journal of an output, held by this process alone; begun anew if there is none or ``overwrite`` is on.

    Args:
        output: the file that will be written.
        settings: what decides it; a journal of others is not gone on with.
        overwrite: forget what was done under other settings.

    Raises:
        UserError: another process holds it, it was begun with other settings, or the disk refuses.
    """
    folder = partial_folder(output)
    try:
        folder.mkdir(exist_ok=True)
        with open(folder / LOCK, "a+b") as lock:
            _lock(lock, output)
            _check_settings(folder, settings, overwrite)
            with open(folder / JOURNAL, "a+b", 0) as journal, open(folder / LINES, "a+b", 0) as lines:
                sync_folder(folder)
                yield Journal(folder, journal, lines)
    except OSError as error:
        where = error.filename or folder
        raise UserError(
            f"{where}: {error.strerror or error}; what was done is kept in {folder}: mend it and run again"
        ) from error


def _lock(lock: IO[bytes], output: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        holder = lock.read().decode("utf-8", "replace").strip() or "another process"
        raise UserError(f"--output {output}: {holder} is writing it; give another name, or wait for it") from None
    lock.truncate(0)
    lock.write(f"process {os.getpid()} on {socket.gethostname()}\n".encode())
    lock.flush()


def _check_settings(folder: Path, settings: dict[str, Any], overwrite: bool) -> None:
    """Go on with what was done under the same settings; forget what was done under others, if that is allowed."""
    path = folder / SETTINGS
    begun = _read_settings(path)
    if begun == settings:
        return
    journal = folder / JOURNAL
    if begun is not None and not overwrite and journal.exists() and journal.stat().st_size:
        names = [name for name in sorted({*begun, *settings}) if begun.get(name) != settings.get(name)]
        told = "; ".join(_difference(name, begun.get(name), settings.get(name)) for name in names)
        raise UserError(
            f"{folder}: was begun with other settings ({told}); give the same to go on, or begin anew with --overwrite"
        )
    for name in (JOURNAL, LINES):
        (folder / name).unlink(missing_ok=True)
    write_atomically(path, [json.dumps(settings, indent=1).encode("utf-8") + b"\n"])


def _read_settings(path: Path) -> dict[str, Any] | None:
    """The settings that a folder was begun with; None if nothing was recorded yet."""
    try:
        begun = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError:
        begun = None
    if not isinstance(begun, dict):
        raise UserError(f"{path}: damaged; remove {path.parent} and start again")
    return begun


def _difference(name: str, old: Any, new: Any) -> str:
    if isinstance(old, dict) and isinstance(new, dict):
        names = [key for key in sorted({*old, *new}) if old.get(key) != new.get(key)]
        return f"{name}: other {', '.join(names)}"
    if name == "input":
        return "the input's text has changed"
    return f"{name}: {old}, now {new}"


def remove_partial(output: Path) -> None:
    """Remove the folder of a finished output."""
    shutil.rmtree(partial_folder(output), ignore_errors=True)


def _parse(line: bytes) -> Record | None:
    """A record, or None for one that was being written."""
    if not line.endswith(b"\n"):
        return None
    try:
        return Record(**json.loads(line))
    except (ValueError, TypeError):
        return None
