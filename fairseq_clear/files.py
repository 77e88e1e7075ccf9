"""Reading text with errors that name file and line, writing files atomically, and hashing files."""

import gzip
import hashlib
import json
import lzma
import os
import platform
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, BinaryIO

from fairseq_clear import __version__
from fairseq_clear.errors import UserError
from fairseq_clear.processes import NO_LOCKS, lock, unlock

OPENERS: dict[str, Callable[[BinaryIO], Any]] = {".gz": gzip.open, ".xz": lzma.open}
COMPRESSIONS = tuple(OPENERS)
NOT_TEXT = frozenset({".tar", ".tgz", ".zip", ".json", ".csv", ".tsv", ".parquet", ".html", ".xml", ".gz", ".xz"})
INPUT = re.compile(r"^[^.].*\.(txt|jsonl)(\.gz|\.xz)?$", flags=re.IGNORECASE)
DATA_FOLDER_FILE = "clear.json"  # a file of every data folder, whose dict.txt is no text
MAX_LINE_BYTES = 64 * 2**20  # a line is held in memory; a longer one is a binary file or another format
LINES_PER_PROGRESS = 1000
PACKAGES = (
    "fairseq", "torch", "numpy", "sentencepiece", "sentencex", "scikit-learn", "scipy", "transformers", "tokenizers",
)  # fmt: skip

_BOM = b"\xef\xbb\xbf"
# first bytes -> what such a file is, and what to do with it
_BINARIES = {
    b"\xff\xfe": "UTF-16; convert it first: iconv -f utf-16 -t utf-8",
    b"\xfe\xff": "UTF-16; convert it first: iconv -f utf-16 -t utf-8",
    b"%PDF-": "a PDF; extract its text first: pdftotext FILE.pdf FILE.txt",
    b"PK\x03\x04": "a zip archive, as .docx and .odt files are; unpack it, or save the document as plain text",
    b"\x1f\x8b": "gzip-compressed; unpack it with gunzip, or give it a name that ends in .gz",
    b"\xfd7zXZ\0": "xz-compressed; unpack it with unxz, or give it a name that ends in .xz",
}


def read_text_lines(path: str | Path, encoding: str = "utf-8") -> list[str]:
    """Return the lines that ``read_whole_lines`` yields; line i + 1 of the file is item i."""
    return [line for _, line in read_whole_lines(Path(path), allow_nul=True, encoding=encoding)]


@dataclass(frozen=True)
class CorpusFile:
    """An input file; its name determines how it is read."""

    path: Path

    @property
    def compression(self) -> str:
        """``.gz``, ``.xz`` or an empty string."""
        suffix = self.path.suffix.lower()
        return suffix if suffix in COMPRESSIONS else ""

    @property
    def kind(self) -> str:
        """The suffix, without the compression's, in lower case."""
        return Path(self.path.stem if self.compression else self.path.name).suffix.lower()

    @property
    def is_jsonl(self) -> bool:
        """Whether each line is a JSON object."""
        return self.kind == ".jsonl"


def corpus_file(path: Path) -> CorpusFile:
    """Check that a file exists, and that its suffix is of text or JSON lines; otherwise UserError."""
    if _is_folder(path):
        raise UserError(f"{path}: is a folder; name its files, e.g. {path}/*.txt")
    if not path.exists():
        raise UserError(f"{path}: no such file")
    file = CorpusFile(path)
    is_text = file.kind not in NOT_TEXT if file.compression else file.kind == ".txt"
    if not (file.is_jsonl or is_text):
        raise UserError(f"{path}: unknown suffix; inputs are .txt or .jsonl, also .gz or .xz; convert or rename it")
    return file


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError as error:  # of a folder above it, or of the length of its name
        raise UserError(f"{path}: cannot read it ({error.strerror or error})") from None


def corpus_files(paths: Iterable[Path]) -> list[CorpusFile]:
    """Return the inputs that the paths name. A folder stands for every .txt and .jsonl file below it (also .gz, .xz), by name.

    Hidden files and folders, links to folders, and data folders of prepare are ignored.

    Raises:
        UserError: as for ``corpus_file``; a folder contains no such file; or a file is named twice.
    """
    files: list[CorpusFile] = []
    for path in paths:
        if not _is_folder(path):
            files.append(corpus_file(path))
            continue
        below = [found for found in sorted(path.rglob("*")) if found.is_file() and INPUT.search(found.name)]
        below = [found for found in below if not any(part.startswith(".") for part in found.relative_to(path).parts)]
        below = [found for found in below if not _is_in_data_folder(found, path)]
        if not below:
            raise UserError(f"{path}: there is no .txt or .jsonl file (also .gz, .xz) in this folder")
        files += [corpus_file(found) for found in below]
    names: dict[str, Path] = {}
    for file in files:
        first = names.setdefault(os.path.realpath(file.path), file.path)
        if first is not file.path:
            raise UserError(f"{file.path}: is given twice, also as {first}; leave one of them out")
    return files


