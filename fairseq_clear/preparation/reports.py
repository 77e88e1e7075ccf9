"""What ``prepare`` counts and says at the end; plain data, importable without fairseq."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class DocumentLengths(Counter[int]):
    """Lengths in sentences -> number of documents. Memory grows with the number of different lengths only."""

    @property
    def documents(self) -> int:
        """Number of documents."""
        return sum(self.values())

    @property
    def sentences(self) -> int:
        """Number of sentences in all of them."""
        return sum(length * count for length, count in self.items())

    @property
    def median(self) -> float:
        """Median number of sentences of a document; 0 without any."""
        return (self._length_at((self.documents - 1) // 2) + self._length_at(self.documents // 2)) / 2

    def _length_at(self, rank: int) -> int:
        for length, count in sorted(self.items()):
            rank -= count
            if rank < 0:
                return length
        return 0

    def summary(self) -> str:
        """Return both counts and the median."""
        return f"{self.documents:,} documents, {self.sentences:,} sentences, median {self.median:g} a document"


@dataclass(frozen=True)
class SplitCounts:
    """Sizes of one split. ``tokens`` counts every id stored: pieces, a ``</s>`` a line, blank lines' too."""

    lengths: DocumentLengths
    tokens: int
    unknown: int

    def as_json(self) -> dict[str, Any]:
        """Return what ``clear.json`` says of the split."""
        lengths = self.lengths
        counts = {"documents": lengths.documents, "sentences": lengths.sentences, "median_sentences": lengths.median}
        return {**counts, "tokens": self.tokens, "unknown": self.unknown}


@dataclass(frozen=True)
class ParaphraseCounts:
    """Sizes of one split of an aligned text. Where it is ``blank``, training falls back to the original."""

    sentences: int
    blank: int
    tokens: int
    unknown: int


@dataclass(frozen=True)
class TextReport:
    """What ``--text-only`` wrote."""

    dest: Path
    lengths: DocumentLengths
    seconds: float

    def summary(self) -> str:
        """Return the closing line."""
        return f"{self.dest} | {self.lengths.summary()} | {self.seconds:.1f} s"


@dataclass(frozen=True)
class PrepareReport:
    """What was made: the folder, the counts of each split over all shards, dictionary size, seconds.

    ``paraphrases`` holds for each name (sentences, blank ones) over all splits and shards.
    """

    dest: Path
    splits: dict[str, SplitCounts]
    vocabulary: int
    seconds: float
    paraphrases: dict[str, tuple[int, int]] = field(default_factory=dict)

    def summary(self) -> str:
        """Return the closing line."""
        parts = []
        for name, counts in self.splits.items():
            rate = 100 * counts.unknown / max(counts.tokens, 1)
            parts.append(f"{name}: {counts.lengths.summary()}, {counts.tokens:,} tokens, {rate:.3f} % unknown")
        for name, (sentences, blank) in self.paraphrases.items():
            parts.append(f"{name}: {blank:,} of {sentences + blank:,} paraphrases blank")
        return f"{self.dest} | {' | '.join(parts)} | dict.txt: {self.vocabulary:,} symbols | {self.seconds:.1f} s"

    @property
    def lengths(self) -> DocumentLengths:
        """Of the training documents."""
        return self.splits["train"].lengths
