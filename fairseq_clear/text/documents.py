"""Documents of binarized data: indexed once, cut from the memory-mapped tokens, never held in memory."""

import logging
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fairseq_clear.augmentations.base import Tokens
from fairseq_clear.errors import UserError
from fairseq_clear.files import content_hash
from fairseq_clear.text.document_index import Bounds, find_documents, load_document_index

__all__ = ["Document", "Documents", "Lines", "MappedLines", "documents_of"]

logger = logging.getLogger(__name__)

# A document is known by its length and by this many tokens from its beginning.
IDENTITY_TOKENS = 256
CHUNK_DOCUMENTS = 1 << 12
# MMapIndexedDataset's magic (9 bytes), version (8), type of the ids (1), number of lines (8).
_IDX_HEADER = 26


class Lines:
    """Lines of token ids in memory.

    Attributes:
        tokens: (T,) of all lines, one after the other, each with its ``</s>``.
        sizes: (L,) int32 lengths, ``</s>`` included.
    """

    def __init__(self, lines: Sequence[npt.ArrayLike]) -> None:
        arrays = [np.asarray(line, np.int64) for line in lines]
        self.tokens: npt.NDArray[Any] = np.concatenate([np.zeros(0, np.int64), *arrays])
        self.sizes = np.array([len(array) for array in arrays], np.int32)
        self._starts = np.cumsum(self.sizes, dtype=np.int64) - self.sizes

    def starts(self, lines: Any) -> Any:
        """Positions in ``tokens`` of the first tokens of these lines (or of one)."""
        return self._starts[lines]

    def documents(self, boundary: str) -> Bounds:
        """(D, 2): the first line of each document, and the line after its last."""
        return find_documents(self.sizes, boundary)


class MappedLines(Lines):
    """The lines of ``prefix.bin`` and ``prefix.idx``, memory-mapped.

    fairseq's own maps are closed when its data set goes, under arrays that still look at them; these are ours. A pickled copy
    opens the files itself.

    Args:
        prefix: path of the files, without their endings.
        dtype: of the token ids.
        lines: their number.
    """

    def __init__(self, prefix: str, dtype: npt.DTypeLike, lines: int) -> None:
        self._prefix, self._dtype, self._lines = prefix, np.dtype(dtype), lines
        # plain arrays over the maps: slices of np.memmap cost microseconds each
        self.tokens = np.asarray(np.memmap(f"{prefix}.bin", self._dtype, mode="r"))
        self.sizes = np.asarray(np.memmap(f"{prefix}.idx", np.int32, mode="r", offset=_IDX_HEADER, shape=(lines,)))
        offset = _IDX_HEADER + self.sizes.nbytes
        self._addresses = np.asarray(np.memmap(f"{prefix}.idx", np.int64, mode="r", offset=offset, shape=(lines,)))

    def starts(self, lines: Any) -> Any:
        """The same."""
        return self._addresses[lines] // self._dtype.itemsize

    def documents(self, boundary: str) -> Bounds:
        """The same, kept beside the files."""
        return load_document_index(self._prefix, self.sizes, boundary)

    def __reduce__(self) -> Any:
        return MappedLines, (self._prefix, self._dtype.str, self._lines)