def _is_in_data_folder(file: Path, top: Path) -> bool:
    return any((folder / DATA_FOLDER_FILE).is_file() for folder in file.parents if folder.is_relative_to(top))


def read_lines(
    file: CorpusFile | Path, progress: Callable[[int], object] | None = None, *, errors: str = "strict"
) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, text without its end) as ``read_whole_lines`` does, but a CR ends a line too.

    So do Python's text files. Lines that only a CR separates have the same number.
    """
    for number, line in read_whole_lines(file, progress, errors=errors):
        for part in line.split("\r"):
            yield number, part


def read_whole_lines(
    file: CorpusFile | Path,
    progress: Callable[[int], object] | None = None,
    *,
    allow_nul: bool = False,
    encoding: str = "utf-8",
    errors: str = "strict",
) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, text without its end) in file order, with one line in memory at a time.

    Only LF and CRLF end a line, as for ``wc -l``. A CR within a line is kept, as are the other characters at which Python's
    ``splitlines`` splits (form feed, U+2028). A byte order mark at the start is dropped.

    Args:
        file: the input; if it is a path, only its suffix .gz or .xz matters.
        progress: called with the number of bytes read from disk since its last call.
        allow_nul: accept NUL characters.
        encoding: ``utf-8``, or ``latin-1`` for data sets that are distributed in it.
        errors: ``replace`` replaces bytes that are not UTF-8 by U+FFFD.

    Raises:
        UserError: bytes that are not UTF-8, a NUL character, a line of more than 64 MiB, a damaged archive, an unreadable file.
    """
    if isinstance(file, Path):
        file = CorpusFile(file)
    number = 0
    try:
        with open(file.path, "rb") as raw, OPENERS.get(file.compression, nullcontext)(raw) as stream:
            reported = 0
            while line := stream.readline(MAX_LINE_BYTES + 1):
                number += 1
                if progress is not None and number % LINES_PER_PROGRESS == 0:
                    progress(raw.tell() - reported)
                    reported = raw.tell()
                text = _decode_line(line, file.path, number, encoding, errors)
                if "\0" in text and not allow_nul:
                    raise UserError(
                        f"{file.path}:{number}: a NUL character; is this a text file, and UTF-8 rather than UTF-16?"
                    )
                yield number, text.removesuffix("\n").removesuffix("\r")
            if progress is not None:
                progress(raw.tell() - reported)
    except (gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError) as error:
        where = f"{file.path}:{number + 1}"
        raise UserError(f"{where}: the {file.compression} archive is damaged or cut off ({error})") from None
    except OSError as error:
        raise UserError(f"{file.path}: cannot read it ({error.strerror or error})") from None


def record_texts(
    line: str,
    names: Sequence[str],
    path: Path,
    number: int,
    *,
    optional: Sequence[str] = (),
    hint: str = "name the right one with --text-field",
) -> tuple[str, ...]:
    """Read the texts of one line of a ``.jsonl`` file.

    Args:
        line: a JSON object.
        names: of the fields that hold the texts.
        optional: fields that may be missing or null; their text is then empty.
        hint: last words of the message about a missing field.

    Raises:
        UserError: not a JSON object with a string, or a whole number, under each name.
    """
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}:{number}: not JSON ({error}); a .jsonl file has one JSON object a line") from None
    if not isinstance(record, dict):
        raise UserError(f'{path}:{number}: a {type(record).__name__}, not an object such as {{"{names[0]}": "..."}}')
    return tuple(
        "" if name in optional and record.get(name) is None else _text(record, name, f"{path}:{number}", hint)
        for name in names
    )


def _text(record: dict[str, Any], field: str, where: str, hint: str) -> str:
    if field not in record:
        found = ", ".join(list(record)[:8]) or "none"
        raise UserError(f"{where}: no field {field!r} (fields: {found}); {hint}")
    text = str(record[field]) if type(record[field]) is int else record[field]  # an id, or a title such as 1984
    if not isinstance(text, str):
        raise UserError(f"{where}: field {field!r} is {type(text).__name__}, not text; fix or drop the record")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise UserError(f"{where}: an unpaired surrogate (\\ud800 to \\udfff) in {field!r}; drop it") from None
    return text


def _decode_line(line: bytes, path: Path, number: int, encoding: str, errors: str) -> str:
    if len(line) > MAX_LINE_BYTES:
        raise UserError(f"{path}:{number}: more than {MAX_LINE_BYTES >> 20} MiB without a line end; is this text?")
    if number == 1:
        if what := next((what for start, what in _BINARIES.items() if line.startswith(start)), None):
            raise UserError(f"{path}:1: this is {what}")
        line = line.removeprefix(_BOM)
    try:
        return line.decode(encoding, errors)
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}:{number}: byte 0x{line[error.start]:02x} at position {error.start + 1} of the line is not "
            f"{encoding.upper()}; convert the file first, e.g. iconv -f latin1 -t {encoding}"
        ) from None


