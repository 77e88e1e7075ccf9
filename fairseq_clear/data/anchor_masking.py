"""Masks the anchors of documents for the masked language model (DeCLUTR, section 3.2), with fairseq's own masking.

The paper: "We implement the MLM objective [...] on each anchor span in a minibatch and sum the losses". It does not say
whether the anchor that is embedded is masked. Its code masks anchors in place and embeds the masked ones; ``joint`` does the
same. ``separate`` leaves the views unmasked and adds masked copies of the anchors.
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
    """A data set that returns ``text`` for every index; ``Masker`` sets it before each call."""

    def __init__(self) -> None:
        self.text = torch.zeros(0, dtype=torch.long)

    def __getitem__(self, index: int) -> Any:
        return self.text


class Masker:
    """Masks single texts as fairseq's MaskTokensDataset masks item ``key`` of a data set.

    Args:
        make: builds fairseq's MaskTokensDataset over a data set of texts.
        symbols: ids that do not stand for text (``<mask>``, ``<del>``); they are neither masked nor predicted.
        padding: target id of the positions where nothing is predicted.
        mask: id of ``<mask>``.
    """

    def __init__(self, make: MakeMasks, symbols: Sequence[int], padding: int) -> None:
        self._text = _OneText()
        self._sources, self._targets = make(self._text, False), make(self._text, True)
        self._symbols, self._padding = list(symbols), padding

    def __call__(self, tokens: Tokens, epoch: int, key: int) -> tuple[Tokens, Tokens]:
        """Return the masked text and its targets, both (n,)."""
        is_symbol = np.isin(tokens, self._symbols)
        # Symbols are passed as padding: where fairseq masks padding, the target is padding too, so nothing is predicted.
        self._text.text = torch.from_numpy(np.where(is_symbol, self._padding, tokens))
        source, target = (self._draw(masks, epoch, key) for masks in (self._sources, self._targets))
        return np.where(is_symbol, tokens, source), np.where(is_symbol, self._padding, target)

    def _draw(self, masks: Any, epoch: int, key: int) -> Tokens:
        # Bypass fairseq's LRU cache of items: its key does not contain the text.
        drawn: Tokens = type(masks).__getitem_cached__.__wrapped__(masks, masks.seed, epoch, key).numpy()
        return drawn


class AnchorMasks:
    """Masks the anchors of an item. The masks depend only on seed, epoch, item and anchor.

    Args:
        maskers: one for each masked copy; exactly one if ``joint``.
        anchors: A, the number of anchors of each item.
        cut: truncates a text to the encoder's maximum length.
        joint: mask the anchors that are embedded, instead of copies of them.
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
        """Return masked copies of an item's A anchors, and their targets: the first copy of all anchors, then the second."""
        pairs = [
            masker(self.cut(pair.anchor), epoch, index * self.anchors + number)
            for masker in self.maskers
            for number, pair in enumerate(raw)
        ]
        return [source for source, _ in pairs], [target for _, target in pairs]

    def views(self, instances: Sequence[Instance], index: int, epoch: int) -> list[Instance]:
        """Return the instances with masked anchors; masking comes after augmentation."""
        masked = [
            self.maskers[0](instance.anchor, epoch, index * self.anchors + number)
            for number, instance in enumerate(instances)
        ]
        return [
            replace(instance, anchor=source, anchor_target=target)
            for instance, (source, target) in zip(instances, masked, strict=True)
        ]