@dataclass(frozen=True)
class Document:
    """A document, or some of its lines. Positions count its n tokens x_1 ... x_n without the ``</s>`` that end its lines,
    so that text reads the same however it was broken into lines.

    Attributes:
        tokens: (n + lines,) of the memory map, with ``</s>``.
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
        """``<s>``, the tokens from ``begin`` to before ``end``, ``</s>``: (end - begin + 2,) int64, a copy."""
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
        parts: the lines of its files; no document goes from one file to the next.
        bos, eos: ids of ``<s>`` and ``</s>``.
        boundary: ``blank`` lines part documents, or each ``line`` is one.
        name: of the split, for messages.

    Attributes:
        lengths: (D,) int64 tokens of each document, without ``</s>``.
        line_counts: (D,) int64.

    Raises:
        UserError: there is no document, or lines do not end in ``</s>``.
    """

    def __init__(
        self, parts: Sequence[Lines], bos: int, eos: int, *, boundary: str = "blank", name: str = "the data"
    ) -> None:
        self.parts, self.bos, self.eos, self.name = parts, bos, eos, name
        self.bounds = [np.asarray(part.documents(boundary)) for part in parts]
        self._ends = np.cumsum([len(bounds) for bounds in self.bounds]).tolist()
        if not len(self):
            raise UserError(f"{name}: no document in it, only blank lines or nothing at all")
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
                "%s: no blank line parts documents, so all its %d lines are one; if each is a document, give "
                "--document-boundary line",
                name,
                self.line_counts[0],
            )

    def __len__(self) -> int:
        return int(self._ends[-1]) if self._ends else 0

    def __getitem__(self, index: int) -> Document:
        return self.lines(index, 0, int(self.line_counts[index]))

    def lines(self, index: int, first: int, last: int) -> Document:
        """Of a document, its lines from ``first`` to before ``last``."""
        part, begin = self._locate(index)
        begin, end = begin + first, begin + last
        sizes = part.sizes[begin:end]
        start = int(part.starts(begin))
        line_ends = np.cumsum(sizes - 1, dtype=np.int64)
        return Document(part.tokens[start : start + int(line_ends[-1]) + len(sizes)], line_ends, self.bos, self.eos)

    def identity(self, index: int) -> int:
        """What tells this document from others: a hash of its length and its first tokens."""
        part, first = self._locate(index)
        length = int(self.lengths[index])
        start = int(part.starts(first))
        head = part.tokens[start : start + min(length + int(self.line_counts[index]), IDENTITY_TOKENS)]
        return content_hash(np.append(head.astype(np.int64), length))

    def line_span_lengths(self, lines: int) -> npt.NDArray[np.int32]:
        """Tokens of each span of so many lines, into which documents are cut from their beginning: all spans of the first
        document, then those of the next; lines left over at the end of one are in none.
        """
        found = np.empty(int((self.line_counts // lines).sum()), np.int32)
        done = 0
        for part, all_bounds in zip(self.parts, self.bounds, strict=True):
            for chunk in range(0, len(all_bounds), CHUNK_DOCUMENTS):  # int64 temporaries are of one chunk
                bounds = all_bounds[chunk : chunk + CHUNK_DOCUMENTS]
                spans = (bounds[:, 1] - bounds[:, 0]) // lines
                within = np.arange(int(spans.sum())) - np.repeat(np.cumsum(spans) - spans, spans)
                first = np.repeat(bounds[:, 0], spans) + lines * within
                found[done : done + len(first)] = _tokens_between(part, np.stack([first, first + lines], axis=1))
                done += len(first)
        return found

    def position(self, index: int, line: int) -> int:
        """How many tokens of a document stand before its line ``line``."""
        part, first = self._locate(index)
        return int(part.starts(first + line) - part.starts(first)) - line

    def first_line(self, index: int) -> int:
        """The number, from 1, of the document's first line in its file."""
        return self._locate(index)[1] + 1

    def _locate(self, index: int) -> tuple[Lines, int]:
        which = bisect_right(self._ends, index)
        number = index - (self._ends[which - 1] if which else 0)
        return self.parts[which], int(self.bounds[which][number, 0])


def documents_of(dataset: Any, bos: int, eos: int, *, boundary: str = "blank", name: str = "the data") -> Documents:
    """The documents of a data set as fairseq loads it: one memory-mapped file, or several joined.

    Raises:
        UserError: data that are not memory-mapped, or hold no document.
    """
    datasets = getattr(dataset, "datasets", [dataset])
    if not all(hasattr(part, "_bin_buffer") for part in datasets):  # MMapIndexedDataset's own
        raise UserError(f"{name}: documents are read from memory-mapped data; binarize with --dataset-impl mmap")
    parts = [MappedLines(part._path, part._index.dtype, len(part)) for part in datasets]
    return Documents(parts, bos, eos, boundary=boundary, name=name)


def _tokens_between(part: Lines, bounds: Bounds) -> Tokens:
    """(D,) tokens of documents, their lines' ``</s>`` not counted."""
    first, last = bounds[:, 0], bounds[:, 1] - 1
    lengths: Tokens = part.starts(last) + part.sizes[last] - part.starts(first) - (last - first + 1)
    return lengths
