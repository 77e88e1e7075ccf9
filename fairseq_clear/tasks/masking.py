"""Makes masked copies of texts for the task with fairseq's MaskTokensDataset."""

from functools import partial
from typing import Any

import torch
from fairseq import utils
from fairseq.data import Dictionary, MaskTokensDataset

from fairseq_clear.data.anchor_masking import AnchorMasks, Masker
from fairseq_clear.tasks.config import ClearLMConfig
from fairseq_clear.text.data_folders import load_tokenizer
from fairseq_clear.views.view_maker import ViewMaker

__all__ = ["Masks"]

# Added to --seed for the masks of the second copy. The first copy has the same masks as in masked_lm.
COPY_SEED = 7_919


class Masks:
    """Makes the masked texts and targets of the masked language model.

    Args:
        cfg: the task's settings.
        dictionary: with ``<mask>`` and ``<del>``.
        mask, delete: their ids.
    """

    def __init__(self, cfg: ClearLMConfig, dictionary: Dictionary, *, mask: int, delete: int) -> None:
        self.cfg, self.dictionary, self.mask, self.delete = cfg, dictionary, mask, delete

    def texts(self, texts: Any) -> tuple[list[Any], list[Any]]:
        """Return masked copies of texts and their targets, as stock data sets.

        fairseq's LRUCacheDataset is not used: its key ignores the epoch, so a text that is read last in one epoch and first in
        the next would keep its masks, but not in a resumed run.
        """
        pairs = [
            [self._masked(texts, targets, seed=self._seed(copy)) for targets in (False, True)]
            for copy in range(self.cfg.mlm_copies)
        ]
        return [pair[0] for pair in pairs], [pair[1] for pair in pairs]

    def anchors(self, views: ViewMaker, *, joint: bool) -> AnchorMasks:
        """Return the masks for anchors of documents; with ``joint``, the anchors that are embedded are masked themselves."""
        maskers = [
            Masker(partial(self._masked, seed=self._seed(copy)), (self.mask, self.delete), self.dictionary.pad())
            for copy in range(1 if joint else self.cfg.mlm_copies)
        ]
        return AnchorMasks(maskers, views.source.anchors, views.cut, joint=joint)

    def _seed(self, copy: int) -> int:
        return int(self.cfg.seed) + copy * COPY_SEED

    def _masked(self, texts: Any, return_masked_tokens: bool, *, seed: int) -> MaskTokensDataset:
        cfg = self.cfg
        return MaskTokensDataset(
            texts,
            self.dictionary,
            pad_idx=self.dictionary.pad(),
            mask_idx=self.mask,
            return_masked_tokens=return_masked_tokens,
            seed=seed,
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
