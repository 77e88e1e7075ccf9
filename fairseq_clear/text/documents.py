"""Reads documents of binarized data from memory-mapped tokens, by an index that is computed once and stored in a file.

A line that is only ``</s>`` is blank. A document is a run of lines that are not blank, or a single such line
(``boundary="line"``). The index is stored next to the data. Computing it takes linear time and constant memory.
"""

import hashlib
import itertools
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fairseq_clear.errors import UserError
from fairseq_clear.files import write_whole
from fairseq_clear.spec import BOUNDARIES
from fairseq_clear.text.mapped_files import read_index
from fairseq_clear.tokens import Ragged, Tokens, place_rows, ranges

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

    def read(self, documents: Tokens, begins: Tokens, ends: Tokens) -> Ragged:
        """Copy the tokens ``begins`` to ``ends`` of several documents, all (K,), without ``<s>`` and ``</s>``: K rows.

        Positions do not count the ``</s>`` of lines, so they are independent of line breaks.
        """
        parts = [
            (rows, _read(part, first, self.line_counts[documents[rows]], begins[rows], ends[rows]))
            for rows, part, first in self._located(documents)
        ]
        return parts[0][1] if len(parts) == 1 else place_rows(len(documents), parts)

    def positions(self, documents: Tokens, lines: Tokens) -> Tokens:
        """Number of tokens of several documents before a line of each, both (K,); the line may be the one after the last."""
        found = self.lengths[documents]
        for rows, part, first in self._located(documents):
            inner = lines[rows] < self.line_counts[documents[rows]]
            rows, first, line = rows[inner], first[inner], lines[rows][inner]
            found[rows] = part.starts(first + line) - part.starts(first) - line
        return found

    def identities(self, documents: Tokens) -> Tokens:
        """A hash of the length and the first tokens of several documents (K,); equal documents have equal hashes."""
        found = np.empty(len(documents), np.int64)
        for rows, part, first in self._located(documents):
            lengths, counts = self.lengths[documents[rows]], self.line_counts[documents[rows]]
            sizes = np.minimum(lengths + counts, IDENTITY_TOKENS)
            heads = Ragged.of_lengths(np.empty(int(sizes.sum()) + len(sizes), np.int64), sizes + 1)
            heads.write(0, part.tokens, part.starts(first), sizes)
            heads.tokens[heads.offsets[1:] - 1] = lengths
            found[rows] = content_hashes(heads)
        return found

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

    def first_line(self, index: int) -> int:
        """Line number, from 1, of the document's first line in its file."""
        ((_, _, first),) = self._located(np.array([index]))
        return int(first[0]) + 1

    def _located(self, documents: Tokens) -> Iterator[tuple[Tokens, Lines, Tokens]]:
        """Yield, for each file of several documents (K,), their places (k,) in the K, the file, and their first lines (k,)."""
        which = np.searchsorted(self._ends, documents, side="right")
        for number in np.unique(which).tolist():
            rows = np.flatnonzero(which == number)
            begin = self._ends[number - 1] if number else 0
            yield rows, self.parts[number], self.bounds[number][documents[rows] - begin, 0]


def _read(part: Lines, origins: Tokens, counts: Tokens, begins: Tokens, ends: Tokens) -> Ragged:
    """Copy the tokens ``begins`` to ``ends`` of documents that have ``counts`` lines from ``origins`` on, all (K,)."""
    size, starts = len(origins), part.starts(origins)
    # the lines of the first and the last token of each span: by bisection of all at once
    positions = np.concatenate([begins, np.maximum(ends - 1, begins)])
    low, high = np.tile(origins, 2), np.tile(origins + counts - 1, 2)
    starts, first_lines = np.tile(starts, 2), low
    for _ in range(int(counts.max(initial=1) - 1).bit_length()):
        middle = (low + high + 1) // 2
        is_after = part.starts(middle) - starts - (middle - first_lines) > positions  # tokens before the line
        low, high = np.where(is_after, low, middle), np.where(is_after, middle - 1, high)
    raw = starts + positions + low - first_lines
    sizes = np.where(ends > begins, raw[size:] + 1 - raw[:size], 0)
    found = Ragged.of_lengths(np.empty(int(sizes.sum()), np.int64), sizes)
    found.write(0, part.tokens, raw[:size], sizes)
    inner = low[size:] - low[:size]  # ends of lines inside the span
    if not inner.any():
        return found
    lines, owner = ranges(low[:size], inner), np.repeat(np.arange(size), inner)
    keep = np.ones(len(found.tokens), np.bool_)
    keep[part.starts(lines) + part.sizes[lines] - 1 - raw[:size][owner] + found.offsets[owner]] = False
    return Ragged.of_lengths(found.tokens[keep], sizes - inner)


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
