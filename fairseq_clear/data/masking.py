"""Masks texts, and anchors of documents (DeCLUTR, section 3.2), for the masked language model with fairseq's own masking.

DeCLUTR: "We implement the MLM objective [...] on each anchor span in a minibatch and sum the losses". It does not say
whether the anchor that is embedded is masked. Its code masks anchors in place and embeds the masked ones; ``joint`` does the
same. ``separate`` leaves the views unmasked and adds masked copies of the anchors.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from fairseq import utils
from fairseq.data import Dictionary, MaskTokensDataset

from fairseq_clear import patches
from fairseq_clear.text.data_folders import load_tokenizer
from fairseq_clear.tokens import Tokens
from fairseq_clear.views.view_maker import ViewMaker
from fairseq_clear.views.view_source import Instance, RawInstance

patches.apply()

__all__ = ["AnchorMasks", "Masker", "Masks"]

# Added to --seed for the masks of the second copy. The first copy has the same masks as in masked_lm.
COPY_SEED = 7_919

MakeMasks = Callable[[Any, bool], Any]
"""(data set of texts, whether to return targets) -> fairseq's MaskTokensDataset."""


class Masker:
    """Masks single texts as fairseq's MaskTokensDataset masks item ``key`` of a data set.

    Args:
        make: builds fairseq's MaskTokensDataset over a data set of texts.
        symbols: ids that do not stand for text (``<mask>``, ``<del>``); they are neither masked nor predicted.
        padding: target id of the positions where nothing is predicted.
    """

    def __init__(self, make: MakeMasks, symbols: Sequence[int], padding: int) -> None:
        self._sources, self._targets = make({}, False), make({}, True)
        self._symbols, self._padding = list(symbols), padding

    def __call__(self, tokens: Tokens, epoch: int, key: int) -> tuple[Tokens, Tokens]:
        """Return the masked text and its targets, both (n,)."""
        is_symbol = np.isin(tokens, self._symbols)
        # Symbols are passed as padding: where fairseq masks padding, the target is padding too, so nothing is predicted.
        text = torch.from_numpy(np.where(is_symbol, self._padding, tokens))
        for masks in (self._sources, self._targets):
            masks.dataset = {key: text}
        # Bypass fairseq's LRU cache of items: its key does not contain the text.
        source, target = (
            type(masks).__getitem_cached__.__wrapped__(masks, masks.seed, epoch, key).numpy()
            for masks in (self._sources, self._targets)
        )
        return np.where(is_symbol, tokens, source), np.where(is_symbol, self._padding, target)


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

    def copies(self, raw: Sequence[RawInstance], index: int, epoch: int) -> tuple[list[Tokens], list[Tokens]]:
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


class Masks:
    """Makes the masked texts and targets of the masked language model.

    Args:
        cfg: the settings of the task.
        dictionary: with ``<mask>`` and ``<del>``.
    """

    def __init__(self, cfg: Any, dictionary: Dictionary) -> None:
        self.cfg, self.dictionary = cfg, dictionary

    def copies(self, texts: Any) -> tuple[list[Any], list[Any]]:
        """Return masked copies of texts and their targets, as stock data sets.

        fairseq's LRUCacheDataset is not used: its key ignores the epoch, so a text that is read last in one epoch and first in
        the next would keep its masks, but not in a resumed run.
        """
        copies = range(self.cfg.mlm_copies)
        return [self._masked(texts, False, copy) for copy in copies], [
            self._masked(texts, True, copy) for copy in copies
        ]

    def anchors(self, views: ViewMaker, *, joint: bool) -> AnchorMasks:
        """Return the masks for anchors of documents; with ``joint``, the anchors that are embedded are masked themselves."""
        symbols = [self.dictionary.index(symbol) for symbol in ("<mask>", "<del>")]
        maskers = [
            Masker(partial(self._masked, copy=copy), symbols, self.dictionary.pad())
            for copy in range(1 if joint else self.cfg.mlm_copies)
        ]
        return AnchorMasks(maskers, views.source.anchors, views.cut, joint=joint)

    def _masked(self, texts: Any, return_masked_tokens: bool, copy: int) -> MaskTokensDataset:
        cfg = self.cfg
        return MaskTokensDataset(
            texts,
            self.dictionary,
            pad_idx=self.dictionary.pad(),
            mask_idx=self.dictionary.index("<mask>"),
            return_masked_tokens=return_masked_tokens,
            seed=int(cfg.seed) + copy * COPY_SEED,
            mask_prob=cfg.mask_prob,
            leave_unmasked_prob=cfg.leave_unmasked_prob,
            random_token_prob=cfg.random_token_prob,
            freq_weighted_replacement=cfg.freq_weighted_replacement,
            mask_whole_words=self._word_starts() if cfg.mask_whole_words else None,
            mask_multiple_length=cfg.mask_multiple_length,
            mask_stdev=cfg.mask_stdev,
        )

    def _word_starts(self) -> torch.Tensor:
        """(vocabulary,) bytes, 1 where a token begins a word. (Stock masked_lm reads an attribute that is never set.)"""
        tokenizer = load_tokenizer(utils.split_paths(self.cfg.data)[0])
        starts = [
            index < self.dictionary.nspecial or tokenizer.is_word_start(symbol)
            for index, symbol in enumerate(self.dictionary.symbols)
        ]
        return torch.ByteTensor(starts)
