"""The interface of view sources: what they read, and the positive pairs that they make."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fairseq_clear.augmentations.base import Tokens

__all__ = ["RawInstance", "TokenSource", "ViewSource"]


class TokenSource(Protocol):
    """A data set of token ids with known lengths."""

    sizes: Tokens

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Any: ...


@dataclass(frozen=True)
class RawInstance:
    """Texts that form a positive pair, before augmentation: an anchor and its positives.

    Attributes:
        anchor: (n,) int64 token ids, with ``<s>`` and ``</s>``.
        positives: one or more texts like ``anchor``; the same number in every instance of a source.
        identity: of the source text; instances of equal identity are not negatives of each other.
        negatives: texts that differ in meaning from the anchor (SimCSE's hard negatives); the same number in every instance.
        fell_back: how many texts were missing and replaced by the original.
        document: the document that the texts are spans of, -1 for none.
        spans: (first token, last token + 1) in that document, of the anchor, then of each positive; ``</s>`` is not counted.
    """

    anchor: Tokens
    positives: Sequence[Tokens]
    identity: int
    negatives: Sequence[Tokens] = ()
    fell_back: int = 0
    document: int = -1
    spans: Sequence[tuple[int, int]] = ()


class ViewSource(ABC):
    """Makes the positive pairs of an item. Reads the data set and changes nothing; every random draw comes from ``rng``.

    Attributes:
        text_lengths: (items, texts) upper bounds of the lengths of an item's texts in every epoch, in the order in which its
            instances name them: anchor, positives, negatives.
        positives: number of positives of each anchor.
        negatives: number of hard negatives of each anchor.
        texts: what a masked language model reads, one text per item. None where it reads the anchors instead.
        anchors: number of instances of an item.
    """

    text_lengths: npt.NDArray[np.integer[Any]]
    positives: int = 1
    negatives: int = 0
    texts: TokenSource | None = None
    anchors: int = 1

    @abstractmethod
    def __call__(self, index: int, rng: np.random.Generator) -> list[RawInstance]:
        """The instances of item ``index``, ``anchors`` in number."""
