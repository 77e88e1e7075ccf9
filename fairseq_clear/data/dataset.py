"""The data set of every recipe: masked texts, views of them, or both; and its base, which orders and batches items."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from fairseq.data import FairseqDataset, data_utils

from fairseq_clear import patches
from fairseq_clear.data.batch import Example, add_left_over, collate
from fairseq_clear.data.masking import AnchorMasks
from fairseq_clear.errors import UserError
from fairseq_clear.tokens import Tokens
from fairseq_clear.views.view_maker import ViewMaker
from fairseq_clear.views.view_source import Instance

patches.apply()

__all__ = ["ClearDataset", "SizedDataset"]


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
        largest = int(self.totals.max(initial=0))  # also of those that fairseq leaves out as longer than --max-tokens
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


class ClearDataset(SizedDataset):
    """The data set that the trainer iterates over.

    Args:
        items: number of items.
        sources, targets: masked copies of the texts and their targets (fairseq data sets); empty without an MLM.
        view_maker: makes the pairs; None without a contrastive term.
        order: (items,) random rank of each item. As in masked_lm, batches hold texts of similar length, and texts of equal
            length are in this order.
        bos, eos, padding: ids of ``<s>``, ``</s>`` and ``<pad>``.
        anchors: masks the anchors of ``view_maker``; used instead of ``sources`` and ``targets``.
        contrastive: whether batches hold views. If not, ``view_maker`` only makes the anchors to mask.
    """

    def __init__(
        self,
        items: int,
        sources: Sequence[Any],
        targets: Sequence[Any],
        view_maker: ViewMaker | None,
        order: Tokens,
        *,
        bos: int,
        eos: int,
        padding: int,
        anchors: AnchorMasks | None = None,
        contrastive: bool = True,
    ) -> None:
        super().__init__()
        self.items, self.sources, self.targets = items, sources, targets
        self.view_maker, self.contrastive, self.anchors = view_maker, contrastive, anchors
        self.order, self.padding = order, padding
        self.blank = np.array([bos, eos], dtype=np.int64)
        self.epoch = 1
        lengths = [np.asarray(source.sizes, dtype=np.int64) for source in sources]
        if view_maker is not None and contrastive:
            lengths += list(view_maker.longest().T)
        if view_maker is not None and anchors is not None:
            bounds = np.minimum(view_maker.source.text_lengths, view_maker.max_tokens)
            each = bounds[:, :: bounds.shape[1] // anchors.anchors]  # (items, A), the columns of the anchors
            lengths += [*each.T] * (anchors.rows // anchors.anchors)
        self.sizes = functools.reduce(np.maximum, lengths).astype(np.int32)
        # fairseq's nested data sets count only the longest part of an item, but all parts use the memory of --max-tokens.
        self.totals = functools.reduce(np.add, lengths).astype(np.int32)

    def __getitem__(self, index: int) -> Example:
        index = int(index)
        if self.anchors is not None:
            return self._with_masked_anchors(self.anchors, index)
        return Example(
            index,
            [source[index].numpy() for source in self.sources],
            [target[index].numpy() for target in self.targets],
            self.view_maker(index, self.epoch) if self.view_maker is not None and self.contrastive else (),
        )

    def _with_masked_anchors(self, masks: AnchorMasks, index: int) -> Example:
        assert self.view_maker is not None
        if not self.contrastive:
            return Example(index, *masks.copies(self.view_maker.raw_pairs(index, self.epoch), index, self.epoch))
        pairs = self.view_maker.pairs(index, self.epoch)
        instances = [instance for _, instance in pairs]
        if masks.joint:
            return Example(index, instances=masks.views(instances, index, self.epoch))
        return Example(index, *masks.copies([raw for raw, _ in pairs], index, self.epoch), instances)

    def __len__(self) -> int:
        return self.items

    def collater(self, samples: Sequence[Example]) -> dict[str, Any]:
        """Collate a batch. Without samples, return a one-row batch that is marked as empty.

        A worker that has run out of data gets such a batch. fairseq's own way, to replay an earlier batch and cancel it
        afterwards, goes wrong with ``--update-freq`` above 1 and after a validation (``Trainer.train_step`` zeroes the
        sample_size of all micro-batches).
        """
        return collate(samples, self.padding) if samples else collate([self._stand_in()], self.padding, is_empty=True)

    def _stand_in(self) -> Example:
        nothing_masked = np.full_like(self.blank, self.padding)
        source = self.view_maker.source if self.view_maker is not None and self.contrastive else None
        positives = [self.blank] * (source.positives if source is not None else 0)
        negatives = [self.blank] * (source.negatives if source is not None else 0)
        stand_in = Instance(self.blank, positives, 0, 0, negatives=negatives, negative_identities=[0] * len(negatives))
        if self.anchors is not None and self.anchors.joint:
            stand_in.anchor_target = nothing_masked
        instances = [stand_in] if positives else []
        rows = len(self.sources) if self.anchors is None else self.anchors.rows
        return Example(0, [self.blank] * rows, [nothing_masked] * rows, instances)

    @property
    def can_reuse_epoch_itr_across_epochs(self) -> bool:
        """True: sizes are upper bounds over epochs, so the batches need not be rebuilt when the views change."""
        return True

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of views and masks."""
        super().set_epoch(epoch)
        self.epoch = epoch
        for part in (*self.sources, *self.targets):
            part.set_epoch(epoch)
