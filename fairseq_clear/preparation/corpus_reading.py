"""Reads input files as canonical text: one sentence per line, one blank line between documents.

The stages exchange rows, not whole documents, so memory does not grow with the length of a document. A row is a line of text
with its paraphrases; an empty text is a blank line inside a document (the end of a paragraph), and None separates documents.
"""

import logging
import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby, islice, zip_longest
from pathlib import Path

from fairseq_clear.errors import UserError
from fairseq_clear.files import (
    CorpusFile,
    check_fields,
    corpus_file,
    corpus_files,
    read_lines,
    read_whole_lines,
    record_texts,
)
from fairseq_clear.libraries import import_library
from fairseq_clear.preparation.prepare_settings import DocumentSettings, PrepareSettings

logger = logging.getLogger(__name__)

Row = tuple[str, ...]  # a sentence and its paraphrases; empty between two documents
Progress = Callable[[int], object]

# Control, format and separator characters: for readers and tokenizers a line of these is blank. Which characters are
# unassigned depends on the version of Python.
INVISIBLE_CATEGORIES = frozenset({"Cc", "Cf", "Zs", "Zl", "Zp"})
WRAPPED_SHARE, CAPITAL_SHARE, FEW_LINES = 0.3, 0.1, 20  # of hard-wrapped text; see warn_if_wrapped
LANGUAGE = re.compile(r"[a-z]{2,3}(-[a-z]+)*")  # Wikipedia's code of a language
MAX_PARAGRAPH_LINES = 10_000  # more lines without a blank line are joined in portions, to bound memory


@dataclass(frozen=True)
class TextSource:
    """Input files and, by name, the paraphrase files that are aligned with them line by line."""

    files: list[CorpusFile]
    settings: DocumentSettings
    paraphrases: dict[str, list[CorpusFile]] = field(default_factory=dict)

    @property
    def paths(self) -> list[Path]:
        """All files to read."""
        return [file.path for files in (self.files, *self.paraphrases.values()) for file in files]

    def rows(self, progress: Progress | None = None) -> Iterator[Row]:
        """Yield each sentence with its paraphrases, and an empty row between two documents.

        ``progress`` is called with the number of bytes read from disk since its last call.

        Raises:
            UserError: an error in a file, or aligned files have different numbers of lines.
        """
        pattern = document_pattern(self.settings.document_start)

        def read() -> Iterator[Row | None]:
            for file, *others in zip(self.files, *self.paraphrases.values(), strict=True):
                if file.is_jsonl:
                    yield from self._records(file, progress)
                elif others:
                    yield from text_rows(aligned_lines([file, *others], progress), pattern)
                else:
                    lines = ((line,) for _, line in read_lines(file, progress))
                    yield from self._split(text_rows(lines, pattern))
                yield None

        return canonical_rows(read())

    def _records(self, file: CorpusFile, progress: Progress | None) -> Iterator[Row | None]:
        """Yield the title, which is one line, and the text of each record of a JSON-lines file."""
        names = [self.settings.text_field, *filter(None, [self.settings.title_field])]
        for number, line in read_lines(file, progress):
            if line.strip():
                texts = record_texts(line, names, file.path, number, optional=names[1:])
                text, *titles = (text.replace("\0", " ") for text in texts)
                yield from ((" ".join(title.split()),) for title in titles)
                yield from self._split((line.strip(),) for line in re.split(r"\r\n|\r|\n", text))
                yield None

    def _split(self, rows: Iterable[Row | None]) -> Iterable[Row | None]:
        mode, language = self.settings.split_sentences, self.settings.language
        return rows if mode is None else split_rows(rows, mode, language)


def find_sources(settings: PrepareSettings) -> tuple[TextSource, TextSource | None]:
    """Return the corpus, and the validation text if there is one; UserError for an error found without reading the files."""
    if not settings.inputs:
        raise UserError("no input; give .txt or .jsonl files, or folders of them")
    files, valid_files = corpus_files(settings.inputs), corpus_files(settings.valid)
    for file in valid_files:
        if any(os.path.samefile(file.path, other.path) for other in files):
            raise UserError(f"{file.path}: is both input and --valid; validation text must not be trained on")
    check_fields([*files, *valid_files], {"--text-field": settings.text_field, "--title-field": settings.title_field})
    document_pattern(settings.document_start)
    if settings.split_sentences is not None:
        import_library("sentencex", "split")
        if not LANGUAGE.fullmatch(settings.language):  # sentencex would use the rules of English
            raise UserError(f"--language {settings.language}: give a lower-case code, such as en, de or zh")
    source = TextSource(files, settings, _aligned_files(settings.paraphrase, files))
    return source, TextSource(valid_files, settings) if valid_files else None


