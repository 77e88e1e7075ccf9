"""Canonical text on disk: staged once, then dealt out to train (by shard), valid and the tokenizer's sample.

Two passes, because how many documents there are decides which of them are held out; both stream.
"""

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from fairseq_clear.errors import UserError
from fairseq_clear.preparation.reports import DocumentLengths

BUFFER_BYTES = 1 << 20
# Between a text and its paraphrases, which share a line until they are written; `reading` lets no NUL through
SEPARATOR = b"\0"


@dataclass(frozen=True)
class Staged:
    """A canonical text file; ``size`` is in bytes."""

    path: Path
    lengths: DocumentLengths
    size: int


def stage_lines(lines: Iterable[str], path: Path, what: str) -> Staged:
    """Write canonical lines to ``path``.

    Raises:
        UserError: there is no sentence at all in ``what``.
    """
    lengths = DocumentLengths()
    length = 0
    with open(path, "wb", BUFFER_BYTES) as stream:
        for line in lines:
            if line:
                length += 1
            else:
                lengths[length] += 1
                length = 0
            stream.write(line.encode("utf-8") + b"\n")
        size = stream.tell()
    if not length:
        raise UserError(f"{what}: no sentence in it; only blank lines or nothing at all")
    lengths[length] += 1
    return Staged(path, lengths, size)


@dataclass
class TextParts:
    """Text of one split in files of bounded size, which together are the split; hashed and counted as it is written.

    Args:
        folder: where the parts go; made when the first one is.
        part_bytes: a part ends with the first line that reaches this size, mid-document if need be.
        paraphrases: by name, where the texts go that are aligned to this one; ``size`` and ``digest`` are without them.
    """

    folder: Path
    part_bytes: int
    paraphrases: dict[str, "TextParts"] = field(default_factory=dict)
    lengths: DocumentLengths = field(default_factory=DocumentLengths)
    sentences: int = 0
    blank: int = 0
    size: int = 0
    parts: list[Path] = field(default_factory=list)
    digest: Any = field(default_factory=hashlib.sha256)
    _length: int = 0  # of the document that is being written
    _stream: IO[bytes] | None = None

    def start_document(self) -> None:
        """Begin a document: a blank line, unless it is the first."""
        if self.size:
            self._write(b"\n")
        self._end_document()
        for parts in self.paraphrases.values():
            parts.start_document()

    def add(self, line: bytes) -> None:
        """Add a sentence with its line end, or with its paraphrases, each after SEPARATOR; those may be blank."""
        text, *others = line[:-1].split(SEPARATOR) if self.paraphrases else [line[:-1]]
        self.sentences += bool(text)
        self.blank += not text
        self._length += 1
        self._write(text + b"\n")
        for parts, other in zip(self.paraphrases.values(), others, strict=True):
            parts.add(other + b"\n")

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
        """End the document and close the parts being written."""
        self._end_document()
        for parts in self.paraphrases.values():
            parts.close()
        self._close_part()

    def _end_document(self) -> None:
        if self._length:
            self.lengths[self._length] += 1
        self._length = 0

    def _close_part(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None


def choose_exactly(chosen: int, total: int, rng: np.random.Generator) -> Iterator[bool]:
    """Yield for each of ``total`` items whether it is among exactly ``chosen`` uniformly drawn ones.

    Selection sampling, Knuth, TAOCP 2, algorithm 3.4.2 S: one pass, constant memory.
    """
    left = chosen
    for index in range(total):
        take = rng.random() * (total - index) < left
        left -= take
        yield bool(take)


def sample_sentences(staged: Staged, count: int, path: Path, rng: np.random.Generator) -> Staged:
    """Stage exactly ``count`` sentences, uniformly drawn, at ``path``; documents of which none is drawn vanish.

    Raises:
        UserError: there are fewer.
    """
    sentences = staged.lengths.sentences
    if count > sentences:
        raise UserError(f"--sample {count}: the input has {sentences} sentences; ask for fewer, or give more text")

    def lines() -> Iterator[str]:
        choices = choose_exactly(count, sentences, rng)
        drawn = is_border = False
        with open(staged.path, encoding="utf-8", newline="\n", buffering=BUFFER_BYTES) as stream:
            for line in stream:
                if line == "\n":
                    is_border = drawn
                elif next(choices):
                    if is_border:
                        yield ""
                    drawn, is_border = True, False
                    yield line.removesuffix("\n")

    return stage_lines(lines(), path, str(staged.path))


def held_out_documents(documents: int, share: float) -> int:
    """Return how many documents a share is: the nearest number, but never none and never all.

    Raises:
        UserError: there is only one document.
    """
    if documents < 2:
        raise UserError(
            "--valid-share: the corpus is a single document, which cannot be shared out; give --valid FILE, or say where "
            "documents start, e.g. --document-start . for a document a line"
        )
    return min(max(round(share * documents), 1), documents - 1)


def deal_out(
    staged: Staged, train: list[TextParts], valid: TextParts | None, held_out: Iterable[bool], sample: "Sample | None"
) -> None:
    """Send each staged document to ``valid`` where ``held_out`` says so, else to the smallest training shard.

    Args:
        staged: the corpus.
        train: one target a shard; the one with the fewest bytes so far is next, the earlier of equals.
        valid: where held-out documents go; None if ``held_out`` never says so.
        held_out: a bool for each document, in order.
        sample: receives the training lines too.

    A document's paraphrases go where it goes.
    """
    choices = iter(held_out)
    with open(staged.path, "rb", BUFFER_BYTES) as stream, ExitStack() as stack:
        for written in (*train, valid, sample):
            if written is not None:
                stack.callback(written.close)
        target: TextParts | None = None
        for line in stream:
            if line == b"\n":
                target = None
                continue
            if target is None:
                target = valid if next(choices) else min(train, key=lambda parts: parts.size)
                assert target is not None
                target.start_document()
            target.add(line)
            if sample is not None and target is not valid:
                sample.add(line)


class Sample:
    """A uniform sample of lines of about ``budget`` bytes, written to a file for the tokenizer's trainer.

    Args:
        path: the file.
        corpus_bytes: size of the corpus; up to the budget all of it is taken, without a draw.
        budget: bytes aimed at.
        rng: decides line by line.
    """

    def __init__(self, path: Path, corpus_bytes: int, budget: float, rng: np.random.Generator) -> None:
        self.path = path
        self.share = min(1.0, budget / max(corpus_bytes, 1))
        self.lines = 0
        self._rng = rng
        self._stream = open(path, "wb", BUFFER_BYTES)  # noqa: SIM115  # closed by close()

    def add(self, line: bytes) -> None:
        """Take the line or leave it; of a line with paraphrases, each text by itself, blank ones never."""
        for text in line.removesuffix(b"\n").split(SEPARATOR):
            if text and (self.share >= 1.0 or self._rng.random() < self.share):
                self._stream.write(text + b"\n")
                self.lines += 1

    def close(self) -> None:
        """Close the file."""
        self._stream.close()
