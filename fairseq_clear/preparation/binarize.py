"""Binarizes text to fairseq's mmap data sets, in parallel; the files have the same bytes for any number of processes.

The files are byte for byte what fairseq-preprocess writes. Memory does not grow with the text.
"""

import hashlib
import os
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import best_fitting_int_dtype
from numpy.typing import NDArray

from fairseq_clear import register
from fairseq_clear.preparation.prepare_settings import ORIGINAL
from fairseq_clear.preparation.staging import DocumentLengths, Lines
from fairseq_clear.processes import worker_pool
from fairseq_clear.text.mapped_files import HEADER_BYTES, LINES, MAGIC, TYPES
from fairseq_clear.text.tokenizers import Tokenizer

register()

PART_BYTES = 1 << 17  # of text that a process binarizes at a time
WAITING_EACH = 4  # parts queued per process


@dataclass
class SplitCounts:
    """Sizes of a text of a split.

    ``tokens`` counts all ids: pieces, and a ``</s>`` per line, including blank lines. Only paraphrases have ``blank``
    sentences, for which training uses the original.
    """

    lengths: DocumentLengths = field(default_factory=DocumentLengths)
    blank: int = 0
    tokens: int = 0
    unknown: int = 0

    def as_json(self, name: str = ORIGINAL) -> dict[str, Any]:
        """The counts of a split, or of one of its paraphrases, for ``clear.json``."""
        found = {"documents": self.lengths.total()} if name == ORIGINAL else {"blank": self.blank}
        sentences = self.lengths.sentences - self.blank
        return {**found, "sentences": sentences, "tokens": self.tokens, "unknown": self.unknown}

    def __add__(self, other: "SplitCounts") -> "SplitCounts":
        lengths = DocumentLengths(self.lengths + other.lengths)
        return SplitCounts(lengths, self.blank + other.blank, self.tokens + other.tokens, self.unknown + other.unknown)


class Encoder:
    """Converts lines of text to ids, with processes of ``encode``."""

    def __init__(self, tokenizer: Tokenizer, dictionary: Dictionary) -> None:
        self.dtype = np.dtype(best_fitting_int_dtype(len(dictionary)))
        self.unknown, self._end = dictionary.unk(), dictionary.eos()
        self._tokenizer, self._indices = tokenizer, dictionary.indices

    def encode(self, text: bytes) -> tuple[NDArray[np.int32], NDArray[Any]]:
        """Return the number of ids of each line, ``</s>`` included, and the ids of all lines. A blank line is one ``</s>``."""
        sizes, ids = [], []
        for line in text.decode().split("\n")[:-1]:
            # A text that the tokenizer normalises to nothing must not become a blank line, which would end a document.
            symbols = (self._tokenizer.encode(stripped) or ["<unk>"]) if (stripped := line.strip()) else []
            ids += [self._indices.get(symbol, self.unknown) for symbol in symbols]
            ids.append(self._end)
            sizes.append(len(symbols) + 1)
        return np.array(sizes, np.int32), np.array(ids, self.dtype)


_encoder: Encoder  # in a worker process


def _set_encoder(encoder: Encoder) -> None:
    global _encoder
    _encoder = encoder


def _encode(text: bytes) -> tuple[NDArray[np.int32], NDArray[Any]]:
    return _encoder.encode(text)


class Dataset:
    """A text of a split, of ``size`` bytes so far, which is binarized to ``PREFIX.bin`` and ``.idx``, hashed and counted."""

    def __init__(self, prefix: Path, encoder: Encoder, ids: NDArray[np.int64] | None) -> None:
        self.counts, self.digest, self.size = SplitCounts(), hashlib.sha256(), 0
        self._prefix, self._encoder, self._ids = prefix, encoder, ids  # ids: counts by id, (vocabulary,), to add to
        self._items = 0
        code = next(code for code, name in TYPES.items() if np.dtype(name) == encoder.dtype)
        Path(f"{prefix}.idx").write_bytes(MAGIC + struct.pack("<QBQ", 1, code, 0))

    def append(self, part: bytes, sizes: NDArray[np.int32], ids: NDArray[Any]) -> None:
        """Hash the next part of the text, and write the number of ids of each line and the ids."""
        self.digest.update(part)
        for suffix, content in (("bin", ids), ("idx", sizes)):
            with open(f"{self._prefix}.{suffix}", "ab") as stream:
                stream.write(content.tobytes())
        self._items += len(sizes)
        self.counts.tokens += len(ids)
        self.counts.unknown += int((ids == self._encoder.unknown).sum())
        if self._ids is not None:
            self._ids += np.bincount(ids, minlength=len(self._ids))

    def finish(self) -> None:
        """Complete the ``.idx`` file: the number of lines, and the address of each line."""
        address = 0
        with open(f"{self._prefix}.idx", "r+b") as stream:
            stream.seek(HEADER_BYTES - 8)
            stream.write(struct.pack("<Q", self._items))
            for first in range(0, self._items, LINES):
                stream.seek(HEADER_BYTES + 4 * first)
                sizes = np.frombuffer(stream.read(4 * min(LINES, self._items - first)), np.int32)
                ends = address + np.cumsum(sizes, dtype=np.int64) * self._encoder.dtype.itemsize
                stream.seek(0, os.SEEK_END)
                stream.write(np.concatenate(([address], ends[:-1])).astype(np.int64).tobytes())
                address = int(ends[-1])


# the data sets of a text and its paraphrases, and the rows
Documents = Iterable[tuple[Sequence[Dataset], Iterable[Lines]]]


def binarize(
    documents: Documents, encoder: Encoder, size: int, workers: int, progress: Callable[[int], object]
) -> None:
    """Add each document to its data sets, with a blank line between two documents, and complete the data sets.

    ``workers`` processes encode the text, fewer if its ``size`` in bytes is small; the result does not depend on them.
    ``progress`` is called with the number of bytes of text binarized since its last call.
    """
    workers = min(workers, 1 + size // PART_BYTES)
    waiting: deque[tuple[Dataset, bytes, Any]] = deque()
    used: dict[Dataset, None] = {}

    def write(most: int) -> None:
        while len(waiting) > most:
            dataset, part, future = waiting.popleft()
            dataset.append(part, *future.result())
            progress(len(part))

    with worker_pool(workers, _set_encoder, (encoder,)) as pool:
        for dataset, part in _parts(documents):
            used[dataset] = None
            waiting.append((dataset, part, pool.submit(_encode, part)))
            write(workers * WAITING_EACH)
        write(0)
    for dataset in used:
        dataset.finish()


def _parts(documents: Documents) -> Iterator[tuple[Dataset, bytes]]:
    """Count the documents; yield the text of each data set in parts of PART_BYTES or a little more."""
    rest: dict[Dataset, bytearray] = {}
    for datasets, rows in documents:
        length = 0
        for row in rows:
            for dataset, line in zip(datasets, row, strict=True):
                text = b"\n" + line if dataset.size and not length else line
                part = rest.setdefault(dataset, bytearray())
                part += text
                dataset.size += len(text)
                dataset.counts.blank += line == b"\n"
                if len(part) >= PART_BYTES:
                    yield dataset, bytes(rest.pop(dataset))
            length += 1
        for dataset in datasets:
            dataset.counts.lengths[length] += 1
    for dataset, part in rest.items():
        yield dataset, bytes(part)
