"""Averaged word vectors from a ``.vec`` (word2vec, fastText) or GloVe text file: the weak baseline of many papers."""

import gzip
import lzma
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fairseq_clear.errors import UserError

__all__ = ["WordVectors"]

Floats = npt.NDArray[np.float32]
OPENERS: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open}
WORD = re.compile(r"\w+(?:['-]\w+)*|[^\w\s]")


class WordVectors:
    """Encodes a text as the mean of its words' vectors; words that the file lacks, and lower-cased lacks, count for nothing.

    Args:
        path: lines of a word and its numbers, separated by spaces; a first line of two numbers (count, dimension) is
            skipped; also .gz or .xz.
        words: read vectors of these words alone (and their lower-case forms), which saves memory.

    Attributes:
        unknown: of the last call of ``encode``, the words without a vector.

    Raises:
        UserError: a missing or empty file, or a malformed line, with its number.
    """

    def __init__(self, path: str | Path, words: set[str] | None = None) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise UserError(f"{path}: no such file of word vectors")
        wanted = None if words is None else words | {word.lower() for word in words}
        index: dict[str, int] = {}
        rows: list[Floats] = []
        for number, (word, numbers) in _lines(self.path):
            if word in index or (wanted is not None and word not in wanted):
                continue
            vector = _parse(numbers, self.path, number)
            if rows and len(vector) != len(rows[0]):
                raise UserError(f"{path}:{number}: {len(vector)} numbers after lines of {len(rows[0])}")
            index[word] = len(rows)
            rows.append(vector)
        if not rows:
            raise UserError(f"{path}: holds no word vector" + ("" if words is None else " of the words asked for"))
        self._index, self._matrix = index, np.stack(rows)  # (V, D)
        self.unknown = 0

    def encode(self, sentences: Sequence[str], batch_size: int = 32) -> Floats:
        """(N, D); a text without a known word is 0. ``batch_size`` is taken for the protocol's sake."""
        vectors = np.zeros((len(sentences), self._matrix.shape[1]), np.float32)
        self.unknown = 0
        for row, text in enumerate(sentences):
            found = [self._index.get(word, self._index.get(word.lower())) for word in WORD.findall(text)]
            known = [place for place in found if place is not None]
            self.unknown += len(found) - len(known)
            if known:
                vectors[row] = self._matrix[known].mean(axis=0)
        return vectors

    def describe(self) -> dict[str, Any]:
        """What a report names."""
        return {"word_vectors": str(self.path), "words": len(self._index), "dimension": int(self._matrix.shape[1])}


def _lines(path: Path) -> Iterator[tuple[int, tuple[str, str]]]:
    """(line number, (word, rest)); GloVe has words with spaces in them, so the numbers are counted from the right."""
    dimension: int | None = None
    # Published files hold a few broken bytes in words that no text has.
    with OPENERS.get(path.suffix, open)(path, "rt", encoding="utf-8", errors="replace") as file:
        for number, raw in enumerate(file, 1):
            line = raw.rstrip("\n\r ")
            if number == 1 and re.fullmatch(r"\d+ \d+", line):
                dimension = int(line.split()[1])
                continue
            if not line:
                continue
            if dimension is None:
                dimension = len(line.split(" ")) - 1
            parts = line.rsplit(" ", dimension)
            if len(parts) != dimension + 1 or not dimension:
                raise UserError(f"{path}:{number}: not a word and {dimension} numbers")
            yield number, (parts[0], " ".join(parts[1:]))


def _parse(numbers: str, path: Path, line: int) -> Floats:
    try:
        vector: Floats = np.array(numbers.split(" "), dtype=np.float32)
    except ValueError:
        raise UserError(f"{path}:{line}: a number is malformed: {numbers[:40]!r}") from None
    return vector
