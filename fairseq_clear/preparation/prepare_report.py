"""Counts of ``prepare``, and the summary line that it prints; importable without fairseq."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class DocumentLengths(Counter[int]):
    """Counts documents by their length in sentences; memory only grows with the number of distinct lengths."""

    @property
    def documents(self) -> int:
        """Number of documents."""
        return sum(self.values())

    @property
    def sentences(self) -> int:
        """Number of sentences in all documents."""
        return sum(length * count for length, count in self.items())

    @property
    def median(self) -> float:
        """Median number of sentences of a document; 0 without documents."""
        return (self._length_at((self.documents - 1) // 2) + self._length_at(self.documents // 2)) / 2

    def _length_at(self, rank: int) -> int:
        for length, count in sorted(self.items()):
            rank -= count
            if rank < 0:
                return length
        return 0

    def summary(self) -> str:
        """Describe both counts and the median."""
        return f"{self.documents:,} documents, {self.sentences:,} sentences, median {self.median:g} a document"


@dataclass(frozen=True)
class SplitCounts:
    """Sizes of a text of a split.

    ``tokens`` counts all ids: pieces, and a ``</s>`` per line, including blank lines. Only paraphrases have ``blank``
    sentences, for which training uses the original.
    """

    lengths: DocumentLengths
    sentences: int
    blank: int
    tokens: int
    unknown: int

    def as_json(self, is_paraphrase: bool = False) -> dict[str, Any]:
        """The counts of a split, or of a paraphrase of it, for ``clear.json``."""
        both = {"tokens": self.tokens, "unknown": self.unknown}
        if is_paraphrase:
            return {"sentences": self.sentences, "blank": self.blank, **both}
        median = self.lengths.median
        return {"documents": self.lengths.documents, "sentences": self.sentences, "median_sentences": median, **both}


def sum_counts(counts: Sequence[SplitCounts]) -> SplitCounts:
    """The counts over several shards or splits."""
    lengths = DocumentLengths()
    for one in counts:
        lengths.update(one.lengths)
    names = ("sentences", "blank", "tokens", "unknown")
    return SplitCounts(lengths, *(sum(getattr(one, name) for one in counts) for name in names))


@dataclass(frozen=True)
class TextReport:
    """Result of ``--text-only``."""

    dest: Path
    lengths: DocumentLengths
    seconds: float

    def summary(self) -> str:
        """The summary line to print."""
        return f"{self.dest} | {self.lengths.summary()} | {self.seconds:.1f} s"


@dataclass(frozen=True)
class PrepareReport:
    """Result of ``prepare``: folder, counts of each split over all shards, size of the dictionary, seconds.

    ``paraphrases`` maps a name to (sentences, blank sentences) over all splits and shards.
    """

    dest: Path
    splits: dict[str, SplitCounts]
    vocabulary: int
    seconds: float
    paraphrases: dict[str, tuple[int, int]] = field(default_factory=dict)

    def summary(self) -> str:
        """The summary line to print."""
        parts = []
        for name, counts in self.splits.items():
            rate = 100 * counts.unknown / max(counts.tokens, 1)
            parts.append(f"{name}: {counts.lengths.summary()}, {counts.tokens:,} tokens, {rate:.3f} % unknown")
        for name, (sentences, blank) in self.paraphrases.items():
            parts.append(f"{name}: {blank:,} of {sentences + blank:,} paraphrases blank")
        return f"{self.dest} | {' | '.join(parts)} | dict.txt: {self.vocabulary:,} symbols | {self.seconds:.1f} s"

    @property
    def lengths(self) -> DocumentLengths:
        """Lengths of the training documents."""
        return self.splits["train"].lengths
