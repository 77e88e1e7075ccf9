"""Writes canonical text to disk, and chooses the documents to hold out and the lines that train the tokenizer.

A text and its paraphrases are parallel files: their lines n belong together, and all files are read and written in step. Text
is staged because the choice of documents depends on their number.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby, repeat
from pathlib import Path

import numpy as np

from fairseq_clear.errors import UserError
from fairseq_clear.preparation.corpus_reading import Row

BUFFER_BYTES = 1 << 20
HOLD_OUT_STREAM, SAMPLE_STREAM = 0, 1  # independent random streams of one seed

Lines = tuple[bytes, ...]  # a sentence and its paraphrases, each with its line end


class DocumentLengths(Counter[int]):
    """Counts documents by their length in sentences; memory only grows with the number of distinct lengths."""

    @property
    def sentences(self) -> int:
        """Number of sentences in all documents."""
        return sum(length * count for length, count in self.items())

    def summary(self) -> str:
        """Describe both counts."""
        return f"{self.total():,} documents, {self.sentences:,} sentences"


@dataclass(frozen=True)
class Staged:
    """Canonical text on disk. ``held_out`` documents, drawn with ``seed``, are not for training."""

    paths: dict[str, Path]  # name -> file, the text itself first; all files have the same number of lines
    lengths: DocumentLengths
    seed: int = 1
    held_out: int = 0

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

    def documents(self) -> Iterator[tuple[bool, Iterator[Lines]]]:
        """Yield for each document whether it is held out, and its rows, which are to be read before the next document."""
        rng = np.random.default_rng([self.seed, HOLD_OUT_STREAM])
        choices = choose_exactly(self.held_out, self.lengths.total(), rng)
        for is_text, rows in groupby(self.rows(), key=bool):
            if is_text:
                yield next(choices), rows

    def training_lines(self, most_bytes: float) -> Iterator[str]:
        """Yield a uniform sample of the lines for training, paraphrases included, of about ``most_bytes``; no blank ones."""
        share, rng = min(1.0, most_bytes / max(self.size, 1)), np.random.default_rng([self.seed, SAMPLE_STREAM])
        lines = (line for is_held_out, rows in self.documents() if not is_held_out for row in rows for line in row)
        for line in lines:
            if line != b"\n" and (share >= 1.0 or rng.random() < share):
                yield line[:-1].decode()


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
    """Return the number of documents in a share: rounded, at least one, never all. UserError if there is only one."""
    if documents < 2:
        raise UserError(
            "--valid-share: the corpus is a single document, which cannot be shared out; give --valid FILE, or say where "
            "documents start, e.g. --document-start . for one document per line"
        )
    return min(max(round(share * documents), 1), documents - 1)
