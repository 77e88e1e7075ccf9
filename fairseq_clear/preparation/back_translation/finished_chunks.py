"""Stores finished chunks in separate files, so that a killed run resumes where it stopped.

``OUTPUT.partial`` holds ``settings.json``, ``lock``, and one file per chunk: a line of JSON with the counts of the chunk and
the SHA-256 of its text, then the text. A chunk is finished if its file exists and the hash matches.
"""

import fcntl
import hashlib
import json
import os
import shutil
import socket
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from fairseq_clear.errors import UserError
from fairseq_clear.files import write_json, write_whole


class FinishedChunks:
    """The finished chunks in a folder, ``OUTPUT.partial``.

    Attributes:
        counts: index of a chunk -> its counts.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        read = {int(path.name.removeprefix("chunk")): _read_chunk(path) for path in folder.glob("chunk*")}
        self.counts = {chunk: content[0] for chunk, content in read.items() if content is not None}

    def total(self) -> Counter[str]:
        """Sums of the counts over the finished chunks."""
        return sum(self.counts.values(), Counter[str]())

    def add(self, chunk: int, lines: Sequence[str], counts: Counter[str]) -> None:
        """Write a chunk to disk."""
        text = "".join(f"{line}\n" for line in lines).encode()
        head = json.dumps({"sha256": hashlib.sha256(text).hexdigest(), "counts": counts}).encode()
        with write_whole(self.folder / f"chunk{chunk}") as stream:
            stream.write(head + b"\n" + text)
        self.counts[chunk] = counts

    def texts(self, chunks: Iterable[int], copy: int = 0, copies: int = 1) -> Iterator[bytes]:
        """Yield the lines of a copy, chunk by chunk; a chunk holds its copies one after the other.

        Raises:
            UserError: a file has changed since it was written.
        """
        for chunk in chunks:
            path = self.folder / f"chunk{chunk}"
            content = _read_chunk(path)
            if content is None:
                raise UserError(f"{path}: was damaged after it was written; rerun to translate this chunk again")
            lines = content[1].splitlines(keepends=True)
            count = len(lines) // copies
            yield b"".join(lines[copy * count : (copy + 1) * count])


def _read_chunk(path: Path) -> tuple[Counter[str], bytes] | None:
    """Read counts and text of a chunk; None if the file is missing or its hash does not match."""
    try:
        head, _, text = path.read_bytes().partition(b"\n")
        content = json.loads(head)
        if hashlib.sha256(text).hexdigest() == content["sha256"]:
            return Counter(content["counts"]), text
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        pass
    return None


def partial_folder(output: Path) -> Path:
    """The folder that keeps finished chunks until the output is written."""
    return output.with_name(output.name + ".partial")


def remove_partial(output: Path) -> None:
    """Remove the folder of a finished output."""
    shutil.rmtree(partial_folder(output), ignore_errors=True)


@contextmanager
def open_chunks(output: Path, settings: dict[str, Any], overwrite: bool) -> Iterator[FinishedChunks]:
    """Lock the partial folder of an output and yield its finished chunks, which were made with the same settings.

    With ``overwrite``, chunks of other settings are deleted instead of raising an error.

    Raises:
        UserError: another process writes this output, the chunks have other settings, or the disk is full.
    """
    folder = partial_folder(output)
    try:
        folder.mkdir(exist_ok=True)
        with open(folder / "lock", "a+b") as lock:
            _lock(lock, output)
            for leftover in folder.glob(".*.writing.*"):  # left by a killed call of write_whole
                leftover.unlink()
            _check_settings(folder, settings, overwrite)
            finished = FinishedChunks(folder)
            try:
                yield finished
            except UserError:
                if not finished.counts:  # nothing to resume: a model that cannot be loaded leaves no folder
                    remove_partial(output)
                raise
    except OSError as error:
        where = error.filename or folder
        raise UserError(
            f"{where}: {error.strerror or error}; finished chunks are kept in {folder}: fix this and rerun"
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
    """Record the settings of a new run; UserError if there are chunks of other settings and ``overwrite`` is False."""
    path = folder / "settings.json"
    try:
        begun = json.loads(path.read_bytes())
    except FileNotFoundError:
        begun = {}
    except ValueError:
        begun = None
    if begun == settings:
        return
    chunks = list(folder.glob("chunk*"))
    if chunks and not overwrite:
        if not isinstance(begun, dict):
            raise UserError(f"{path}: damaged; remove {folder} and start again")
        changes = "; ".join(
            _difference(name, begun.get(name), settings.get(name)) for name in _changed(begun, settings)
        )
        raise UserError(
            f"{folder}: was started with other settings ({changes}); give the same settings to resume, or start again with "
            "--overwrite"
        )
    for chunk in chunks:
        chunk.unlink()
    write_json(path, settings, flag="--output")


def _changed(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    return [name for name in sorted({*old, *new}) if old.get(name) != new.get(name)]


def _difference(name: str, old: Any, new: Any) -> str:
    if isinstance(old, dict) and isinstance(new, dict):
        return f"{name}: other {', '.join(_changed(old, new))}"
    return "the input's text has changed" if name == "input" else f"{name}: {old}, now {new}"
