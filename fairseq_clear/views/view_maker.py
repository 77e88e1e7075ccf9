"""Makes the augmented views of an item, reproducible from seed, epoch and index."""

from collections.abc import Sequence

import numpy as np

from fairseq_clear.augmentations.chain import Augmented, Chain, unchanged
from fairseq_clear.seeding import rng_for
from fairseq_clear.text.documents import content_hash
from fairseq_clear.tokens import Tokens, cut_text
from fairseq_clear.views.view_source import Instance, RawInstance, ViewSource

# Generator for a chain that draws nothing.
UNUSED = np.random.default_rng(0)


class ViewMaker:
    """Makes the pairs of augmented views of an item, the same in every process.

    Args:
        source: makes the pairs of texts.
        augment: chain of augmentations, applied to each text separately.
        seed: seed of the run.
        max_tokens: maximum length to which views are cut, keeping their last token.
        only_positives: augment only the positives; anchors and hard negatives stay as they are.
    """

    def __init__(
        self, source: ViewSource, augment: Chain, seed: int, max_tokens: int, *, only_positives: bool = False
    ) -> None:
        self.source, self.augment, self.seed, self.max_tokens = source, augment, seed, max_tokens
        self.only_positives = only_positives

    def __call__(self, index: int, epoch: int) -> list[Instance]:
        """Return the instances of item ``index`` in this epoch."""
        return [instance for _, instance in self.pairs(index, epoch)]

    def pairs(self, index: int, epoch: int) -> list[tuple[RawInstance, Instance]]:
        """Return the instances of item ``index``, each with the texts from which it was made."""
        rng = rng_for(self.seed, epoch, index, 0)
        traced = self._trace(self.source(index, rng), index, epoch)
        # Instance.draw is drawn last, so that it does not change the draws of the source.
        return [(pair, self._instance(pair, views, rng.random())) for pair, views in traced]

    def raw_pairs(self, index: int, epoch: int) -> list[RawInstance]:
        """Return the texts that form the pairs of item ``index``, without augmentation."""
        return self.source(index, rng_for(self.seed, epoch, index, 0))

    def trace(self, index: int, epoch: int) -> list[tuple[RawInstance, list[Augmented]]]:
        """Return the texts of each instance of item ``index`` and their views, the anchor's first, before ``cut``."""
        return self._trace(self.raw_pairs(index, epoch), index, epoch)

    def _trace(self, raw: list[RawInstance], index: int, epoch: int) -> list[tuple[RawInstance, list[Augmented]]]:
        view = 0
        traced = []
        for pair in raw:
            texts = (pair.anchor, *pair.positives, *pair.negatives)
            if self.augment.is_identity:  # without generators: six of them cost as much as drawing DeCLUTR's six spans
                traced.append((pair, [self.augment(text, UNUSED) for text in texts]))
                continue
            chosen = range(1, 1 + len(pair.positives)) if self.only_positives else range(len(texts))
            rngs = {number: rng_for(self.seed, epoch, index, view + number + 1) for number in chosen}
            views = [self.augment(text, rngs[n]) if n in rngs else unchanged(text) for n, text in enumerate(texts)]
            traced.append((pair, views))
            view += len(texts)
        return traced

    def cut(self, tokens: Tokens) -> Tokens:
        """Cut a view to ``max_tokens``, keeping its last token."""
        return cut_text(tokens, self.max_tokens)

    def longest(self) -> Tokens:
        """Upper bounds of the views' lengths over all epochs: (items, views)."""
        lengths = self.source.text_lengths
        bounds = np.zeros(int(lengths.max(initial=0)) + 1, np.int32)  # bound of each length that occurs
        for length in np.unique(np.concatenate([np.unique(column) for column in lengths.T])).tolist():
            bounds[length] = min(self.augment.bound(length), self.max_tokens)
        return bounds[lengths]

    def _instance(self, raw: RawInstance, views: Sequence[Augmented], draw: float) -> Instance:
        tokens = [self.cut(view.tokens) for view in views]
        length = len(raw.anchor) + sum(len(text) for text in (*raw.positives, *raw.negatives))
        words, substituted = (sum(view.words for view in views), sum(view.substituted for view in views))
        last = 1 + len(raw.positives)
        return Instance(
            anchor=tokens[0],
            positives=tokens[1:last],
            identity=raw.identity,
            text_length=length,
            words=words,
            substituted=substituted,
            negatives=tokens[last:],
            negative_identities=[content_hash(text) for text in raw.negatives],
            draw=draw,
            fell_back=raw.fell_back,
        )
