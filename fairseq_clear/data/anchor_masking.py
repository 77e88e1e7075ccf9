"""The masked language model on the anchors of documents (DeCLUTR, section 3.2), by fairseq's own masking.

The paper: "We implement the MLM objective [...] on each anchor span in a minibatch and sum the losses". It does not say
whether the embedded anchor is the masked one; its code masks anchors in place and embeds those. ``joint`` data are such:
the anchor among the views is masked and has targets. ``separate`` data keep the views as they are and add masked copies of
the anchors' texts.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fairseq_clear.augmentations.base import Tokens
from fairseq_clear.data.batch import Instance
from fairseq_clear.views.view_source import RawInstance

__all__ = ["AnchorMasks", "Masker"]

MakeMasks = Callable[[Any, bool], Any]
"""(data set of texts, whether to return targets) -> fairseq's MaskTokensDataset."""


class _OneText:
    """A data set of one text at a time."""

    def __init__(self) -> None:
        self.text = torch.zeros(0, dtype=torch.long)

    def __getitem__(self, index: int) -> Any:
        return self.text


class Masker:
    """Masks single texts as fairseq's MaskTokensDataset masks item ``key`` of a data set.

    Args:
        make: the stock data set over another one.
        symbols: ids that are no words of a text (``<mask>``, ``<del>``), which are neither masked nor predicted.
        padding: id that stands where nothing is predicted.
        mask: id of ``<mask>``.
    """

    def __init__(self, make: MakeMasks, symbols: Sequence[int], padding: int) -> None:
        self._text = _OneText()
        self._sources, self._targets = make(self._text, False), make(self._text, True)
        self._symbols, self._padding = list(symbols), padding

    def __call__(self, tokens: Tokens, epoch: int, key: int) -> tuple[Tokens, Tokens]:
        """The masked text and its targets, both (n,)."""
        is_symbol = np.isin(tokens, self._symbols)
        # padding is what the stock code may mask without predicting anything there
        self._text.text = torch.from_numpy(np.where(is_symbol, self._padding, tokens))
        source, target = (self._draw(masks, epoch, key) for masks in (self._sources, self._targets))
        return np.where(is_symbol, tokens, source), np.where(is_symbol, self._padding, target)

    def _draw(self, masks: Any, epoch: int, key: int) -> Tokens:
        # past the cache of the last items, whose key lacks the text
        drawn: Tokens = type(masks).__getitem_cached__.__wrapped__(masks, masks.seed, epoch, key).numpy()
        return drawn


class AnchorMasks:
    """Masks the anchors of an item, each by (seed, epoch, item, anchor).

    Args:
        maskers: one for each masked copy (one alone where ``joint``).
        anchors: A, of each item.
        cut: to the length that the encoder takes.
        joint: whether the embedded anchors are the masked ones.
    """

    def __init__(
        self, maskers: Sequence[Masker], anchors: int, cut: Callable[[Tokens], Tokens], *, joint: bool = False
    ) -> None:
        self.maskers, self.anchors, self.cut, self.joint = maskers, anchors, cut, joint

    @property
    def rows(self) -> int:
        """Number of masked texts of an item, in addition to its views."""
        return 0 if self.joint else self.anchors * len(self.maskers)

    def texts(self, raw: Sequence[RawInstance], index: int, epoch: int) -> tuple[list[Tokens], list[Tokens]]:
        """The masked copies of the A anchors of an item, the first copy of each, then the second; and their targets."""
        pairs = [
            masker(self.cut(pair.anchor), epoch, index * self.anchors + number)
            for masker in self.maskers
            for number, pair in enumerate(raw)
        ]
        return [source for source, _ in pairs], [target for _, target in pairs]

    def views(self, instances: Sequence[Instance], index: int, epoch: int) -> list[Instance]:
        """The instances, their anchors masked after augmentation."""
        masked = [
            self.maskers[0](instance.anchor, epoch, index * self.anchors + number)
            for number, instance in enumerate(instances)
        ]
        return [
            replace(instance, anchor=source, anchor_target=target)
            for instance, (source, target) in zip(instances, masked, strict=True)
        ]