def _aligned_files(pairs: Sequence[tuple[str, Path]], inputs: Sequence[CorpusFile]) -> dict[str, list[CorpusFile]]:
    """Return the files of each name, one per input, in order."""
    found: dict[str, list[CorpusFile]] = {}
    for name, path in pairs:
        found.setdefault(name, []).append(corpus_file(path))
    for file in chain(inputs, *found.values()):
        if found and file.is_jsonl:
            raise UserError(f"{file.path}: --paraphrase aligns lines of .txt files, not records; convert it to text")
    for name, files in found.items():
        if len(files) != len(inputs):
            raise UserError(
                f"--paraphrase: {len(files)} files for {name}, but {len(inputs)} inputs; give {name}=FILE for each, in order"
            )
    return found


def document_pattern(text: str | None) -> re.Pattern[str] | None:
    """Compile ``--document-start``; the pattern of ``file`` matches no line. UserError if it is not a regular expression."""
    try:
        return None if text is None else re.compile("(?!)" if text == "file" else text)
    except re.error as error:
        raise UserError(f"--document-start {text}: not a regular expression ({error})") from None


def text_rows(lines: Iterable[Row], document_start: re.Pattern[str] | None) -> Iterator[Row | None]:
    """Yield stripped lines, each with its paraphrases, which may be blank; None between documents.

    Blank lines separate documents, or lines that match ``document_start`` begin them.
    """
    for text, *others in lines:
        if document_start is not None and document_start.search(text):
            yield None
        if is_visible(text) or document_start is not None:
            yield text.strip(), *(other.strip() if is_visible(other) else "" for other in others)
        else:
            yield None


def aligned_lines(files: Sequence[CorpusFile], progress: Progress | None = None) -> Iterator[Row]:
    """Yield the lines of a text and its paraphrases, in step. Only LF and CRLF end a line; a CR within it becomes a space."""
    readers = [(line.replace("\r", " ") for _, line in read_whole_lines(file, progress)) for file in files]
    for number, row in enumerate(zip_longest(*readers)):
        if None in row:
            short, long = (next(n for n, line in enumerate(row) if (line is None) == ends) for ends in (True, False))
            raise UserError(
                f"{files[short].path}: ends after line {number}, and {files[long].path} does not; line n of one must say "
                "what line n of the other says"
            )
        yield row


def canonical_rows(rows: Iterable[Row | None]) -> Iterator[Row]:
    """Yield the rows whose first text is visible, and an empty row between two documents that have such rows."""
    visible = (row for row in rows if row is None or is_visible(row[0]))
    documents = (document for is_text, document in groupby(visible, key=bool) if is_text)
    for number, document in enumerate(documents):
        if number:
            yield ()
        yield from filter(None, document)


def is_visible(text: str) -> bool:
    """Whether a line has a visible character; white space and invisible characters have no tokens."""
    return any(unicodedata.category(character) not in INVISIBLE_CATEGORIES for character in text)


def split_rows(rows: Iterable[Row | None], mode: str, language: str) -> Iterator[Row | None]:
    """Split texts without paraphrases into sentences with ``sentencex`` (Wikimedia's rules for 300 languages, such as ``en``).

    ``mode`` is ``lines`` to split each line, or ``paragraphs`` to first join hard-wrapped lines up to a blank line.
    """
    sentencex = import_library("sentencex", "split")
    for row in join_paragraphs(rows) if mode == "paragraphs" else rows:
        if row and row[0]:
            # a line break inside a sentence would end it when it is written
            sentences = (" ".join(sentence.strip().splitlines()) for sentence in sentencex.segment(language, row[0]))
            yield from ((sentence,) for sentence in sentences if sentence)
        else:
            yield row


def join_paragraphs(rows: Iterable[Row | None]) -> Iterator[Row | None]:
    """Join consecutive lines with spaces, up to a blank line, a boundary of documents, or MAX_PARAGRAPH_LINES."""
    for is_text, group in groupby(rows, key=lambda row: bool(row and row[0])):
        if is_text:
            while lines := [row[0] for row in islice(group, MAX_PARAGRAPH_LINES) if row]:
                yield (" ".join(lines),)
        else:
            yield from group


def warn_if_wrapped(rows: Iterable[Row]) -> Iterator[Row]:
    """Pass rows on. At the end, warn if many lines seem to go on in the next one, as in hard-wrapped text.

    A line goes on if it ends in a letter, digit or comma, and the next one begins with a small letter. Texts without capital
    letters do not count, because there a small letter begins a sentence.
    """
    lines = wrapped = capitals = 0
    before = ""
    for row in rows:
        text = row[0] if row else ""
        if before and text:
            lines += 1
            capitals += text[0].isupper()
            wrapped += text[0].islower() and (before[-1].isalnum() or before[-1] == ",")
        before = text
        yield row
    if lines >= FEW_LINES and wrapped > WRAPPED_SHARE * lines and capitals > CAPITAL_SHARE * lines:
        logger.warning(
            "%d %% of the lines go on in the next line, but every line ends a sentence; --split-sentences paragraphs joins the "
            "lines of a paragraph and splits it into sentences",
            round(100 * wrapped / lines),
        )
