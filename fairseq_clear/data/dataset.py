"""The data set of every recipe (masked texts, views, or both), and its base class, which orders and batches items."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from fairseq.data import FairseqDataset, data_utils

from fairseq_clear import patches
from fairseq_clear.data.batch import Examples, collate
from fairseq_clear.data.masking import Masks
from fairseq_clear.errors import UserError
from fairseq_clear.tokens import Ragged, Tokens, cells, ranges
from fairseq_clear.views.view_maker import ViewMaker
from fairseq_clear.views.view_source import FRAME, TokenSource

patches.apply()


class SizedDataset(FairseqDataset):
    """A data set whose batches hold items of similar length.

    Attributes:
        sizes: (items,) length of the longest part of each item; an upper bound over epochs.
        totals: (items,) number of tokens of all parts of each item; an upper bound over epochs.
        order: (items,) random rank of each item, which orders items of equal length.
        limit_flag: flag that limits the tokens of a batch, for messages.
        workers: number of workers whose batches are contrasted with each other. Each group of ``workers`` consecutive batches
            is read in one step, so the texts of all of them have similar lengths.
    """

    sizes: Tokens
    totals: Tokens
    order: Tokens
    limit_flag = "--max-tokens"
    workers = 1

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

    def largest(self) -> int:
        """Number of tokens of the largest item, also if fairseq drops it as too long."""
        return int(self.totals.max(initial=0))

    def filter_indices_by_size(self, indices: Tokens, max_sizes: Any) -> tuple[Tokens, list[int]]:
        """Drop items longer than ``max_sizes``; returns the remaining and the dropped indices."""
        keep = self.sizes[indices] <= max_sizes
        return indices[keep], indices[~keep].tolist()

    def batch_by_size(self, indices: Tokens, max_tokens: int | None = None, **limits: int | None) -> Any:
        """Make batches within fairseq's limits, and empty ones up to a multiple of ``workers``.

        If an item exceeds ``max_tokens``, the error names a value to give.
        """
        if not len(indices):  # fairseq would raise an IndexError
            raise UserError(
                "no text is left to train on: all are longer than --max-positions; give a smaller --tokens-per-sample"
            )
        largest, flag = self.largest(), self.limit_flag
        if max_tokens is not None and largest > max_tokens:
            raise UserError(
                f"{flag} {max_tokens}: the longest item has {largest} tokens, counting its masked copies and its views; "
                f"give {flag} {largest} or more, or a smaller --tokens-per-sample"
            )
        tokens = self.num_tokens, self.num_tokens_vec(indices)
        batches = list(data_utils.batch_by_size(indices, *tokens, max_tokens=max_tokens, **limits))
        # fairseq drops a last batch whose size is not a multiple of required_batch_size_multiple (8). Since items are sorted by
        # length, it would never read the longest texts, and no text of a split with fewer than 8.
        rest = indices[sum(map(len, batches)) :]
        batches += [rest] if len(rest) else []
        return batches + [indices[:0]] * (-len(batches) % self.workers)


class ClearDataset(SizedDataset):
    """The data set that the trainer iterates over.

    torch's data loader asks for the items of a whole batch at once (``__getitems__``). An item does not depend on its batch.

    Args:
        mlm_input: input of the masked language model; None without this model, or if it reads the anchors.
        masks: masks of the texts, or of the anchors; None without a masked language model.
        view_maker: makes the pairs; None without a contrastive term.
        seed: of the order of the items.
        joint: whether to mask the embedded anchors themselves, not copies of texts.
        contrastive: whether batches hold views. If not, ``view_maker`` only makes the anchors to mask.
        reshuffles: whether each epoch has other batches, so that a text meets other negatives. If not, every epoch has the
            batches of the first, as in masked_lm.
    """

    def __init__(
        self,
        mlm_input: TokenSource | None,
        masks: Masks | None,
        view_maker: ViewMaker | None,
        seed: int,
        *,
        padding: int,
        joint: bool = False,
        contrastive: bool = True,
        reshuffles: bool = False,
    ) -> None:
        super().__init__()
        self.mlm_input, self.masks = mlm_input, masks
        self.view_maker, self.contrastive, self.joint = view_maker, contrastive, joint
        self.seed, self.padding, self.reshuffles = seed, padding, reshuffles
        self.epoch = 0  # fairseq sets it: from 1 on for training data, always 1 for validation data
        lengths = []
        if masks is not None and mlm_input is not None:
            lengths += [np.asarray(mlm_input.sizes, dtype=np.int64)] * masks.copies
        if view_maker is not None and contrastive:
            lengths += list(view_maker.longest().T)
        if masks is not None and view_maker is not None and mlm_input is None and not joint:
            bounds = np.minimum(view_maker.source.text_lengths, view_maker.max_tokens)
            anchors = bounds[:, :: bounds.shape[1] // view_maker.source.anchors]  # (items, A)
            lengths += [*anchors.T] * masks.copies
        self.sizes = functools.reduce(np.maximum, lengths).astype(np.int32)
        # fairseq's nested data sets count only the longest part of an item, but --max-tokens must count all parts.
        self.totals = functools.reduce(np.add, lengths).astype(np.int32)
        self.order = self._draw_order(1)

    def _draw_order(self, epoch: int) -> Tokens:
        """The random rank of each item, which orders items of equal length; in the first epoch, masked_lm's."""
        with data_utils.numpy_seed(self.seed, *([epoch] if epoch > 1 else [])):
            order = np.random.permutation(len(self.sizes))  # noqa: NPY002
        return order.astype(np.int32 if len(order) <= 2**31 else np.int64)  # kept in memory during training

    def __getitem__(self, index: int) -> Examples:
        """An item, as a batch of one."""
        return self.examples(np.array([index], np.int64), self.epoch)

    def __getitems__(self, indices: Sequence[int]) -> list[Examples]:
        """The items of a batch, for ``collater``; none for the empty batch of a worker that has run out of data."""
        return [self.examples(np.asarray(indices, np.int64), self.epoch)] if len(indices) else []

    def examples(self, indices: Tokens, epoch: Any) -> Examples:
        """Make the items ``indices`` (I,), all in one epoch or each in its own epoch (I,)."""
        maker, masks = self.view_maker, self.masks
        made = maker(indices, epoch) if maker is not None and self.contrastive else None
        count = 1 if maker is None else maker.source.anchors
        item, number = cells(len(indices), count)  # of each anchor
        keys, epochs = indices[item] * count + number, epoch[item] if np.ndim(epoch) else epoch
        copies: list[Any] = []  # masked texts and their targets, I rows each
        if masks is not None and self.mlm_input is not None:
            texts = self.mlm_input.rows(indices)
            copies += [masks(texts, epoch, indices, copy) for copy in range(masks.copies)]
        elif masks is not None and maker is not None and not self.joint:
            anchors = (maker.pairs(indices, epoch) if made is None else made.pairs).anchors().cut(maker.max_tokens)
            for copy in range(masks.copies):
                masked = masks(anchors, epochs, keys, copy)
                rows = [np.arange(n, len(anchors), count) for n in range(count)]
                copies += [masked] if count == 1 else [tuple(part.select(of) for part in masked) for of in rows]
        sources, targets = zip(*copies, strict=True) if copies else ((), ())
        if maker is None or made is None:
            return Examples(indices, sources, targets)
        pairs, views, anchor_target = made.pairs, made.views, None
        if masks is not None and self.joint:
            places = np.arange(0, len(views), pairs.each)
            # <s> and </s> are never masked, as in DeCLUTR's code: CLS pooling reads <s>
            begins, lengths = views.offsets[places] + 1, views.lengths[places] - FRAME
            inner, hidden = masks(Ragged.copied(views.tokens, begins, lengths), epochs, keys)
            views = Ragged(views.tokens.copy(), views.offsets)
            views.tokens[ranges(begins, lengths)] = inner.tokens
            anchor_target = maker.with_prompts(hidden.framed(self.padding, self.padding), 1, self.padding)
        counts = {
            "fell_back": pairs.fell_back,
            "view_length": len(views.tokens),
            "text_length": len(pairs.texts.tokens),
            "words": int(made.augmented.words.sum()),
            "substituted": int(made.augmented.substituted.sum()),
        }
        views, identities = maker.with_prompts(views, pairs.each), (pairs.identity, pairs.negative_identity)
        return Examples(indices, sources, targets, views, *identities, made.draw, anchor_target, counts)

    def __len__(self) -> int:
        return len(self.order)

    def collater(self, samples: Sequence[Examples]) -> dict[str, Any]:
        """Collate a batch. Without samples, return the first item, marked as an empty batch.

        A worker that has run out of data gets such a batch. fairseq instead replays an earlier batch and cancels it afterwards.
        This is wrong with ``--update-freq`` above 1 and after a validation (``Trainer.train_step`` zeroes the sample_size of
        all micro-batches).
        """
        if samples:
            return collate(Examples.join(samples), self.padding)
        return collate(self[0], self.padding, is_empty=True)

    @property
    def can_reuse_epoch_itr_across_epochs(self) -> bool:
        """Whether all epochs have the same batches; sizes are upper bounds over epochs, so the views do not matter."""
        return not self.reshuffles

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of views and masks, and of the order."""
        super().set_epoch(epoch)
        if self.reshuffles and epoch != max(self.epoch, 1):
            self.order = self._draw_order(epoch)
        self.epoch = epoch
