"""The lines of the input: counted and hashed once, then read in chunks. Only LF ends a line, as ``wc -l`` counts them."""

import gzip
import hashlib
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from fairseq_clear.errors import UserError
from fairseq_clear.files import MAX_LINE_BYTES, check_is_text

__all__ = ["InputText", "read_chunks", "scan"]

_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class InputText:
    """The input: how many lines, and the SHA-256 of its unpacked bytes."""

    path: Path
    lines: int
    digest: str


def scan(path: Path) -> InputText:
    """Count and hash the lines; every mistake of the file is found here, before anything is translated.

    Raises:
        UserError: a missing, unreadable, damaged or empty file, or one that is not UTF-8; the line is named.
    """
    if path.is_dir() or not path.exists():
        raise UserError(f"--input {path}: {'is a folder' if path.is_dir() else 'no such file'}; give a text file")
    digest = hashlib.sha256()
    lines = 0
    for line in _raw_lines(path):
        lines += 1
        digest.update(line)
        _decode(line, path, lines)
    if not lines:
        raise UserError(f"--input {path}: holds no line; give a text with one sentence a line")
    return InputText(path, lines, digest.hexdigest())


def read_chunks(path: Path, chunk_lines: int, first: int, end: int) -> Iterator[tuple[int, list[str]]]:
    """Yield (number, lines) of the chunks from ``first`` to before ``end``; lines without their ends."""
    lines = islice(enumerate(_raw_lines(path), 1), first * chunk_lines, end * chunk_lines)
    for number in range(first, end):
        chunk = [_decode(line, path, place) for place, line in islice(lines, chunk_lines)]
        if chunk:
            yield number, chunk


def _raw_lines(path: Path) -> Iterator[bytes]:
    number = 0
    try:
        with _unpacked(path) as stream:
            while line := stream.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) > MAX_LINE_BYTES:
                    raise UserError(f"{path}:{number}: more than {MAX_LINE_BYTES >> 20} MiB without a line end")
                yield line
    except (gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError) as error:
        raise UserError(f"{path}:{number + 1}: the archive is damaged or cut off ({error})") from None
    except OSError as error:
        raise UserError(f"{path}: cannot read it ({error.strerror or error})") from None


@contextmanager
def _unpacked(path: Path) -> Iterator[BinaryIO]:
    kinds: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}
    with kinds.get(path.suffix.lower(), open)(path, "rb") as stream:
        yield stream


def _decode(line: bytes, path: Path, number: int) -> str:
    if number == 1:
        check_is_text(path, line)
        line = line.removeprefix(_BOM)
    try:
        return line.decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}:{number}: byte 0x{line[error.start]:02x} at position {error.start + 1} of the line is not UTF-8; "
            "convert the file first, e.g. iconv -f latin1 -t utf-8"
        ) from None
