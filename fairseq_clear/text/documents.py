"""Reads documents of binarized data from memory-mapped tokens, by an index that is computed once and stored in a file.

A line that is only ``</s>`` is blank. A document is a run of lines that are not blank, or a single such line
(``boundary="line"``). The index is stored next to the data. Computing it takes linear time and constant memory.
"""

import hashlib
import itertools
import logging
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fairseq_clear.errors import UserError
from fairseq_clear.files import write_whole
from fairseq_clear.spec import BOUNDARIES
from fairseq_clear.text.mapped_files import read_index
from fairseq_clear.tokens import Ragged, Tokens, ranges

logger = logging.getLogger(__name__)

# A document is identified by its length and this many of its first tokens.
IDENTITY_TOKENS = 256
CHUNK_DOCUMENTS = 1 << 12
CHUNK_LINES = 1 << 22
INDEX_FORMAT = 1
_EDGE_BYTES = 1 << 16

Bounds = npt.NDArray[np.int64]
"""(D, 2): the first line of each document, and the line after its last."""


def find_documents(sizes: npt.NDArray[np.int32], boundary: str = "blank") -> Bounds:
    """Find the documents among lines with these lengths (L,), which include ``</s>``.

    Raises:
        UserError: an unknown boundary.
    """
    if boundary not in BOUNDARIES:
        raise UserError(f"--document-boundary {boundary}: choose from {', '.join(BOUNDARIES)}")
    parts = [np.zeros(0, np.int64)]
    was_text = False  # the line before the chunk
    for first in range(0, len(sizes), CHUNK_LINES):
        is_text = np.asarray(sizes[first : first + CHUNK_LINES]) > 1
        is_edge = is_text if boundary == "line" else np.diff(is_text, prepend=was_text)
        parts.append(np.flatnonzero(is_edge) + first)
        was_text = bool(is_text[-1])
    edges = np.concatenate(parts)
    if boundary == "line":
        return np.stack([edges, edges + 1], axis=1)
    return np.append(edges, np.full(int(was_text), len(sizes))).reshape(-1, 2)


def index_path(prefix: str | Path, boundary: str) -> Path:
    """Path of the index of the data ``prefix.bin`` and ``prefix.idx``."""
    return Path(f"{prefix}.documents-{boundary}.npy")


def load_document_index(prefix: str | Path, sizes: npt.NDArray[np.int32], boundary: str = "blank") -> Bounds:
    """Load the index of the documents at ``prefix``, memory-mapped; it is computed and written if it is missing.

    The index begins with a key made of the ``.idx`` file's size, time, beginning and end, so that new data get a new index. If
    the folder cannot be written to or is full, the index is computed at each start and kept in memory.
    """
    place = index_path(prefix, boundary)
    key = _key(Path(f"{prefix}.idx"), boundary)
    stored = _read_stored(place, key, len(sizes))
    if stored is not None:
        return stored
    bounds = find_documents(sizes, boundary)
    try:
        with write_whole(place) as file:
            np.save(file, np.concatenate([key, bounds]))
    except OSError as error:
        logger.info("%s: cannot store the document index (%s); it is kept in memory", place, error.strerror or error)
        return bounds
    stored = _read_stored(place, key, len(sizes))
    return bounds if stored is None else stored


def _key(idx: Path, boundary: str) -> Bounds:
    """Key of an index, (1, 2) int64."""
    status = idx.stat()
    digest = hashlib.blake2b(
        f"{INDEX_FORMAT} {boundary} {status.st_size} {status.st_mtime_ns}".encode(), digest_size=16
    )
    with open(idx, "rb") as file:
        digest.update(file.read(_EDGE_BYTES))
        file.seek(max(status.st_size - _EDGE_BYTES, 0))
        digest.update(file.read(_EDGE_BYTES))
    return np.frombuffer(digest.digest(), np.int64).reshape(1, 2)


