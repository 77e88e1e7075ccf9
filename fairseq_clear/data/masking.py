"""Masks texts, and anchors of documents (DeCLUTR, section 3.2), for the masked language model.

The masks have the distribution of fairseq's MaskTokensDataset. Without views they are identical to its masks, so that a run
with ``--contrastive-weight 0`` equals masked_lm. With views, the masks of a batch are computed together.

DeCLUTR: "We implement the MLM objective [...] on each anchor span in a minibatch and sum the losses". It does not say
whether the anchor that is embedded is masked. Its code masks anchors in place and embeds the masked ones; ``joint`` does the
same. ``separate`` leaves the views unmasked and adds masked copies of the anchors.
"""

from collections.abc import Sequence
from functools import cached_property, partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from fairseq import utils
from fairseq.data import Dictionary, MaskTokensDataset

from fairseq_clear import patches
from fairseq_clear.seeding import Draws
from fairseq_clear.text.data_folders import load_tokenizer
from fairseq_clear.text.tokenizers import word_starts
from fairseq_clear.tokens import Bools, Ragged, Tokens, ranges

patches.apply()

# Added to --seed for the masks of the second copy. The first copy has the same masks as in masked_lm.
COPY_SEED = 7_919
MASKS = 1 << 40  # first ``view`` of the draws of masks; the numbers of views are smaller
COUNT, PLACE, KIND, TOKEN = range(4)  # purposes of the draws
SETTINGS = (  # of MaskTokensDataset, by the names of its arguments
    *("mask_prob", "leave_unmasked_prob", "random_token_prob", "freq_weighted_replacement", "mask_whole_words"),
    *("mask_multiple_length", "mask_stdev"),
)


