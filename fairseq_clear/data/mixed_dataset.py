"""The training set of ``--mix``: several corpora, each with its share of every epoch."""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from fairseq_clear.data.batch import Examples
from fairseq_clear.data.dataset import ClearDataset, SizedDataset
from fairseq_clear.errors import UserError
from fairseq_clear.seeding import rng_for
from fairseq_clear.tokens import Tokens

# Values of rng_for's ``view``: order of a pass, order of items of equal length. Views use 0, 1, ...
PASS, TIES = -1, -2
LARGEST = 2**31  # maximum number of items that an epoch reads from a corpus


class MixedDataset(SizedDataset):
    """Several corpora as one data set. An epoch reads the first corpus once, and the others in proportion to it.

    Each corpus is read in passes. A pass reads every item once, in a new random order. An epoch continues the pass in which
    the previous epoch ended, so the read counts of any two items of a corpus differ by at most one. In the n-th pass, an item
    has the same masks and views as in epoch n of a run on this corpus alone.

    fairseq's ``MultiCorpusDataset`` instead samples items independently in every epoch, so it reads some items of a large
    corpus often and others never. It also repeats an item of a small corpus with the same masks and views, drops items that do
    not fill a batch, and returns None for the empty batch of a worker that has run out of data.

    Args:
        corpora: the data set of each corpus, all with the same kind of views and masks.
        weights: weight of each corpus. An epoch reads ``len(corpora[0]) * weight / weights[0]`` items of that corpus, rounded.
        is_separate: whether the batches of all workers in a step hold items of one corpus only.

    Attributes:
        counts: number of items of each corpus in an epoch.

    Raises:
        UserError: a weight is so small or large that an epoch would read 0 or more than 2**31 items of its corpus.
    """

    def __init__(
        self,
        corpora: Sequence[ClearDataset],
        weights: Sequence[Fraction],
        seed: int,
        *,
        names: Sequence[str],
        is_separate: bool = False,
    ) -> None:
        super().__init__()
        self.corpora, self.seed, self.is_separate = corpora, seed, is_separate
        self.counts = [round(len(corpora[0]) * weight / weights[0]) for weight in weights]
        for name, count in zip(names, self.counts, strict=True):
            if not 0 < count <= LARGEST:
                raise UserError(
                    f"--mix: by its weight, an epoch would read {count:,} texts of {name}, and each of the "
                    f"{len(corpora[0]):,} of {names[0]} once; give weights with which it reads 1 to {LARGEST:,}"
                )
        self.ends = np.cumsum(self.counts)
        self.order = rng_for(seed, 0, 0, TIES).permutation(_numbers(len(self)))
        self.epoch = 0
        self.set_epoch(1)

    def set_epoch(self, epoch: int) -> None:
        """Choose the items of an epoch, counted from 1. The choice depends only on seed and epoch."""
        super().set_epoch(epoch)
        if epoch == self.epoch:
            return
        self.epoch = epoch
        parts = [self._items_of(number, epoch) for number in range(len(self.corpora))]
        self.items, self.passes = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        pairs = [(corpus, items) for corpus, (items, _) in zip(self.corpora, parts, strict=True)]
        self.sizes = np.concatenate([corpus.sizes[items] for corpus, items in pairs])
        self.totals = np.concatenate([corpus.totals[items] for corpus, items in pairs])

    def _items_of(self, number: int, epoch: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return the items that an epoch reads from a corpus: indices (count,), and passes (count,), counted from 1."""
        size, count = len(self.corpora[number]), self.counts[number]
        begin = (epoch - 1) * count
        first, last = begin // size, (begin + count - 1) // size
        orders = [
            rng_for(self.seed, one, number, PASS).permutation(_numbers(size))[max(begin - one * size, 0) :]
            for one in range(first, last + 1)
        ]
        passes = np.repeat(np.arange(first, last + 1, dtype=np.int32) + 1, [len(order) for order in orders])
        return np.concatenate(orders)[:count], passes[:count]

    def largest(self) -> int:
        """The largest item of any epoch, so that a limit that is too small fails in the first epoch."""
        return max(int(corpus.totals.max()) for corpus in self.corpora)

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __getitem__(self, index: int) -> Examples:
        """An item, as a batch of one."""
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Examples]:
        """The items of a batch, corpus by corpus."""
        wanted = np.asarray(indices, np.int64)
        corpora = self.corpus_of(wanted)
        parts = []
        for number in np.unique(corpora).tolist():
            own = wanted[corpora == number]
            found = self.corpora[number].examples(self.items[own].astype(np.int64), self.passes[own].astype(np.int64))
            parts.append(replace(found, index=own))
        return parts

    def corpus_of(self, index: Any) -> Any:
        """Number of the corpus of an item, or of each of several items."""
        return np.searchsorted(self.ends, index, side="right")

    def collater(self, samples: Sequence[Examples]) -> dict[str, Any]:
        """Collate a batch, as ClearDataset does."""
        return self.corpora[0].collater(samples)

    @property
    def view_maker(self) -> Any:
        """The view maker of the first corpus, as in ClearDataset."""
        return self.corpora[0].view_maker

    @property
    def can_reuse_epoch_itr_across_epochs(self) -> bool:
        """False: every epoch has different items, so batches differ too."""
        return False

    def batch_by_size(self, indices: Tokens, max_tokens: int | None = None, **limits: int | None) -> Any:
        """Make batches. If ``is_separate``, each group of ``workers`` batches is from one corpus."""
        if not self.is_separate or not len(indices):
            return super().batch_by_size(indices, max_tokens, **limits)
        batches: list[Tokens] = []
        corpora = self.corpus_of(indices)
        for number in np.unique(corpora):
            batches += super().batch_by_size(indices[corpora == number], max_tokens, **limits)
        return batches


def _numbers(count: int) -> Tokens:
    """Return 0, ..., ``count`` - 1, as int32 if possible to save memory: a corpus may have 100 million sentences."""
    return np.arange(count, dtype=np.int32 if count <= 2**31 else np.int64)
