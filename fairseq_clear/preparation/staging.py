"""Writes canonical text to disk, then divides it among train (by shard), valid and the sample for the tokenizer.

A text and its paraphrases are parallel files: their lines n belong together, and all files are read and written in step. The
second pass is needed because the choice of held-out documents depends on their number. Both passes stream.
"""

import hashlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import accumulate, groupby, repeat
from pathlib import Path
from typing import IO, Any

import numpy as np

from fairseq_clear.errors import UserError
from fairseq_clear.preparation.corpus_reading import Row, canonical_rows
from fairseq_clear.preparation.prepare_settings import ORIGINAL

BUFFER_BYTES = 1 << 20

Lines = tuple[bytes, ...]  # a sentence and its paraphrases, each with its line end


class DocumentLengths(Counter[int]):
    """Counts documents by their length in sentences; memory only grows with the number of distinct lengths."""

    @property
    def documents(self) -> int:
        """Number of documents."""
        return self.total()

    @property
    def sentences(self) -> int:
        """Number of sentences in all documents."""
        return sum(length * count for length, count in self.items())

    @property
    def median(self) -> float:
        """Median number of sentences of a document; 0 without documents."""
        if not self:
            return 0
        lengths = sorted(self)
        ends = list(accumulate(self[length] for length in lengths))
        middle = ((self.documents - 1) // 2, self.documents // 2)
        return sum(lengths[bisect_right(ends, rank)] for rank in middle) / 2

    def summary(self) -> str:
        """Describe both counts and the median."""
        return f"{self.documents:,} documents, {self.sentences:,} sentences, median {self.median:g} a document"


@dataclass
class SplitCounts:
    """Sizes of a text of a split.

    ``tokens`` counts all ids: pieces, and a ``</s>`` per line, including blank lines. Only paraphrases have ``blank``
    sentences, for which training uses the original.
    """

    lengths: DocumentLengths = field(default_factory=DocumentLengths)
    sentences: int = 0
    blank: int = 0
    tokens: int = 0
    unknown: int = 0

    def as_json(self, name: str = ORIGINAL) -> dict[str, Any]:
        """The counts of a split, or of a paraphrase of it, for ``clear.json``."""
        both = {"tokens": self.tokens, "unknown": self.unknown}
        if name != ORIGINAL:
            return {"sentences": self.sentences, "blank": self.blank, **both}
        median = self.lengths.median
        return {"documents": self.lengths.documents, "sentences": self.sentences, "median_sentences": median, **both}


def sum_counts(counts: Sequence[SplitCounts]) -> SplitCounts:
    """The counts over several shards or splits."""
    total = SplitCounts()
    for one in counts:
        total.lengths.update(one.lengths)
        for name in ("sentences", "blank", "tokens", "unknown"):
            setattr(total, name, getattr(total, name) + getattr(one, name))
    return total


@dataclass(frozen=True)
class Staged:
    """Canonical text on disk."""

    paths: dict[str, Path]  # name -> file, the text itself first; all files have the same number of lines
    lengths: DocumentLengths

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(path.stat().st_size for path in self.paths.values())

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
    """Write rows of texts, as ``TextSource`` yields them, to a new folder as ``NAME.txt``.

    Raises:
        UserError: there is no sentence; the message begins with ``what``.
    """
    folder.mkdir()
    paths = {name: folder / f"{name}.txt" for name in names}
    lengths = DocumentLengths()
    with ExitStack() as stack:
        streams = [stack.enter_context(open(path, "wb", BUFFER_BYTES)) for path in paths.values()]
        for is_text, group in groupby(rows, key=bool):
            length = 0
            for row in group:
                length += 1
                for stream, text in zip(streams, row or repeat(""), strict=is_text):
                    stream.write(text.encode() + b"\n")
            if is_text:
                lengths[length] += 1
    if not lengths:
        raise UserError(f"{what}: holds no sentence, only blank lines or nothing at all")
    return Staged(paths, lengths)


def sample_sentences(staged: Staged, count: int, folder: Path, rng: np.random.Generator) -> Staged:
    """Stage exactly ``count`` sentences, drawn uniformly; documents without a drawn sentence are dropped.

    Raises:
        UserError: there are fewer sentences.
    """
    sentences = staged.lengths.sentences
    if count > sentences:
        raise UserError(f"--sample {count}: the input has {sentences} sentences; give a smaller number, or more text")
    choices = choose_exactly(count, sentences, rng)
    drawn = (row for row in staged.rows() if not row or next(choices))
    rows = canonical_rows(tuple(line[:-1].decode() for line in row) or None for row in drawn)
    return stage_rows(rows, folder, list(staged.paths), "the sample")


@dataclass
class TextParts:
    """One text of a split, in files of bounded size; it is hashed and counted while it is written.

    A part ends after the line with which it reaches ``part_bytes``, even within a document.

    Attributes:
        counts: sizes of the text, without tokens and documents.
        size: bytes of all parts.
    """

    folder: Path
    part_bytes: int
    counts: SplitCounts = field(default_factory=SplitCounts)
    size: int = 0
    parts: list[Path] = field(default_factory=list)
    digest: Any = field(default_factory=hashlib.sha256)
    _stream: IO[bytes] | None = None

    def write(self, line: bytes) -> None:
        """Add a line with its line end."""
        if self._stream is None or self._stream.tell() >= self.part_bytes:
            self.close()
            self.folder.mkdir(parents=True, exist_ok=True)
            self.parts.append(self.folder / f"{len(self.parts):06d}.txt")
            self._stream = open(self.parts[-1], "wb", BUFFER_BYTES)  # noqa: SIM115  # closed by close()
        self._stream.write(line)
        self.digest.update(line)
        self.size += len(line)

    def close(self) -> None:
        """Close the current part."""
        if self._stream is not None:
            self._stream.close()


class SplitParts:
    """The text of a split and its paraphrases (``names``, the text itself first), written in step."""

    def __init__(self, folder: Path, part_bytes: int, names: Iterable[str] = (ORIGINAL,)) -> None:
        self.texts = {name: TextParts(folder / name, part_bytes) for name in names}
        self.original = self.texts[ORIGINAL]

    def add_document(self, rows: Iterable[Lines]) -> None:
        """Add a document after a blank line; the sentences of paraphrases may be blank."""
        length = 0
        for row in rows:
            for parts, line in zip(self.texts.values(), row, strict=True):
                if parts.size and not length:
                    parts.write(b"\n")
                parts.write(line)
                parts.counts.sentences += line != b"\n"
                parts.counts.blank += line == b"\n"
            length += 1
        for parts in self.texts.values():
            parts.counts.lengths[length] += 1

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
    staged: Staged,
    train: list[SplitParts],
    valid: SplitParts | None,
    held_out: Iterable[bool],
    sample: Callable[[Lines], object] | None = None,
) -> None:
    """Write each staged document, with its paraphrases, to ``valid`` if ``held_out`` is True for it, else to a training shard.

    Args:
        train: one target per shard; the first one with the fewest bytes gets the next document.
        valid: target of held-out documents; None if there are none.
        held_out: a bool for each document, in order.
        sample: called with the training rows too.
    """
    choices = iter(held_out)

    def sampled(rows: Iterable[Lines]) -> Iterator[Lines]:
        for row in rows:
            if sample is not None:
                sample(row)
            yield row

    with ExitStack() as stack:
        for split in (*train, valid):
            if split is not None:
                stack.callback(split.close)
        for is_text, rows in groupby(staged.rows(), key=bool):
            if not is_text:
                continue
            if next(choices):
                assert valid is not None
                valid.add_document(rows)
            else:
                min(train, key=lambda parts: parts.original.size).add_document(sampled(rows))


@contextmanager
def line_sample(path: Path, share: float, rng: np.random.Generator) -> Iterator[Callable[[Lines], None]]:
    """Write a uniform sample of lines to a file, for the trainer of the tokenizer.

    Yields:
        A function that adds each text of a row, except blank ones, with the probability ``share``.
    """
    with open(path, "wb", BUFFER_BYTES) as stream:

        def add(row: Lines) -> None:
            for line in row:
                if line != b"\n" and (share >= 1.0 or rng.random() < share):
                    stream.write(line)

        yield add