class Masks:
    """Makes the masked texts and targets of the masked language model.

    Args:
        dictionary: with ``<mask>`` and ``<del>``. These do not stand for text: they are neither masked nor predicted.
        as_stock: make the masks of MaskTokensDataset, which draws for one text at a time.
    """

    def __init__(self, cfg: Any, dictionary: Dictionary, *, as_stock: bool) -> None:
        # a plain namespace: omegaconf takes 10 us to read a setting, and these are read for every text
        self.cfg = SimpleNamespace(**{name: getattr(cfg, name) for name in ("data", "seed", *SETTINGS)})
        self.dictionary = dictionary
        # settings for wav2vec, unusual for text
        self.is_unusual = cfg.mask_multiple_length > 1 or cfg.mask_stdev > 0
        self.as_stock = as_stock or self.is_unusual
        self.copies: int = cfg.mlm_copies
        self.padding, self.mask = dictionary.pad(), dictionary.index("<mask>")
        self.delete = dictionary.index("<del>")

    def __call__(self, texts: Ragged, epochs: Any, keys: Tokens, copy: int = 0) -> tuple[Ragged, Ragged]:
        """Mask texts.

        Args:
            texts: R rows.
            epochs: one number, or one for each row (R,).
            keys: (R,) what the masks of each row depend on besides seed and epoch, such as the index of its item.
            copy: number of the masked copy.

        Returns:
            The masked texts, and their targets, which are padding where nothing is predicted.
        """
        return self._as_stock(texts, epochs, keys, copy) if self.as_stock else self._drawn(texts, epochs, keys, copy)

    def _drawn(self, texts: Ragged, epochs: Any, keys: Tokens, copy: int) -> tuple[Ragged, Ragged]:
        cfg, draws = self.cfg, Draws.of(int(self.cfg.seed), epochs, keys, MASKS + copy)
        starts, units = None, texts.lengths  # (R,) number of words, or of tokens
        if cfg.mask_whole_words:
            begins = self._word_starts[texts.tokens]
            begins[texts.offsets[:-1][texts.lengths > 0]] = True
            starts = np.flatnonzero(begins)
            units = np.bincount(texts.rows[starts], minlength=len(texts))
        counts = np.floor(cfg.mask_prob * units + draws.per_row(COUNT)).astype(np.int64)
        rows, slots, _ = draws.choose(PLACE, np.minimum(counts, units), units)
        kind = draws.uniform(KIND, rows, slots)
        if starts is None:
            places = texts.offsets[rows] + slots
        else:
            words = (units.cumsum() - units)[rows] + slots
            lengths = np.diff(starts, append=len(texts.tokens))[words]
            places, rows, kind = ranges(starts[words], lengths), np.repeat(rows, lengths), np.repeat(kind, lengths)
        found = texts.tokens[places]
        is_text = (found != self.mask) & (found != self.delete)
        places, rows, kind = places[is_text], rows[is_text], kind[is_text]
        source, target = texts.tokens.copy(), np.full_like(texts.tokens, self.padding)
        target[places] = source[places]
        is_random = kind < cfg.random_token_prob
        source[places[kind >= cfg.random_token_prob + cfg.leave_unmasked_prob]] = self.mask
        others = places[is_random]
        if len(others):
            u = draws.uniform(TOKEN, rows[is_random], others - texts.offsets[rows[is_random]])
            source[others] = self._cumulative.searchsorted(u, "right")
        return Ragged(source, texts.offsets), Ragged(target, texts.offsets)

    def _as_stock(self, texts: Ragged, epochs: Any, keys: Tokens, copy: int) -> tuple[Ragged, Ragged]:
        seed = int(self.cfg.seed) + copy * COPY_SEED
        of_rows = zip(np.broadcast_to(epochs, len(texts)).tolist(), keys.tolist(), strict=True)
        names = [(seed, *pair) for pair in of_rows]
        if not self.is_unusual and not self.cfg.mask_whole_words:
            return self._replayed(texts, names)
        found = [self._by_fairseq(texts[row], *name) for row, name in enumerate(names)]
        source, target = (Ragged.of(list(parts)) for parts in zip(*found, strict=True))
        return source, target

    def _replayed(self, texts: Ragged, names: Sequence[tuple[int, int, int]]) -> tuple[Ragged, Ragged]:
        """Compute the masks of MaskTokensDataset by repeating its draws, several times as fast."""
        cfg = self.cfg
        changed = cfg.random_token_prob + cfg.leave_unmasked_prob
        has_random, has_both = cfg.random_token_prob > 0, min(cfg.random_token_prob, cfg.leave_unmasked_prob) > 0
        places, kept, replaced, drawn = [], [], [], [np.zeros(0)]
        begins, lengths = texts.offsets.tolist(), texts.lengths.tolist()
        for begin, size, name in zip(begins, lengths, names, strict=False):
            rng = np.random.default_rng(int(hash(name) % 1e6))
            chosen = rng.choice(size, int(cfg.mask_prob * size + rng.random()), replace=False)
            chosen.sort()  # ascending within a text; fairseq draws the random tokens in this order too
            is_other = rng.random(size)[chosen] < changed if changed > 0 else np.zeros(len(chosen), np.bool_)
            stays = is_other
            if has_both:
                stays = is_other & (rng.random(size)[chosen] < cfg.leave_unmasked_prob / changed)
            elif has_random:
                stays = np.zeros_like(is_other)
            is_random = is_other & ~stays
            chosen += begin
            places.append(chosen)
            kept.append(is_other)
            if is_random.any():
                replaced.append(chosen[is_random])
                drawn.append(rng.random(len(replaced[-1])))
        source, target = texts.tokens.copy(), np.full_like(texts.tokens, self.padding)
        at = np.concatenate([np.zeros(0, np.int64), *places])
        others = np.concatenate([np.zeros(0, np.bool_), *kept])
        target[at] = source[at]
        source[at[~others]] = self.mask
        if replaced:
            source[np.concatenate(replaced)] = self._cumulative.searchsorted(np.concatenate(drawn), "right")
        is_symbol = (texts.tokens == self.mask) | (texts.tokens == self.delete)
        source[is_symbol], target[is_symbol] = texts.tokens[is_symbol], self.padding
        return Ragged(source, texts.offsets), Ragged(target, texts.offsets)

    def _by_fairseq(self, text: Tokens, seed: int, epoch: int, key: int) -> tuple[Tokens, Tokens]:
        """Compute the masks with MaskTokensDataset itself."""
        is_symbol = (text == self.mask) | (text == self.delete)
        # Symbols are passed as padding: where fairseq masks padding, the target is padding too, so nothing is predicted.
        item = torch.from_numpy(np.where(is_symbol, self.padding, text))
        found = []
        for masks in self._stock:
            masks.dataset = {key: item}
            # Bypass fairseq's LRU cache of items: its key does not contain the text.
            found.append(type(masks).__getitem_cached__.__wrapped__(masks, seed, epoch, key).numpy())
        return np.where(is_symbol, text, found[0]), np.where(is_symbol, self.padding, found[1])

    @cached_property
    def _stock(self) -> list[MaskTokensDataset]:
        """The stock masks, and their targets."""
        words = torch.from_numpy(self._word_starts.astype(np.uint8)) if self.cfg.mask_whole_words else None
        options = {name: getattr(self.cfg, name) for name in SETTINGS} | {"mask_whole_words": words}
        options |= {"pad_idx": self.padding, "mask_idx": self.mask}
        stock = partial(MaskTokensDataset, {}, self.dictionary, **options)
        return [stock(return_masked_tokens=targets) for targets in (False, True)]

    @cached_property
    def _cumulative(self) -> npt.NDArray[np.float64]:
        """(vocabulary,) distribution function of the tokens that replace a text's, as numpy's ``choice`` computes it."""
        is_weighted = self.cfg.freq_weighted_replacement
        weights = np.array(self.dictionary.count, np.float64) if is_weighted else np.ones(len(self.dictionary))
        weights[: self.dictionary.nspecial] = 0
        cumulative = (weights / weights.sum()).cumsum()
        return cumulative / cumulative[-1]

    @cached_property
    def _word_starts(self) -> Bools:
        """(vocabulary,) where a token begins a word. (Stock masked_lm reads an attribute that is never set.)"""
        tokenizer = load_tokenizer(utils.split_paths(self.cfg.data)[0])
        special = self.dictionary.nspecial
        starts = word_starts(tokenizer, self.dictionary.symbols[special:])
        return np.array([*[True] * special, *starts], np.bool_)
