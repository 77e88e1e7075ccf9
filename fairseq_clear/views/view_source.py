"""The interface of view sources, which turn items of the data set into positive pairs of texts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fairseq_clear.seeding import Draws, rng_for
from fairseq_clear.text.documents import content_hashes
from fairseq_clear.tokens import Ragged, Tokens, as_tokens

FRAME = 2  # <s> and </s>


class TokenSource(Protocol):
    """A data set of token ids with known lengths. It may have a method ``rows(indices)``, which reads several at once."""

    sizes: Tokens

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Any: ...


def read_rows(texts: TokenSource, indices: Tokens) -> Ragged:
    """Read items of a data set, at once if it can."""
    if hasattr(texts, "rows"):
        rows: Ragged = texts.rows(indices)
        return rows
    return Ragged.of([as_tokens(texts[index]) for index in indices.tolist()])


@dataclass(frozen=True)
class RawInstance:
    """Texts that form a positive pair, before augmentation: an anchor and its positives.

    Attributes:
        anchor: (n,) int64 token ids, with ``<s>`` and ``</s>``.
        positives: one or more texts like ``anchor``; the same number in every instance of a source.
        identity: hash of the source text. Instances with the same identity are not negatives of each other.
        negatives: texts that differ in meaning from the anchor (SimCSE's hard negatives); the same number in every instance.
        fell_back: number of texts that were missing and replaced by the original text.
        document: index of the document that the texts are spans of; -1 if they are not spans.
        spans: (begin, end) in that document, end exclusive, of the anchor and then of each positive. Positions do not count
            ``</s>``.
    """

    anchor: Tokens
    positives: Sequence[Tokens]
    identity: int
    negatives: Sequence[Tokens] = ()
    fell_back: int = 0
    document: int = -1
    spans: Sequence[tuple[int, int]] = ()


@dataclass(frozen=True)
class Pairs:
    """The positive pairs of a batch of items: N anchors, each with P positives and H hard negatives.

    Attributes:
        texts: N * (1 + P + H) rows, with ``<s>`` and ``</s>``: the first anchor, its positives, its negatives, the next anchor.
        identity: (N,) int64, hash of the source text of each anchor.
        negative_identity: (N * H,) int64, hash of each hard negative.
        fell_back: number of texts that were missing and replaced by the original text.
        document: (N,) index of the document that an anchor is a span of; None if texts are not spans of documents.
        spans: (N, 1 + P, 2) begin and end in that document of each anchor and positive, or None.
    """

    texts: Ragged
    identity: Tokens
    negative_identity: Tokens
    fell_back: int = 0
    document: Tokens | None = None
    spans: Tokens | None = None

    @classmethod
    def of(cls, instances: Sequence[RawInstance]) -> "Pairs":
        """Join the pairs of all items."""
        rows = [text for one in instances for text in (one.anchor, *one.positives, *one.negatives)]
        identity = np.array([one.identity for one in instances], np.int64)
        negatives = content_hashes(Ragged.of([text for one in instances for text in one.negatives]))
        missing, document, spans = sum(one.fell_back for one in instances), None, None
        if any(one.document >= 0 for one in instances):
            document = np.array([one.document for one in instances], np.int64)
            spans = np.array([one.spans for one in instances], np.int64)
        return cls(Ragged.of(rows), identity, negatives, missing, document, spans)

    @property
    def each(self) -> int:
        """1 + P + H, the number of texts of an anchor."""
        return len(self.texts) // max(len(self.identity), 1)

    def anchors(self) -> Ragged:
        """The N anchors."""
        return self.texts.select(np.arange(0, len(self.texts), self.each))


class ViewSource:
    """Makes the positive pairs of items. Does not modify the data set; every random number is of ``rng``, or ``draws``.

    A source defines either ``__call__``, for one item, or ``pairs``, for a batch, which is faster.

    Attributes:
        text_lengths: (items, texts) upper bounds, over all epochs, of the lengths of an item's texts: anchor, positives and
            negatives of its first instance, then those of the next.
        positives: number of positives of each anchor.
        negatives: number of hard negatives of each anchor.
        mlm_input: input of the masked language model, one text per item; None if it reads anchors of documents instead.
        mlm_reads_anchors: whether ``mlm_input`` is the anchor of each item, cut to the maximum length.
        anchors: number of anchors of an item; each has an instance of its own.
    """

    text_lengths: npt.NDArray[np.integer[Any]]
    positives: int = 1
    negatives: int = 0
    mlm_input: TokenSource | None = None
    mlm_reads_anchors: bool = False
    anchors: int = 1

    def __call__(self, index: int, rng: np.random.Generator) -> list[RawInstance]:
        """Return the instances of item ``index``, one for each of its ``anchors``."""
        raise NotImplementedError

    def pairs(self, indices: Tokens, draws: Draws) -> Pairs:
        """Return the pairs of items (I,), those of one item after the other; ``draws`` has a row for each item."""
        found = [
            instance
            for index, key in zip(indices.tolist(), draws.key.tolist(), strict=True)
            for instance in self(index, rng_for(key))
        ]
        return Pairs.of(found)
