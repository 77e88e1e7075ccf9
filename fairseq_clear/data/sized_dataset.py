"""The base of the data sets that the trainer reads: order and batches of items with known lengths."""

from typing import Any

import numpy as np
from fairseq.data import FairseqDataset, data_utils

from fairseq_clear import patches
from fairseq_clear.augmentations.base import Tokens
from fairseq_clear.data.batch import add_left_over
from fairseq_clear.errors import UserError

patches.apply()

__all__ = ["SizedDataset"]


class SizedDataset(FairseqDataset):
    """A data set whose batches hold items of similar length.

    Attributes:
        sizes: (items,) length of the longest part of each item; an upper bound over epochs.
        totals: (items,) number of tokens of all parts of each item; an upper bound over epochs.
        order: (items,) random rank of each item; items of equal length are in this order.
    """

    sizes: Tokens
    totals: Tokens
    order: Tokens

    def num_tokens(self, index: int) -> int:
        """Number of tokens of all parts of an item (masked copies and views); an upper bound over epochs."""
        return int(self.totals[index])

    def num_tokens_vec(self, indices: Tokens) -> Tokens:
        """``num_tokens`` of several items."""
        return self.totals[indices].astype(np.int64)

    def size(self, index: int) -> int:
        """Length of the longest part of an item; an upper bound over epochs."""
        return int(self.sizes[index])

    def ordered_indices(self) -> Tokens:
        """Indices sorted by length, with items of equal length in random order."""
        shuffled = np.empty_like(self.order)
        shuffled[self.order] = np.arange(len(self.order))
        sizes = self.sizes[shuffled]
        if sizes.max(initial=0) < 2**16:
            sizes = sizes.astype(np.uint16)  # numpy sorts 16-bit integers by radix, in linear time
        return shuffled[np.argsort(sizes, kind="stable")].astype(np.int64)

    def filter_indices_by_size(self, indices: Tokens, max_sizes: Any) -> tuple[Tokens, list[int]]:
        """Drop items longer than ``max_sizes``; returns the remaining and the dropped indices."""
        keep = self.sizes[indices] <= max_sizes
        return indices[keep], indices[~keep].tolist()

    def batch_by_size(
        self,
        indices: Tokens,
        max_tokens: int | None = None,
        max_sentences: int | None = None,
        required_batch_size_multiple: int = 1,
    ) -> Any:
        """Make batches within fairseq's limits; the error for an item above ``--max-tokens`` names the value to give."""
        if not len(indices):  # fairseq would raise an IndexError
            raise UserError(
                "no text is left to train on: all are longer than --max-positions or --max-tokens, or --num-shards leaves none"
            )
        largest = int(self.totals[indices].max(initial=0))
        if max_tokens is not None and largest > max_tokens:
            raise UserError(
                f"--max-tokens {max_tokens}: the longest item has {largest} tokens, counting its masked copies and its views; "
                f"give --max-tokens {largest} or more, or a smaller --tokens-per-sample"
            )
        batches = data_utils.batch_by_size(
            indices,
            num_tokens_fn=self.num_tokens,
            num_tokens_vec=self.num_tokens_vec(indices),
            max_tokens=max_tokens,
            max_sentences=max_sentences,
            required_batch_size_multiple=required_batch_size_multiple,
        )
        return add_left_over(batches, indices)
