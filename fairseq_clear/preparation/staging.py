"""Writes canonical text to disk, then divides it among train (by shard), valid and the sample for the tokenizer.

A text and its paraphrases are parallel files: their lines n belong together, and all files are read and written in step. The
second pass is needed because the choice of held-out documents depends on their number. Both passes stream.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from fairseq_clear.errors import UserError
from fairseq_clear.preparation.corpus_reading import Row
from fairseq_clear.preparation.prepare_report import DocumentLengths
from fairseq_clear.preparation.prepare_settings import ORIGINAL

BUFFER_BYTES = 1 << 20

Lines = tuple[bytes, ...]  # a sentence and its paraphrases, each with its line end


@dataclass(frozen=True)
class Staged:
    """Canonical text on disk.

    Attributes:
        paths: name -> file, the text itself first; all files have the same number of lines.
        lengths: lengths of the documents.
        size: bytes of all files.
    """

    paths: dict[str, Path]
    lengths: DocumentLengths
    size: int

    def rows(self) -> Iterator[Lines]:
        """Yield the lines in step; an empty tuple between two documents."""
        with ExitStack() as stack:
            streams = [stack.enter_context(open(path, "rb", BUFFER_BYTES)) for path in self.paths.values()]
            for row in zip(*streams, strict=True):
                yield () if row[0] == b"\n" else row

    def remove(self) -> None:
        """Delete the files."""
        for path in self.paths.values():
            path.unlink()


def stage_rows(rows: Iterable[Row], folder: Path, names: Sequence[str], what: str) -> Staged:
    """Write rows of texts to ``folder/NAME.txt``.

    Args:
        rows: from ``TextSource.rows``.
        folder: folder to create.
        names: names of the texts in a row.
        what: the inputs, for the message.

    Raises:
        UserError: there is no sentence.
    """
    folder.mkdir()
    paths = {name: folder / f"{name}.txt" for name in names}
    blank = ("",) * len(names)
    lengths = DocumentLengths()
    length = 0
    with ExitStack() as stack:
        streams = [stack.enter_context(open(path, "wb", BUFFER_BYTES)) for path in paths.values()]
        for row in rows:
            if row:
                length += 1
            else:
                lengths[length] += 1
                length = 0
            for stream, text in zip(streams, row or blank, strict=True):
                stream.write(text.encode() + b"\n")
        size = sum(stream.tell() for stream in streams)
    if not length:
        raise UserError(f"{what}: holds no sentence, only blank lines or nothing at all")
    lengths[length] += 1
    return Staged(paths, lengths, size)


def sample_sentences(staged: Staged, count: int, folder: Path, rng: np.random.Generator) -> Staged:
    """Stage exactly ``count`` sentences, drawn uniformly; documents without a drawn sentence are dropped.

    Raises:
        UserError: there are fewer sentences.
    """
    sentences = staged.lengths.sentences
    if count > sentences:
        raise UserError(f"--sample {count}: the input has {sentences} sentences; give a smaller number, or more text")

    def drawn() -> Iterator[Row]:
        choices = choose_exactly(count, sentences, rng)
        has_text = is_border = False
        for row in staged.rows():
            if not row:
                is_border = has_text
            elif next(choices):
                if is_border:
                    yield ()
                has_text, is_border = True, False
                yield tuple(line[:-1].decode() for line in row)

    return stage_rows(drawn(), folder, list(staged.paths), "the sample")


@dataclass
class TextParts:
    """One text of a split, in files of bounded size; it is hashed and counted while it is written.

    Args:
        folder: folder of the parts, created with the first one.
        part_bytes: a part ends after the line with which it reaches this size, even within a document.
    """

    folder: Path
    part_bytes: int
    lengths: DocumentLengths = field(default_factory=DocumentLengths)
    sentences: int = 0
    blank: int = 0
    size: int = 0
    parts: list[Path] = field(default_factory=list)
    digest: Any = field(default_factory=hashlib.sha256)
    _length: int = 0  # sentences of the current document
    _stream: IO[bytes] | None = None

    def start_document(self) -> None:
        """Begin a document: write a blank line, unless it is the first."""
        if self.size:
            self._write(b"\n")
        self._end_document()

    def add(self, line: bytes) -> None:
        """Add a sentence with its line end; a paraphrase may be blank."""
        is_blank = line == b"\n"
        self.sentences += not is_blank
        self.blank += is_blank
        self._length += 1
        self._write(line)

    def _write(self, line: bytes) -> None:
        if self._stream is None or self._stream.tell() >= self.part_bytes:
            self._close_part()
            self.folder.mkdir(parents=True, exist_ok=True)
            self.parts.append(self.folder / f"{len(self.parts):06d}.txt")
            self._stream = open(self.parts[-1], "wb", BUFFER_BYTES)  # noqa: SIM115  # closed by close()
        self._stream.write(line)
        self.digest.update(line)
        self.size += len(line)

    def close(self) -> None:
        """End the document and close the file."""
        self._end_document()
        self._close_part()

    def _end_document(self) -> None:
        if self._length:
            self.lengths[self._length] += 1
        self._length = 0

    def _close_part(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None


class SplitParts:
    """The text of a split and its paraphrases, written in step.

    Args:
        folder: folder of the parts.
        part_bytes: size of a part.
        names: names of the texts, the text itself first.
    """

    def __init__(self, folder: Path, part_bytes: int, names: Iterable[str] = (ORIGINAL,)) -> None:
        self.texts = {name: TextParts(folder / name, part_bytes) for name in names}
        self.original = self.texts[ORIGINAL]

    def start_document(self) -> None:
        """Begin a document in every text."""
        for parts in self.texts.values():
            parts.start_document()

    def add(self, row: Lines) -> None:
        """Add a sentence and its paraphrases."""
        for parts, line in zip(self.texts.values(), row, strict=True):
            parts.add(line)

    def close(self) -> None:
        """Close the files."""
        for parts in self.texts.values():
            parts.close()


def choose_exactly(chosen: int, total: int, rng: np.random.Generator) -> Iterator[bool]:
    """Yield for each of ``total`` items whether it is one of ``chosen`` uniformly drawn ones.

    Selection sampling (Knuth, TAOCP 2, algorithm 3.4.2 S): one pass, constant memory.
    """
    left = chosen
    for index in range(total):
        take = rng.random() * (total - index) < left
        left -= take
        yield bool(take)


def held_out_documents(documents: int, share: float) -> int:
    """Return the number of documents in a share: rounded, but at least one and never all.

    Raises:
        UserError: there is only one document.
    """
    if documents < 2:
        raise UserError(
            "--valid-share: the corpus is a single document, which cannot be shared out; give --valid FILE, or say where "
            "documents start, e.g. --document-start . for one document per line"
        )
    return min(max(round(share * documents), 1), documents - 1)


def deal_out(
    staged: Staged, train: list[SplitParts], valid: SplitParts | None, held_out: Iterable[bool], sample: "Sample | None"
) -> None:
    """Write each staged document, with its paraphrases, to ``valid`` if ``held_out`` is True for it, else to a training shard.

    Args:
        staged: the corpus.
        train: one target per shard; the first one with the fewest bytes gets the next document.
        valid: target of held-out documents; None if there are none.
        held_out: a bool for each document, in order.
        sample: receives the training lines too.
    """
    choices = iter(held_out)
    with ExitStack() as stack:
        for written in (*train, valid, sample):
            if written is not None:
                stack.callback(written.close)
        target: SplitParts | None = None
        for row in staged.rows():
            if not row:
                target = None
                continue
            if target is None:
                target = valid if next(choices) else min(train, key=lambda parts: parts.original.size)
                assert target is not None
                target.start_document()
            target.add(row)
            if sample is not None and target is not valid:
                sample.add(row)


class Sample:
    """A uniform sample of lines of about ``budget`` bytes, written to a file for the trainer of the tokenizer.

    Args:
        path: the file.
        corpus_bytes: size of the corpus; if it is within the budget, all lines are taken.
        budget: approximate size of the sample in bytes.
        rng: draws for each line whether it is in the sample.
    """

    def __init__(self, path: Path, corpus_bytes: int, budget: float, rng: np.random.Generator) -> None:
        self.path = path
        self.share = min(1.0, budget / max(corpus_bytes, 1))
        self._rng = rng
        self._stream = open(path, "wb", BUFFER_BYTES)  # noqa: SIM115  # closed by close()

    def add(self, row: Lines) -> None:
        """Add each text of a row at random, except blank ones."""
        for line in row:
            if line != b"\n" and (self.share >= 1.0 or self._rng.random() < self.share):
                self._stream.write(line)

    def close(self) -> None:
        """Close the file."""
        self._stream.close()
