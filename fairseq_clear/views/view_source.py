"""The interface of view sources, which turn an item of the data set into positive pairs of texts."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from fairseq_clear.tokens import Tokens

FRAME = 2  # <s> and </s>


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


@dataclass
class Instance:
    """An anchor with its positives, and the identity that marks duplicates.

    Attributes:
        anchor: (L,) token ids.
        positives: token ids of each positive; all instances of a data set have the same number.
        identity: hash of the source text, before paraphrase and augmentation.
        text_length: number of tokens of the texts that the views were made of, for logging.
        words, substituted: number of words of the texts, and of those that were substituted; 0 if no step substitutes words.
        negatives: token ids of texts known to differ in meaning (hard negatives); all instances have the same number.
        negative_identities: hash of the source text of each hard negative.
        draw: random number in [0, 1) of this instance and epoch, with which the model may make a choice.
        fell_back: number of texts that were missing and replaced by the original.
        anchor_target: (L,) MLM targets of a masked anchor, padding where nothing is predicted; None if it is not masked.
    """

    anchor: Tokens
    positives: Sequence[Tokens]
    identity: int
    text_length: int
    words: int = 0
    substituted: int = 0
    negatives: Sequence[Tokens] = ()
    negative_identities: Sequence[int] = ()
    draw: float = 0.0
    fell_back: int = 0
    anchor_target: Tokens | None = None


class ViewSource(ABC):
    """Makes the positive pairs of an item. Does not modify the data set; every random draw comes from ``rng``.

    Attributes:
        text_lengths: (items, texts) upper bounds, over all epochs, of the lengths of an item's texts: anchor, positives and
            negatives of its first instance, then those of the next.
        positives: number of positives of each anchor.
        negatives: number of hard negatives of each anchor.
        mlm_input: input of the masked language model, one text per item; None if it reads the anchors instead.
        anchors: number of anchors of an item; each has an instance of its own.
    """

    text_lengths: npt.NDArray[np.integer[Any]]
    positives: int = 1
    negatives: int = 0
    mlm_input: TokenSource | None = None
    anchors: int = 1

    @abstractmethod
    def __call__(self, index: int, rng: np.random.Generator) -> list[RawInstance]:
        """Return the instances of item ``index``, one for each of its ``anchors``."""


def as_tokens(item: Any) -> Tokens:
    """Convert an item of a data set to token ids (n,)."""
    # not np.asarray, with which numpy 2 warns about each tensor
    tokens: Tokens = torch.as_tensor(item).numpy().astype(np.int64, copy=False)
    return tokens