def _read_stored(place: Path, key: Bounds, lines: int) -> Bounds | None:
    """Read the index at ``place``; None if it is missing, damaged, or belongs to other data."""
    try:
        stored = np.load(place, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    is_index = stored.dtype == np.int64 and stored.ndim == 2 and stored.shape[1:] == (2,) and len(stored) > 0
    if not is_index or (stored[0] != key[0]).any() or (len(stored) > 1 and stored[-1, 1] > lines):
        return None
    bounds: Bounds = stored[1:]
    return bounds


class Lines:
    """Lines of token ids in memory.

    Attributes:
        tokens: (T,) token ids of all lines, one after the other, each ending in ``</s>``.
        sizes: (L,) int32 lengths, including ``</s>``.
    """

    def __init__(self, lines: Sequence[npt.ArrayLike]) -> None:
        arrays = [np.asarray(line, np.int64) for line in lines]
        self.tokens: npt.NDArray[Any] = np.concatenate([np.zeros(0, np.int64), *arrays])
        self.sizes = np.array([len(array) for array in arrays], np.int32)
        self._starts = np.cumsum(self.sizes, dtype=np.int64) - self.sizes

    def starts(self, lines: Any) -> Any:
        """Position in ``tokens`` of the first token of a line, or of each of several lines."""
        return self._starts[lines]

    def framed(self, lines: Tokens, begins: Any, lengths: Tokens, bos: int, eos: int) -> Ragged:
        """Copy a part of each of several lines, between ``<s>`` and ``</s>``.

        Args:
            lines: (R,).
            begins: (R,) the first position of the part in its line, or 0.
            lengths: (R,) number of tokens of the part, without ``</s>``.
            bos, eos: ids of ``<s>`` and ``</s>``.
        """
        parts = Ragged.of_lengths(np.empty(int(lengths.sum()) + 2 * len(lengths), np.int64), lengths + 2)
        parts.tokens[parts.offsets[:-1]], parts.tokens[parts.offsets[1:] - 1] = bos, eos
        parts.write(1, self.tokens, self.starts(lines) + begins, lengths)
        return parts

    def documents(self, boundary: str) -> Bounds:
        """(D, 2): the first line of each document, and the line after its last."""
        return find_documents(self.sizes, boundary)


class MappedLines(Lines):
    """The lines of ``prefix.bin`` and ``prefix.idx``, memory-mapped.

    The maps are separate from those of fairseq's data set, which closes its own even if arrays still use them. A pickled copy
    opens the files again.
    """

    def __init__(self, prefix: str) -> None:
        index = read_index(f"{prefix}.idx")
        assert index is not None, "documents_of checks the format"
        self._prefix, self._dtype = prefix, index.dtype
        self.sizes, self._addresses = index.sizes, index.addresses
        self.tokens = np.asarray(np.memmap(f"{prefix}.bin", index.dtype, mode="r"))

    def starts(self, lines: Any) -> Any:
        """As in Lines."""
        return self._addresses[lines] // self._dtype.itemsize

    def documents(self, boundary: str) -> Bounds:
        """As in Lines; the result is stored next to the files."""
        return load_document_index(self._prefix, self.sizes, boundary)

    def __reduce__(self) -> Any:
        return MappedLines, (self._prefix,)


@dataclass(frozen=True)
class Document:
    """A document, or a part of it that consists of lines.

    Positions count its n tokens x_1 ... x_n without the ``</s>`` of its lines, so they are independent of line breaks.

    Attributes:
        tokens: (n + lines,) slice of the memory map, with ``</s>``.
        line_ends: (lines,) position after each line's last token.
        bos, eos: ids of ``<s>`` and ``</s>``.
    """

    tokens: npt.NDArray[Any]
    line_ends: Tokens
    bos: int
    eos: int

    def __len__(self) -> int:
        return int(self.line_ends[-1])

    def span(self, begin: int, end: int) -> Tokens:
        """Return ``<s>``, the tokens ``begin`` to ``end`` (exclusive), and ``</s>``: (end - begin + 2,) int64, a copy."""
        framed = np.empty(end - begin + 2, np.int64)
        framed[0], framed[-1] = self.bos, self.eos
        first, last = np.searchsorted(self.line_ends, (begin, end - 1), side="right")
        raw = self.tokens[begin + first : end + last]
        if first < last:
            keep = np.ones(len(raw), np.bool_)
            keep[self.line_ends[first:last] - begin + np.arange(last - first)] = False
            raw = raw[keep]
        framed[1:-1] = raw
        return framed


class Documents:
    """All documents of a split.

    Args:
        parts: the lines of each file; no document continues in the next file.
        bos, eos: ids of ``<s>`` and ``</s>``.
        boundary: ``blank``: blank lines separate documents; ``line``: each line is a document.
        name: name of the split, for messages.

    Attributes:
        lengths: (D,) int64 number of tokens of each document, without ``</s>``.
        line_counts: (D,) int64 number of lines of each document.

    Raises:
        UserError: the data contain no document, or lines do not end in ``</s>``.
    """

    def __init__(
        self, parts: Sequence[Lines], bos: int, eos: int, *, boundary: str = "blank", name: str = "the data"
    ) -> None:
        self.parts, self.bos, self.eos, self.name = parts, bos, eos, name
        self.bounds = [np.asarray(part.documents(boundary)) for part in parts]
        self._ends = np.cumsum([len(bounds) for bounds in self.bounds]).tolist()
        if not len(self):
            raise UserError(f"{name}: holds no document, only blank lines or nothing at all")
        for part, bounds in zip(parts, self.bounds, strict=True):
            first = int(bounds[0, 0]) if len(bounds) else None
            if first is not None and part.tokens[part.starts(first) + part.sizes[first] - 1] != eos:
                raise UserError(
                    f"{name}: lines do not end in </s>; binarize them with it, as fairseq-clear prepare does"
                )
        self.line_counts = np.concatenate([bounds[:, 1] - bounds[:, 0] for bounds in self.bounds])
        self.lengths = np.concatenate(
            [_tokens_between(part, bounds) for part, bounds in zip(parts, self.bounds, strict=True)]
        )
        logger.info("%s: %d documents of %d tokens", name, len(self), int(self.lengths.sum()))
        if boundary == "blank" and len(self) == 1 and self.line_counts[0] > 1:
            logger.warning(
                "%s: no blank line separates documents, so all its %d lines are one document; if each line is a document, "
                "give --document-boundary line",
                name,
                self.line_counts[0],
            )

    def __len__(self) -> int:
        return int(self._ends[-1]) if self._ends else 0

    def __getitem__(self, index: int) -> Document:
        return self.lines(index, 0, int(self.line_counts[index]))

    def lines(self, index: int, first: int, last: int) -> Document:
        """Return the lines ``first`` to ``last`` (exclusive) of a document."""
        part, begin = self._locate(index)
        begin, end = begin + first, begin + last
        sizes = part.sizes[begin:end]
        start = int(part.starts(begin))
        line_ends = np.cumsum(sizes - 1, dtype=np.int64)
        return Document(part.tokens[start : start + int(line_ends[-1]) + len(sizes)], line_ends, self.bos, self.eos)

    def identity(self, index: int) -> int:
        """A hash of the document's length and first tokens; equal documents have equal hashes."""
        part, first = self._locate(index)
        length = int(self.lengths[index])
        start = int(part.starts(first))
        head = part.tokens[start : start + min(length + int(self.line_counts[index]), IDENTITY_TOKENS)]
        return content_hash(np.append(head.astype(np.int64), length))

    def read(self, documents: Tokens, begins: Tokens, ends: Tokens) -> Ragged:
        """Copy the tokens ``begins`` to ``ends`` of several documents, all (K,), without ``<s>`` and ``</s>``: K rows."""
        if len(self.parts) > 1:
            names = zip(documents.tolist(), begins.tolist(), ends.tolist(), strict=True)
            return Ragged.of(
                [self[number].span(a, b)[1:-1] if a < b else np.zeros(0, np.int64) for number, a, b in names]
            )
        part, origin = self.parts[0], self.bounds[0][documents, 0]
        start, last = part.starts(origin), origin + self.line_counts[documents] - 1
        # the lines of the first and the last token of each span: by bisection of all at once
        positions = np.concatenate([begins, np.maximum(ends - 1, begins)])
        low, high = np.tile(origin, 2), np.tile(last, 2)
        starts, origins = np.tile(start, 2), low.copy()
        for _ in range(int((last - origin).max(initial=0)).bit_length()):
            middle = (low + high + 1) // 2
            is_after = part.starts(middle) - starts - (middle - origins) > positions  # tokens before the line
            low, high = np.where(is_after, low, middle), np.where(is_after, middle - 1, high)
        raw = starts + positions + low - origins
        first, last = low[: len(begins)], low[len(begins) :]
        sizes = np.where(ends > begins, raw[len(begins) :] + 1 - raw[: len(begins)], 0)
        found = Ragged.of_lengths(np.empty(int(sizes.sum()), np.int64), sizes)
        found.write(0, part.tokens, raw[: len(begins)], sizes)
        inner = last - first  # ends of lines inside the span
        if not inner.any():
            return found
        lines, owner = ranges(first, inner), np.repeat(np.arange(len(inner)), inner)
        at = part.starts(lines) + part.sizes[lines] - 1 - raw[: len(begins)][owner] + found.offsets[owner]
        keep = np.ones(len(found.tokens), np.bool_)
        keep[at] = False
        return Ragged.of_lengths(found.tokens[keep], sizes - inner)

    def positions(self, documents: Tokens, lines: Tokens) -> Tokens:
        """``position`` of several pairs of a document and a line, both (K,)."""
        if len(self.parts) > 1:
            return np.array(
                [self._end(*pair) for pair in zip(documents.tolist(), lines.tolist(), strict=True)], np.int64
            )
        part, origin = self.parts[0], self.bounds[0][documents, 0]
        is_end = lines == self.line_counts[documents]
        there = part.starts(origin + np.where(is_end, 0, lines)) - part.starts(origin) - lines
        return np.where(is_end, self.lengths[documents], there)

    def identities(self, documents: Tokens) -> Tokens:
        """``identity`` of several documents: (K,)."""
        if len(self.parts) > 1:
            return np.array([self.identity(number) for number in documents.tolist()], np.int64)
        part, lengths = self.parts[0], self.lengths[documents]
        sizes = np.minimum(lengths + self.line_counts[documents], IDENTITY_TOKENS)
        heads = Ragged.of_lengths(np.empty(int(sizes.sum()) + len(sizes), np.int64), sizes + 1)
        heads.write(0, part.tokens, part.starts(self.bounds[0][documents, 0]), sizes)
        heads.tokens[heads.offsets[1:] - 1] = lengths
        return content_hashes(heads)

    def line_span_lengths(self, lines: int) -> npt.NDArray[np.int32]:
        """Number of tokens of each span of ``lines`` lines: first all spans of the first document, then those of the next.

        Spans are cut from the beginning of a document; lines left over at its end are not in a span.
        """
        found = np.empty(int((self.line_counts // lines).sum()), np.int32)
        done = 0
        for part, all_bounds in zip(self.parts, self.bounds, strict=True):
            for chunk in range(0, len(all_bounds), CHUNK_DOCUMENTS):  # int64 temporaries cover one chunk
                bounds = all_bounds[chunk : chunk + CHUNK_DOCUMENTS]
                spans = (bounds[:, 1] - bounds[:, 0]) // lines
                within = np.arange(int(spans.sum())) - np.repeat(np.cumsum(spans) - spans, spans)
                first = np.repeat(bounds[:, 0], spans) + lines * within
                found[done : done + len(first)] = _tokens_between(part, np.stack([first, first + lines], axis=1))
                done += len(first)
        return found

    def position(self, index: int, line: int) -> int:
        """Number of tokens of a document before line ``line``."""
        part, first = self._locate(index)
        return int(part.starts(first + line) - part.starts(first)) - line

    def _end(self, index: int, line: int) -> int:
        """As ``position``, also after the last line."""
        return self.position(index, line) if line < self.line_counts[index] else int(self.lengths[index])

    def first_line(self, index: int) -> int:
        """Line number, from 1, of the document's first line in its file."""
        return self._locate(index)[1] + 1

    def _locate(self, index: int) -> tuple[Lines, int]:
        which = bisect_right(self._ends, index)
        number = index - (self._ends[which - 1] if which else 0)
        return self.parts[which], int(self.bounds[which][number, 0])


def map_lines(dataset: Any) -> MappedLines | None:
    """Map the file of a data set that fairseq loaded; None if it is not a single memory-mapped file."""
    return MappedLines(dataset._path) if hasattr(dataset, "_bin_buffer") else None  # MMapIndexedDataset's own


def documents_of(dataset: Any, bos: int, eos: int, *, boundary: str = "blank", name: str = "the data") -> Documents:
    """Find the documents of a data set that fairseq loaded: one memory-mapped file, or several joined ones.

    Raises:
        UserError: the data are not memory-mapped, or contain no document.
    """
    datasets = getattr(dataset, "datasets", [dataset])
    if not all(hasattr(part, "_bin_buffer") for part in datasets):  # MMapIndexedDataset's own
        raise UserError(f"{name}: documents are read from memory-mapped data; binarize with --dataset-impl mmap")
    return Documents([MappedLines(part._path) for part in datasets], bos, eos, boundary=boundary, name=name)


def _tokens_between(part: Lines, bounds: Bounds) -> Tokens:
    """Number of tokens of documents, without ``</s>``: (D,)."""
    first, last = bounds[:, 0], bounds[:, 1] - 1
    lengths: Tokens = part.starts(last) + part.sizes[last] - part.starts(first) - (last - first + 1)
    return lengths


def content_hash(tokens: npt.NDArray[np.int64]) -> int:
    """A 63-bit hash of token ids (T,), equal in every process, which identifies a text among the candidates."""
    return int(content_hashes(Ragged.of_lengths(tokens, np.array([len(tokens)])))[0])


def content_hashes(texts: Ragged) -> npt.NDArray[np.int64]:
    """``content_hash`` of each row: (R,) int64."""
    raw, ends = np.ascontiguousarray(texts.tokens, np.int64).view(np.uint8).data, (8 * texts.offsets).tolist()
    digests = [hashlib.blake2b(raw[a:b], digest_size=8).digest() for a, b in itertools.pairwise(ends)]
    return (np.frombuffer(b"".join(digests), "<u8") >> np.uint64(1)).astype(np.int64)
