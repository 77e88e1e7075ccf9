"""Any input to canonical text: one sentence a line, one blank line between documents.

Between the stages flow *units*, never whole documents, so memory does not grow with their length: a string is a line of
text, the empty string a blank line inside a document (a paragraph's end), ``None`` a border between documents.
"""

import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from fairseq_clear.errors import UserError
from fairseq_clear.files import CorpusFile, read_lines
from fairseq_clear.preparation.sentences import split_units
from fairseq_clear.preparation.settings import PrepareSettings

Unit = str | None
# control, format, unassigned and separator characters: a line of these alone is blank to a reader and to tokenizers
INVISIBLE_CATEGORIES = frozenset({"Cc", "Cf", "Cn", "Zs", "Zl", "Zp"})
WHOLE_FILES = "file"  # of --document-start
NO_LINE = r"(?!)"
HAS_WORD = re.compile(r"\w")


def corpus_lines(
    files: Iterable[CorpusFile], settings: PrepareSettings, progress: Callable[[int], object] | None = None
) -> Iterator[str]:
    """Yield the canonical lines of several files; a file's end ends a document.

    Raises:
        UserError: whatever is wrong with a file, naming file and line.
    """
    pattern = document_pattern(settings.document_start)

    def units() -> Iterator[Unit]:
        for file in files:
            if file.is_jsonl:
                yield from json_units(file, settings.text_field, progress)
            else:
                yield from text_units(file, pattern, progress)
            yield None

    if settings.split_sentences is None:
        return canonical_lines(units())
    return canonical_lines(split_units(units(), settings.split_sentences, settings.language))


def document_pattern(text: str | None) -> re.Pattern[str] | None:
    """Compile ``--document-start``, with a pattern that matches no line for ``file``; UserError if it is no regular
    expression.
    """
    try:
        return None if text is None else re.compile(NO_LINE if text == WHOLE_FILES else text)
    except re.error as error:
        raise UserError(f"--document-start {text}: not a regular expression ({error})") from None


def text_units(
    file: CorpusFile, document_start: re.Pattern[str] | None, progress: Callable[[int], object] | None = None
) -> Iterator[Unit]:
    """Yield the units of a text file: blank lines separate documents, or the lines that ``document_start`` finds."""
    for _, line in read_lines(file, progress):
        if document_start is not None and document_start.search(line):
            yield None
        text = line.strip()
        yield text if text or document_start is not None else None


def json_units(file: CorpusFile, field: str, progress: Callable[[int], object] | None = None) -> Iterator[Unit]:
    """Yield the units of a JSON-lines file: a record is a document, its line breaks are sentence ends.

    Raises:
        UserError: a line that is no JSON object with a string under ``field``.
    """
    for number, line in read_lines(file, progress):
        if not line.strip():
            continue
        text = _record_text(line, field, file.path, number)
        for sentence in re.split(r"\r\n|\r|\n", text.replace("\0", " ")):
            yield sentence.strip()
        yield None


def _record_text(line: str, field: str, path: Path, number: int) -> str:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}:{number}: not JSON ({error}); a .jsonl file has one JSON object a line") from None
    if not isinstance(record, dict):
        raise UserError(f'{path}:{number}: a {type(record).__name__}, not an object such as {{"{field}": "..."}}')
    if field not in record:
        found = ", ".join(list(record)[:8]) or "none"
        raise UserError(f"{path}:{number}: no field {field!r} (fields: {found}); name the right one with --text-field")
    text = record[field]
    if not isinstance(text, str):
        raise UserError(f"{path}:{number}: field {field!r} is {type(text).__name__}, not text; mend or drop the record")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise UserError(f"{path}:{number}: an unpaired surrogate (\\ud800 to \\udfff) in {field!r}; drop it") from None
    return text


def canonical_lines(units: Iterable[Unit]) -> Iterator[str]:
    """Yield stripped non-blank lines, and one empty string between two documents that have any."""
    seen_text, border = False, False
    for unit in units:
        if unit is None:
            border = seen_text
        elif is_visible(unit):
            if border:
                yield ""
                border = False
            seen_text = True
            yield unit.strip()


def is_visible(text: str) -> bool:
    """Whether a line holds anything but white space and invisible characters (zero-width ones have no token)."""
    if HAS_WORD.search(text):
        return True
    return any(unicodedata.category(character) not in INVISIBLE_CATEGORIES for character in text)