def check_fields(files: Iterable[CorpusFile], given: Mapping[str, str | None]) -> None:
    """Raise UserError if a flag names a field of records, other than the default ``text``, and no file has records."""
    if not any(file.is_jsonl for file in files):
        for flag, name in given.items():
            if name not in (None, "text"):
                raise UserError(f"{flag} {name}: has no effect, as no input is .jsonl; leave it out")


def check_output_file(path: Path, overwrite: bool, *, flag: str = "--output") -> None:
    """Check, before the work starts, that a file can be written, and replaced only with ``overwrite``; otherwise UserError."""
    if not path.parent.is_dir():
        raise UserError(f"{flag} {path}: there is no folder {path.parent}; make it first")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise UserError(f"{flag} {path}: {path.parent} may not be written to; give another folder")
    if path.is_dir():
        raise UserError(f"{flag} {path}: is a folder; give the name of a file")
    if path.exists() and not path.is_file():
        raise UserError(f"{flag} {path}: is a pipe or a device; give the name of a file")
    if path.exists() and not overwrite:
        raise UserError(f"{flag} {path}: exists already; add --overwrite to replace it, or give another name")


@contextmanager
def write_whole(path: str | Path) -> Iterator[BinaryIO]:
    """Write a file atomically: it appears, complete, when the block ends without an error.

    The content is on disk before the file gets its name, so a crash leaves either the old file or the new one. A process killed
    by ``kill -9`` leaves ``.NAME.writing``, which the next call for the same path writes anew. Several calls for the same path
    wait for each other.

    Raises:
        OSError: the folder cannot be written to, or the disk is full.
    """
    path = Path(os.path.realpath(path))  # a link stays, and the file that it names is replaced
    temporary = path.with_name(f".{path.name}.writing")
    handle = _open_alone(temporary)
    try:
        with open(handle, "wb", closefd=False) as stream:
            yield stream
            stream.flush()
            os.fsync(handle)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        unlock(handle)
    sync_folder(path.parent)


def _open_alone(path: Path) -> int:
    """Open an empty file for writing, locked if its file system has locks."""
    try:
        handle = lock(path, wait=True)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    os.ftruncate(handle, 0)
    return handle


@contextmanager
def write_errors(path: str | Path, flag: str = "--output") -> Iterator[None]:
    """Turn an OSError of the block into a UserError that names the flag, unless it is empty, and the file to write."""
    try:
        yield
    except BrokenPipeError:  # of standard output, whose reader has gone
        raise
    except OSError as error:
        raise UserError(f"{flag} {path}".strip() + f": cannot write it ({error.strerror or error})") from None


def sync_folder(folder: Path) -> None:
    """Write the directory entries of a folder to disk (fsync)."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_json(path: Path, remedy: str = "", kind: type = object) -> Any:
    """Read a JSON file that holds a ``kind``, such as a dict; UserError, which ends with ``remedy``, if it does not."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(content, kind):
            return content
        what = f"holds a {type(content).__name__}, not a {kind.__name__}"
    except OSError as error:
        what = f"cannot read it ({error.strerror or error})"
    except (ValueError, RecursionError) as error:
        what = f"not valid JSON ({error})"
    raise UserError("; ".join(filter(None, (f"{path}: {what}", remedy))))


def write_json(path: Path, content: Any, *, flag: str | None = None) -> None:
    """Write a JSON file atomically, paths as text. If it cannot be written, UserError names the flag; without one, OSError."""
    with write_errors(path, flag) if flag else nullcontext(), write_whole(path) as stream:
        text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False, default=os.fspath)
        stream.write((text + "\n").encode("utf-8", "backslashreplace"))  # a file name may have bytes that are not UTF-8


def hash_file(path: str | Path) -> str:
    """The SHA-256 of a file, in hexadecimal; of a ``dict.txt``, the vocabulary's hash. UserError if it is unreadable."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise UserError(f"{path}: is not a file but a pipe or folder; write its content to a file, and give that")
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"{path}: cannot read it ({error.strerror or error})") from None


def hash_files(paths: Sequence[Path]) -> dict[str, str]:
    """The SHA-256 of each file, by its name, or by its path if another file has the same name."""
    names = Counter(path.name for path in set(paths))
    return {path.name if names[path.name] == 1 else str(path): hash_file(path) for path in paths}


def versions(packages: Iterable[str] = PACKAGES) -> dict[str, str]:
    """Versions of Python, of this package, and of the installed ones of ``packages``, which influence results."""
    found = {"fairseq_clear": __version__, "python": platform.python_version()}
    for name in packages:
        for distribution in ("fairseq-fixed", "fairseq") if name == "fairseq" else (name,):
            with suppress(PackageNotFoundError):
                found.setdefault(name, version(distribution))
    return found
