"""What view sources read and what they make: texts that form a positive pair."""

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
    """Texts that form a positive pair: an anchor, its positives, and the identity of the source text.

    Attributes:
        negatives: texts known to differ in meaning from the anchor (SimCSE's hard negatives); as many for all.
        fell_back: how many of them were missing, the original standing in.
        document: the document that the texts are spans of, -1 for none.
        spans: where in it, (first token, last token + 1) of the anchor, then of each positive; ``</s>`` is not counted.
    """

    anchor: Tokens
    positives: Sequence[Tokens]
    identity: int
    negatives: Sequence[Tokens] = ()
    fell_back: int = 0
    document: int = -1
    spans: Sequence[tuple[int, int]] = ()


class ViewSource(Protocol):
    """Makes the pairs of one item; pure but for reading the data set."""

    positives: int
    """Number of positives for each anchor."""

    @property
    def text_lengths(self) -> npt.NDArray[np.integer[Any]]:
        """(items, texts) greatest lengths of the texts of an item, whatever the epoch."""

    def __call__(self, index: int, rng: np.random.Generator) -> list[RawInstance]:
        """The pairs of item ``index``; every random draw comes from ``rng``."""
