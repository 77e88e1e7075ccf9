"""Makes the augmented views of a batch of items, each reproducible from seed, epoch and index."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairseq_clear.augmentations.base import apply_by_row
from fairseq_clear.augmentations.chain import Augmented, Chain, unchanged
from fairseq_clear.seeding import Draws, Floats
from fairseq_clear.tokens import Ragged, Tokens, cells
from fairseq_clear.views.view_source import Pairs, ViewSource

CHOICE = 1  # purpose of the draw of an anchor with which the model may make a choice
NO_PROMPT = np.zeros(0, np.int64)


def _which_prompt(rows: int, each: int) -> Tokens:
    """Which prompt each row gets, of ``each`` rows for an anchor: 0 the anchor, 1 the others."""
    return (np.arange(rows) % each > 0).astype(np.int64)


@dataclass(frozen=True)
class MadeViews:
    """The views of a batch of items.

    Attributes:
        pairs: the texts, before augmentation.
        augmented: their views, before they are cut.
        views: the views, cut to the maximum length.
        draw: (N,) random number in [0, 1) of each anchor and epoch, with which the model may make a choice.
    """

    pairs: Pairs
    augmented: Augmented
    views: Ragged
    draw: Floats


class ViewMaker:
    """Makes the pairs of augmented views of items, the same in every process and in every batch.

    Args:
        source: makes the pairs of texts.
        augment: chain of augmentations, applied to each text separately.
        max_tokens: maximum length to which views are cut, keeping their last token.
        only_positives: augment only the positives; anchors and hard negatives stay as they are.
        prompts: two prompts as token ids, which may be empty: of anchors, and of positives and hard negatives.
    """

    def __init__(
        self,
        source: ViewSource,
        augment: Chain,
        seed: int,
        max_tokens: int,
        *,
        only_positives: bool = False,
        prompts: Sequence[Tokens] = (NO_PROMPT, NO_PROMPT),
    ) -> None:
        self.source, self.augment, self.seed, self.max_tokens = source, augment, seed, max_tokens
        self.only_positives, self.prompts = only_positives, prompts
        self._prompt_lengths = np.array(list(map(len, prompts)))

    def __call__(self, indices: Tokens, epoch: Any, *, traced: bool = False) -> MadeViews:
        """Make the views of items (I,) in this epoch, or with an epoch for each item (I,); ``traced``: see ``Chain``."""
        of_items = Draws.of(self.seed, epoch, indices, 0)
        pairs = self.source.pairs(indices, of_items.fold(0))
        source, anchors = self.source, self.source.anchors
        rows = anchors * pairs.each  # of an item
        if self.augment.is_identity:
            augmented = unchanged(pairs.texts)
        else:
            item, number = cells(len(indices), rows)  # of each text
            draws = Draws.of(self.seed, epoch[item] if np.ndim(epoch) else epoch, indices[item], number + 1)
            if self.only_positives:
                role = number % pairs.each
                is_positive = ((role > 0) & (role <= source.positives)).astype(np.int64)
                augmented = Augmented(
                    *apply_by_row(pairs.texts, draws, is_positive, (lambda texts, _: unchanged(texts), self.augment))
                )
            else:
                augmented = self.augment(pairs.texts, draws, traced=traced)
        draw = of_items.uniform(CHOICE, *cells(len(indices), anchors))
        space = self.max_tokens - self._prompt_lengths[_which_prompt(len(pairs.texts), pairs.each)]
        return MadeViews(pairs, augmented, augmented.views.cut(space), draw)

    def with_prompts(self, views: Ragged, each: int, fill: int | None = None) -> Ragged:
        """Put the prompts into views, after ``<s>``.

        Args:
            views: of anchors and their positives and negatives, ``each`` rows for an anchor.
            each: 1 if the rows are all anchors.
            fill: put this id in place of each token of a prompt.
        """
        if not self._prompt_lengths.any():
            return views
        parts = self.prompts if fill is None else tuple(np.full_like(prompt, fill) for prompt in self.prompts)
        return views.inserted(parts, _which_prompt(len(views), each))

    def pairs(self, indices: Tokens, epoch: Any) -> Pairs:
        """Return the texts that form the pairs of items, without augmentation."""
        return self.source.pairs(indices, Draws.of(self.seed, epoch, indices, 0).fold(0))

    def longest(self) -> Tokens:
        """Upper bounds of the views' lengths over all epochs: (items, views)."""
        lengths = self.source.text_lengths
        bounds = np.zeros(int(lengths.max(initial=0)) + 1, np.int32)  # bound of each length that occurs
        for length in np.unique(np.concatenate([np.unique(column) for column in lengths.T])).tolist():
            bounds[length] = self.augment.bound(length)
        which = _which_prompt(lengths.shape[1], lengths.shape[1] // self.source.anchors)
        return np.minimum(bounds[lengths] + self._prompt_lengths[which], self.max_tokens)
