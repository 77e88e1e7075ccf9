"""Lines of corpus files, one at a time: plain, gzip or xz, UTF-8; every complaint names the file and the line."""

import gzip
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from fairseq_clear.data.lines import check_is_text
from fairseq_clear.errors import UserError

COMPRESSIONS = (".gz", ".xz")
NOT_TEXT = frozenset({".tar", ".tgz", ".zip", ".json", ".csv", ".tsv", ".parquet", ".html", ".xml", ".gz", ".xz"})
INPUT = re.compile(r"^[^.].*\.(txt|jsonl)(\.gz|\.xz)?$", flags=re.IGNORECASE)
MAX_LINE_BYTES = 64 * 2**20  # a line is held in memory; longer ones are binaries or a format of another name
LINES_PER_PROGRESS = 1000


@dataclass(frozen=True)
class CorpusFile:
    """One input: where it is, how it is packed (``.gz``, ``.xz`` or nothing) and whether its lines are JSON."""

    path: Path
    compression: str
    is_jsonl: bool


def corpus_file(path: Path) -> CorpusFile:
    """Tell by its name how to read an input.

    Raises:
        UserError: no such file, a folder, or a suffix that says it is neither text nor JSON lines.
    """
    if path.is_dir():
        raise UserError(f"{path}: is a folder; name its files, e.g. {path}/*.txt")
    if not path.exists():
        raise UserError(f"{path}: no such file")
    compression = path.suffix.lower() if path.suffix.lower() in COMPRESSIONS else ""
    kind = Path(path.stem).suffix.lower() if compression else path.suffix.lower()
    is_text = kind not in NOT_TEXT if compression else kind == ".txt"
    if kind != ".jsonl" and not is_text:
        with suppress(OSError), path.open("rb") as file:
            check_is_text(path, file.read(16))
        raise UserError(f"{path}: unknown suffix; inputs are .txt or .jsonl, also .gz or .xz; convert or rename it")
    return CorpusFile(path, compression, kind == ".jsonl")


def corpus_files(paths: Iterable[Path]) -> list[CorpusFile]:
    """The inputs that the paths name; of a folder, every .txt and .jsonl file below it (also .gz, .xz), sorted by path.

    Raises:
        UserError: as ``corpus_file``, and a folder without such a file.
    """
    files: list[CorpusFile] = []
    for path in paths:
        if not path.is_dir():
            files.append(corpus_file(path))
            continue
        below = [found for found in sorted(path.rglob("*")) if found.is_file() and INPUT.search(found.name)]
        if not below:
            raise UserError(f"{path}: there is no .txt or .jsonl file (also .gz, .xz) in this folder")
        files += [corpus_file(found) for found in below]
    return files


def read_lines(file: CorpusFile, progress: Callable[[int], object] | None = None) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, text without its end) in file order, holding one line at a time.

    A byte order mark at the start is dropped; lines end with LF, CRLF or CR, as in Python's text mode (but parts that a
    lone CR separates keep one number).

    Args:
        file: the input.
        progress: called with the number of bytes read from disk since its last call.

    Raises:
        UserError: undecodable bytes, a NUL character, an overlong line, a damaged archive, an unreadable file.
    """
    number = 0
    try:
        with open(file.path, "rb") as raw, _unpacked(raw, file.compression) as stream:
            reported = 0
            while line := stream.readline(MAX_LINE_BYTES + 1):
                number += 1
                if progress is not None and number % LINES_PER_PROGRESS == 0:
                    progress(raw.tell() - reported)
                    reported = raw.tell()
                text = _decode(line, file.path, number)
                for part in text.removesuffix("\n").removesuffix("\r").split("\r"):
                    yield number, part
            if progress is not None:
                progress(raw.tell() - reported)
    except (gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError) as error:
        where = f"{file.path}:{number + 1}"
        raise UserError(f"{where}: the {file.compression} archive is damaged or cut off ({error})") from None
    except OSError as error:
        raise UserError(f"{file.path}: cannot read it ({error.strerror or error})") from None


@contextmanager
def _unpacked(raw: BinaryIO, compression: str) -> Iterator[BinaryIO]:
    if compression == ".gz":
        with gzip.GzipFile(fileobj=raw) as stream:
            yield stream  # type: ignore[misc]
    elif compression == ".xz":
        with lzma.LZMAFile(raw) as stream:
            yield stream  # type: ignore[misc]
    else:
        yield raw


def _decode(line: bytes, path: Path, number: int) -> str:
    if len(line) > MAX_LINE_BYTES:
        raise UserError(f"{path}:{number}: more than {MAX_LINE_BYTES >> 20} MiB without a line end; is this text?")
    if number == 1:
        check_is_text(path, line)
        line = line.removeprefix(b"\xef\xbb\xbf")
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}:{number}: byte 0x{line[error.start]:02x} at position {error.start + 1} of the line is not UTF-8; "
            "convert the file first, e.g. iconv -f latin1 -t utf-8"
        ) from None
    if "\0" in text:
        raise UserError(f"{path}:{number}: a NUL character; is this a text file, and UTF-8 rather than UTF-16?")
    return text
