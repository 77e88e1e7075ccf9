"""Texts within ``--tokens-per-sample``: sentences for ``--sample-break-mode eos``, and fairseq's blocks for the other modes."""

import logging
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from fairseq.data import FairseqDataset, PrependTokenDataset
from fairseq.data.plasma_utils import PlasmaArray

from fairseq_clear import patches
from fairseq_clear.augmentations.base import Tokens

patches.apply()

__all__ = ["SentenceDataset", "split_long_blocks"]

logger = logging.getLogger(__name__)


class SentenceDataset(FairseqDataset):
    """One sentence a sample, framed by ``<s>`` and ``</s>``; blank lines are dropped.

    A sentence longer than ``max_tokens`` becomes several samples: the fewest that hold it, of nearly equal length. fairseq's
    own eos mode makes every blank line an empty sample and ignores ``--tokens-per-sample``.

    Args:
        dataset: of token ids, each item ending in ``</s>``, blank lines being ``</s>`` alone.
        bos, eos: their indices.
        max_tokens: greatest length of a sample, ``<s>`` and ``</s>`` included.
        name: of the split, for the log.
        prefix: path of the data files, without their endings, where other texts are aligned with this one line for line. A
            line is then one sample: a long one loses what is over ``max_tokens``, except for its ``</s>``.

    Attributes:
        lines: (samples,) line of each sample, from 0; a line that makes several samples stands once for each.
    """

    def __init__(self, dataset: Any, bos: int, eos: int, max_tokens: int, name: str, prefix: str | None = None) -> None:
        super().__init__()
        self.dataset, self.prefix = dataset, prefix
        self.bos, self.eos, self.max_tokens = bos, eos, max_tokens
        self.part_tokens = max(max_tokens - 2, 1)
        sizes = np.asarray(dataset.sizes)
        # kept for each sentence of a corpus: half the memory, where that is enough
        self.lines = np.flatnonzero(sizes > 1).astype(np.int32 if len(sizes) <= 2**31 else np.int64)
        self.blank, sentences = len(sizes) - len(self.lines), len(self.lines)
        self.sizes = sizes[self.lines] + 1
        self.cut = int((self.sizes > max_tokens).sum())
        done = "0 longer than"
        if self.cut and prefix is not None:
            self.sizes = np.minimum(self.sizes, max_tokens)
            done = f"{self.cut} cut off (other texts are aligned with their lines) at"
        elif self.cut:
            counts, places, begins, ends = _split_long(self.sizes - 2, self.part_tokens)
            self.lines, self.sizes = np.repeat(self.lines, counts), np.repeat(self.sizes, counts)
            self.sizes[places] = ends - begins + 2
            done = f"{self.cut} split into {len(places)} samples by"
        logger.info(
            "%s: %d sentences; %d blank lines dropped, %s --tokens-per-sample %d",
            *(name, sentences, self.blank, done, max_tokens),
        )

    def __getitem__(self, index: int) -> torch.Tensor:
        line = self.lines[index]
        text = self.dataset[line]
        tokens = len(text) - 1
        if self.prefix is not None or tokens <= self.part_tokens:
            return self.frame(text)
        part, parts = int(index) - int(np.searchsorted(self.lines, line)), -(-tokens // self.part_tokens)
        begin, end = (tokens * number // parts for number in (part, part + 1))
        return self.frame(torch.cat([text[begin:end], text[-1:]]))

    def frame(self, line: torch.Tensor) -> torch.Tensor:
        """A line with ``<s>`` in front, cut off at ``max_tokens``."""
        item = torch.cat([line.new_tensor([self.bos]), line])
        if len(item) > self.max_tokens:
            item = item[: self.max_tokens].clone()
            item[-1] = self.eos
        return item

    def __len__(self) -> int:
        return len(self.lines)

    def num_tokens(self, index: int) -> int:
        """Length of a sample."""
        return int(self.sizes[index])

    def size(self, index: int) -> int:
        """The same."""
        return int(self.sizes[index])


def split_long_blocks(texts: PrependTokenDataset, max_tokens: int, name: str) -> PrependTokenDataset:
    """Split the blocks that fairseq leaves longer than ``--tokens-per-sample``: single sentences, in the modes ``complete``
    and ``complete_doc``.

    Args:
        texts: ``<s>`` before each block of a TokenBlockDataset, as stock masked_lm makes them.
        max_tokens: greatest length of a sample, ``<s>`` included.
        name: of the split, for the log.

    Returns:
        ``texts`` itself where no block is too long; otherwise a data set of the same tokens in the same order, with each long
        block replaced by the fewest that hold it, of nearly equal length.
    """
    blocks = texts.dataset
    slices = blocks.slice_indices  # (B, 2); not blocks.sizes, whose 16 bits overflow
    lengths = slices[:, 1] - slices[:, 0]
    if not (lengths > max_tokens - 1).any():
        return texts
    counts, places, begins, ends = _split_long(lengths, max(max_tokens - 1, 1))
    first = np.repeat(slices[:, 0], counts)[places].astype(np.int64)
    slices, origins = (np.repeat(array, counts, axis=0) for array in (slices, blocks.block_to_dataset_index))
    slices[places, 0], slices[places, 1] = first + begins, first + ends
    origins[places, 1] = begins  # a long block starts where its sentence does
    blocks._slice_indices, blocks._block_to_dataset_index = PlasmaArray(slices), PlasmaArray(origins)
    blocks._sizes = PlasmaArray((slices[:, 1] - slices[:, 0]).astype(blocks.sizes.dtype))
    logger.info(
        "%s: %d sentences longer than --tokens-per-sample %d, split into %d samples",
        *(name, int((counts > 1).sum()), max_tokens, len(places)),
    )
    return PrependTokenDataset(blocks, texts.token)


def _split_long(lengths: npt.NDArray[Any], longest: int) -> tuple[Tokens, Tokens, Tokens, Tokens]:
    """Where to split texts of these lengths (N,), so that none is longer than ``longest``.

    Returns:
        (N,) how many parts each text makes; then, for the P parts of long texts, (P,) the place of each among all parts, and
        (P,) where in its text it begins and ends.
    """
    long = np.flatnonzero(lengths > longest)
    full = lengths[long].astype(np.int64)
    parts = -(-full // longest)
    counts = np.ones(len(lengths), np.int64)
    counts[long] = parts
    owner = np.repeat(np.arange(len(long)), parts)
    order = np.arange(len(owner))
    number = order - (np.cumsum(parts) - parts)[owner]
    begins, ends = (full[owner] * n // parts[owner] for n in (number, number + 1))
    return counts, long[owner] - owner + order, begins, ends
