"""The interface of view sources, which turn an item of the data set into positive pairs of texts."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from fairseq_clear.augmentations.base import Tokens

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


class ViewSource(ABC):
    """Makes the positive pairs of an item. Does not modify the data set; every random draw comes from ``rng``.

    Attributes:
        text_lengths: (items, texts) upper bounds, over all epochs, of the lengths of an item's texts: anchor, positives and
            negatives of its first instance, then those of the next.
        positives: number of positives of each anchor.
        negatives: number of hard negatives of each anchor.
        texts: input of the masked language model, one text per item; None if it reads the anchors instead.
        anchors: number of anchors of an item; each has an instance of its own.
    """

    text_lengths: npt.NDArray[np.integer[Any]]
    positives: int = 1
    negatives: int = 0
    texts: TokenSource | None = None
    anchors: int = 1

    @abstractmethod
    def __call__(self, index: int, rng: np.random.Generator) -> list[RawInstance]:
        """Return the instances of item ``index``, one for each of its ``anchors``."""


def as_tokens(item: Any) -> Tokens:
    """Convert an item of a data set to token ids (n,)."""
    # not np.asarray, with which numpy 2 warns about each tensor
    tokens: Tokens = torch.as_tensor(item).numpy().astype(np.int64, copy=False)
    return tokens


def cut_text(tokens: Tokens, most: int) -> Tokens:
    """Cut a text to ``most`` tokens, keeping its last one."""
    return tokens if len(tokens) <= most else np.append(tokens[: most - 1], tokens[-1])
