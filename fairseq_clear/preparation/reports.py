"""What ``prepare`` counts and says at the end; plain data, importable without fairseq."""

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class SplitCounts:
    """Sizes of one split. ``tokens`` counts every id stored: pieces, a ``</s>`` a line, blank lines' too."""

    documents: int
    sentences: int
    tokens: int
    unknown: int


@dataclass(frozen=True)
class ParaphraseCounts:
    """Sizes of one split of an aligned text. Where it is ``blank``, training falls back to the original."""

    sentences: int
    blank: int
    tokens: int
    unknown: int


@dataclass(frozen=True)
class TextReport:
    """What ``text_only`` wrote, and anything else worth a word."""

    dest: Path
    documents: int
    sentences: int
    seconds: float
    notes: tuple[str, ...] = ()

    def summary(self) -> str:
        """Return the closing line."""
        parts = [str(self.dest), f"{self.documents:,} documents, {self.sentences:,} sentences", *self.notes]
        return " | ".join([*parts, f"{self.seconds:.1f} s"])


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
    notes: tuple[str, ...] = ()

    def summary(self) -> str:
        """Return the closing line."""
        parts = []
        for name, counts in self.splits.items():
            rate = 100 * counts.unknown / max(counts.tokens, 1)
            parts.append(
                f"{name}: {counts.documents:,} documents, {counts.sentences:,} sentences, "
                f"{counts.tokens:,} tokens, {rate:.3f} % unknown"
            )
        for name, (sentences, blank) in self.paraphrases.items():
            parts.append(f"{name}: {blank:,} of {sentences + blank:,} paraphrases blank")
        parts += self.notes
        return f"{self.dest} | {' | '.join(parts)} | dict.txt: {self.vocabulary:,} symbols | {self.seconds:.1f} s"
