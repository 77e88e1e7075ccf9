"""Reads documents of binarized data from memory-mapped tokens.

A line that is only ``</s>`` is blank. A document is a run of lines that are not blank, or a single such line
(``boundary="line"``).
"""

import hashlib
import itertools
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fairseq_clear.errors import UserError
from fairseq_clear.text.mapped_files import read_index
from fairseq_clear.tokens import Ragged, Tokens, as_tokens, place_rows, ranges

logger = logging.getLogger(__name__)

# A document is identified by its length and this many of its first tokens.
IDENTITY_TOKENS = 256


def find_documents(sizes: npt.NDArray[np.int32], boundary: str = "blank") -> npt.NDArray[np.int64]:
    """Find the documents among lines of these lengths (L,) with ``</s>``: (D, 2), the first line, and that after the last."""
    is_text = np.asarray(sizes) > 1
    if boundary == "line":
        lines = np.flatnonzero(is_text)
        return np.stack([lines, lines + 1], axis=1)
    return np.flatnonzero(np.diff(is_text, prepend=False, append=False)).reshape(-1, 2)


class Lines:
    """Lines of token ids in memory.

    Attributes:
        tokens: (T,) token ids of all lines, one after the other, each ending in ``</s>``.
        sizes: (L,) int32 lengths, including ``</s>``.
    """

    def __init__(self, lines: Sequence[Any]) -> None:
        rows = Ragged.of([as_tokens(line) for line in lines])
        self.tokens: npt.NDArray[Any] = rows.tokens
        self.sizes, self._starts = rows.lengths.astype(np.int32), rows.offsets[:-1]

    def starts(self, lines: Any) -> Any:
        """Position in ``tokens`` of the first token of a line, or of each of several lines."""
        return self._starts[lines]

    def framed(self, lines: Tokens, begins: Any, lengths: Tokens, bos: int, eos: int) -> Ragged:
        """Copy a part of each of several lines (R,), between ``<s>`` and ``</s>``.

        A part begins at position ``begins`` (R,), or 0, of its line, and has ``lengths`` (R,) tokens, without ``</s>``.
        """
        return Ragged.copied(self.tokens, self.starts(lines) + begins, lengths, first=bos, last=eos)


class MappedLines(Lines):
    """The lines of ``prefix.bin`` and ``prefix.idx``, memory-mapped.

    fairseq's data set has separate maps, which it closes even if arrays still use them. A pickled copy
    opens the files again.
    """

    def __init__(self, prefix: str) -> None:
        index = read_index(f"{prefix}.idx")
        assert index is not None, "the callers check the format"
        self._prefix, (self._dtype, self.sizes, self._addresses) = prefix, index
        self.tokens = np.asarray(np.memmap(f"{prefix}.bin", self._dtype, mode="r"))

    def starts(self, lines: Any) -> Any:
        """As in Lines."""
        return self._addresses[lines] // self._dtype.itemsize

    def __reduce__(self) -> Any:
        return MappedLines, (self._prefix,)


