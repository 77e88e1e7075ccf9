"""The lines of a data file in memory, with errors that name the file and the line."""

from pathlib import Path

from fairseq_clear.errors import UserError

__all__ = ["check_is_text", "read_columns", "read_text_lines"]

_BOM = b"\xef\xbb\xbf"
# first bytes -> what such a file is, and what to do with it
_BINARIES = {
    b"\xff\xfe": ("UTF-16", "convert it first: iconv -f utf-16 -t {encoding}"),
    b"\xfe\xff": ("UTF-16", "convert it first: iconv -f utf-16 -t {encoding}"),
    b"%PDF-": ("a PDF", "extract its text first: pdftotext FILE.pdf FILE.txt"),
    b"PK\x03\x04": ("a zip archive, as .docx and .odt files are", "unpack it, or save the document as plain text"),
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": ("an Office document (.doc, .xls, .ppt)", "save it as plain text"),
    b"\x1f\x8b": ("gzip-compressed", "unpack it with gunzip, or give it a name that ends in .gz"),
    b"\xfd7zXZ\0": ("xz-compressed", "unpack it with unxz, or give it a name that ends in .xz"),
    b"\x28\xb5\x2f\xfd": ("zstd-compressed", "unpack it first: zstd -d"),
    b"PAR1\x15": ("a Parquet table", "write its text column to a .txt or .jsonl file first"),
    b"\x89PNG": ("a PNG image", "give a text file"),
    b"\xff\xd8\xff": ("a JPEG image", "give a text file"),
}


def check_is_text(path: str | Path, start: bytes, encoding: str = "utf-8") -> None:
    """Check the first bytes of a file against those of well-known formats that are not text.

    Args:
        path: of the file, for the message.
        start: its first 8 bytes or more.
        encoding: that the text should have.

    Raises:
        UserError: naming the format and what to do.
    """
    for signature, (what, remedy) in _BINARIES.items():
        if start.startswith(signature):
            raise UserError(f"{path}:1: this is {what}; {remedy.format(encoding=encoding)}")


def read_text_lines(path: str | Path, encoding: str = "utf-8") -> list[str]:
    """Every line without its end, LF or CRLF; a byte order mark is dropped. Line i + 1 of the file is item i.

    Only LF ends a line: what else Python's ``splitlines`` takes for one (a form feed, U+2028) occurs within texts.

    Args:
        path: of the file.
        encoding: ``utf-8``, or ``latin-1`` where the data set is distributed so.

    Raises:
        UserError: a file that is missing or unreadable, of a format that is not text, or not of this encoding.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot read it ({error.strerror or error})") from None
    check_is_text(path, content, encoding)
    content = content.removeprefix(_BOM)
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{path}:{line}: byte 0x{content[error.start]:02x} is not {encoding.upper()}; convert the file first, "
            f"e.g. iconv -f latin1 -t {encoding}"
        ) from None
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def read_columns(path: str | Path, line: str, number: int, columns: tuple[int, ...]) -> tuple[str, ...]:
    """The tab-separated columns (from 0) of a line, stripped; quotes are characters like others.

    Args:
        path: of the file, for the message.
        line: without its end.
        number: of the line, from 1.
        columns: to return, in this order.

    Raises:
        UserError: the line has fewer columns.
    """
    fields = line.split("\t")
    if len(fields) <= max(columns):
        raise UserError(
            f"{path}:{number}: {len(fields)} tab-separated columns, but column {max(columns) + 1} is needed; "
            "is this file cut off, or of another format?"
        )
    return tuple(fields[column].strip() for column in columns)
