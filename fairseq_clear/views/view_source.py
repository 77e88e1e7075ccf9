"""The interface of view sources, which turn items of the data set into positive pairs of texts."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fairseq_clear.seeding import Draws, rng_for
from fairseq_clear.text.documents import content_hashes
from fairseq_clear.tokens import Ragged, Tokens

FRAME = 2  # <s> and </s>


class TokenSource(Protocol):
    """Texts with known lengths, between ``<s>`` and ``</s>``."""

    sizes: Tokens

    def rows(self, indices: Tokens) -> Ragged:
        """Return several texts."""


@dataclass(frozen=True)
class Pairs:
    """The positive pairs of a batch of items: N anchors, each with P positives and H hard negatives.

    Attributes:
        texts: N * (1 + P + H) rows, with ``<s>`` and ``</s>``: the first anchor, its positives, its negatives, the next anchor.
        identity: int64 hashes of what each pair is made of: (N,) for one text, (N, I) for the source text or document and each
            text of the pair. Rows that share a hash are not negatives of each other.
        negative_identity: (N * H,) int64, hash of each hard negative, or (N * H, I), I times the same.
        fell_back: number of texts that were missing and replaced by the original text.
        document: (N,) index of the document that contains each anchor; None if texts are not spans of documents.
        spans: (N, 1 + P, 2) begin and end of each anchor and positive in its document, or None.
    """

    texts: Ragged
    identity: Tokens
    negative_identity: Tokens = field(default_factory=lambda: np.zeros(0, np.int64))
    fell_back: int = 0
    document: Tokens | None = None
    spans: Tokens | None = None

    @property
    def each(self) -> int:
        """1 + P + H, the number of texts per anchor."""
        return len(self.texts) // max(len(self.identity), 1)

    def anchors(self) -> Ragged:
        """The N anchors."""
        return self.texts.select(np.arange(0, len(self.texts), self.each))

    @classmethod
    def of_documents(cls, texts: Ragged, identity: Tokens, document: Tokens, spans: Tokens) -> "Pairs":
        """Pairs of two texts of a document, which has the hash ``identity`` (N,)."""
        return cls(
            texts, np.column_stack([identity, content_hashes(texts).reshape(-1, 2)]), document=document, spans=spans
        )


class ViewSource:
    """Makes the positive pairs of items. Does not modify the data set. All random numbers come from ``rng`` or ``draws``.

    A source defines ``__call__``, for one item, or ``pairs``, for a batch, which is faster.

    Attributes:
        text_lengths: (items, texts) upper bounds on the lengths of an item's texts in any epoch: anchor, positives and
            negatives of its first pair, then of the next pair.
        positives: number of positives of each anchor.
        negatives: number of hard negatives of each anchor.
        mlm_input: input of the masked language model, one text per item; None for the anchors, cut to the maximum length.
        anchors: number of anchors of an item.
    """

    text_lengths: npt.NDArray[np.integer[Any]]
    positives: int = 1
    negatives: int = 0
    mlm_input: TokenSource | None = None
    anchors: int = 1

    def __call__(self, index: int, rng: np.random.Generator) -> Sequence[tuple[int, Sequence[Tokens]]]:
        """Return the identity (see ``Pairs``) and the texts (anchor, positives, hard negatives) of each anchor of an item."""
        raise NotImplementedError

    def pairs(self, indices: Tokens, draws: Draws) -> Pairs:
        """Return the pairs of items (I,), item by item; ``draws`` has a row for each item.

        Raises:
            ValueError: an item has other numbers of anchors or texts than the attributes say.
        """
        found: list[tuple[int, Sequence[Tokens]]] = []
        expected = [1 + self.positives + self.negatives] * self.anchors
        for index, key in zip(indices.tolist(), draws.key.tolist(), strict=True):
            made = self(index, rng_for(key))
            texts_of_pairs = [len(some) for _, some in made]
            if texts_of_pairs != expected:
                said = f"{type(self).__name__} made pairs of {texts_of_pairs} texts of item {index}"
                raise ValueError(f"{said}; by its anchors, positives and negatives, it makes {expected}")
            found += made
        texts = Ragged.of([text for _, some in found for text in some])
        negatives = Ragged.of([text for _, some in found for text in some[1 + self.positives :]])
        identity = np.array([identity for identity, _ in found], np.int64)
        return Pairs(texts, identity, negative_hashes(negatives, identity))


def negative_hashes(negatives: Ragged, identity: Tokens) -> Tokens:
    """Return the hashes of hard negatives, see ``Pairs.negative_identity``."""
    hashes = content_hashes(negatives)
    return hashes if identity.ndim == 1 else np.repeat(hashes[:, None], identity.shape[1], axis=1)