class Documents:
    """All documents of a split.

    Args:
        parts: the lines of each file; no document continues in the next file.
        boundary: ``blank``: blank lines separate documents; ``line``: each line is a document.

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
        self.bounds = [find_documents(part.sizes, boundary) for part in parts]
        self._ends = np.cumsum([len(bounds) for bounds in self.bounds]).tolist()
        if not len(self):
            raise UserError(f"{name}: holds no document, only blank lines or nothing at all")
        self.line_counts = np.concatenate([bounds[:, 1] - bounds[:, 0] for bounds in self.bounds])
        lengths = []
        for part, (first, end) in zip(parts, (bounds.T for bounds in self.bounds), strict=True):
            begins, ends = part.starts(first), part.starts(end - 1) + part.sizes[end - 1]
            lengths.append(ends - begins - (end - first))
            if len(first) and part.tokens[begins[0] + part.sizes[first[0]] - 1] != eos:
                raise UserError(
                    f"{name}: lines do not end in </s>; binarize them with it, as fairseq-clear prepare does"
                )
        self.lengths: Tokens = np.concatenate(lengths)
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
            found[rows] = content_hashes(Ragged.copied(part.tokens, part.starts(first), sizes, last=lengths))
        return found

    def first_line(self, index: int) -> int:
        """Line number, from 1, of the document's first line in its file."""
        ((_, _, first),) = self._located(np.array([index]))
        return int(first[0]) + 1

    def _located(self, documents: Tokens) -> Iterator[tuple[Tokens, Lines, Tokens]]:
        """Yield, for each file of several documents (K,), their places (k,) in the K, the file, and their first lines (k,)."""
        if len(self.parts) == 1:  # nearly always; what follows takes ten times as long
            yield np.arange(len(documents)), self.parts[0], self.bounds[0][documents, 0]
            return
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
    starts, low, counts = np.concatenate([[starts, origins, counts]] * 2, axis=1)
    high, first_lines = low + counts - 1, low
    for _ in range(int(counts.max(initial=1) - 1).bit_length()):
        middle = (low + high + 1) // 2
        is_after = part.starts(middle) - starts - (middle - first_lines) > positions  # tokens before the line
        low, high = np.where(is_after, low, middle), np.where(is_after, middle - 1, high)
    raw = starts + positions + low - first_lines
    sizes = np.where(ends > begins, raw[size:] + 1 - raw[:size], 0)
    found = Ragged.copied(part.tokens, raw[:size], sizes)
    inner = low[size:] - low[:size]  # ends of lines inside the span
    if not inner.any():
        return found
    lines, owner = ranges(low[:size], inner), np.repeat(np.arange(size), inner)
    keep = np.ones(len(found.tokens), np.bool_)
    keep[part.starts(lines) + part.sizes[lines] - 1 - raw[:size][owner] + found.offsets[owner]] = False
    return Ragged.of_lengths(found.tokens[keep], sizes - inner)


class LoadedLines(Lines):
    """The lines of a data set of fairseq that is not a single memory-mapped file; read when they are needed."""

    def __init__(self, dataset: Any) -> None:
        self.dataset, self.sizes = dataset, np.asarray(dataset.sizes)

    def framed(self, lines: Tokens, begins: Any, lengths: Tokens, bos: int, eos: int) -> Ragged:
        """As in Lines."""
        read = Lines([self.dataset[line] for line in lines.tolist()])
        return read.framed(np.arange(len(lines)), begins, lengths, bos, eos)


def lines_of(dataset: Any) -> Lines:
    """The lines of a data set that fairseq loaded."""
    # the attribute is MMapIndexedDataset's own
    return MappedLines(dataset._path) if hasattr(dataset, "_bin_buffer") else LoadedLines(dataset)


def documents_of(dataset: Any, bos: int, eos: int, *, boundary: str = "blank", name: str = "the data") -> Documents:
    """Find the documents of a data set that fairseq loaded: one memory-mapped file, or several joined ones.

    Raises:
        UserError: the data are not memory-mapped, or contain no document.
    """
    datasets = getattr(dataset, "datasets", [dataset])
    if not all(hasattr(part, "_bin_buffer") for part in datasets):  # MMapIndexedDataset's own
        raise UserError(f"{name}: documents are read from memory-mapped data; binarize with --dataset-impl mmap")
    return Documents([MappedLines(part._path) for part in datasets], bos, eos, boundary=boundary, name=name)


def content_hashes(texts: Ragged) -> npt.NDArray[np.int64]:
    """A 63-bit hash of each row's ids, equal in every process, which identifies a text among the candidates: (R,)."""
    raw, ends = np.ascontiguousarray(texts.tokens, np.int64).view(np.uint8).data, (8 * texts.offsets).tolist()
    digests, empty = [], hashlib.blake2b(digest_size=8)  # to copy it is faster than to make another
    for begin, end in itertools.pairwise(ends):
        text = empty.copy()
        text.update(raw[begin:end])
        digests.append(text.digest())
    return (np.frombuffer(b"".join(digests), "<u8") >> np.uint64(1)).astype(np.int64)
