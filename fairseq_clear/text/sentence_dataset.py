"""Data sets with samples of at most ``--tokens-per-sample``: single sentences, or fairseq's blocks with long blocks split."""

import logging
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from fairseq.data import PrependTokenDataset
from fairseq.data.plasma_utils import PlasmaArray

from fairseq_clear import patches
from fairseq_clear.text.documents import MappedLines, lines_of
from fairseq_clear.tokens import Ragged, Tokens, as_tokens

patches.apply()

logger = logging.getLogger(__name__)


class SentenceDataset:
    """A data set with one sentence per sample, between ``<s>`` and ``</s>``, for ``--sample-break-mode eos``.

    Blank lines are dropped. A sentence longer than ``max_tokens`` is split into as few samples as possible, of nearly equal
    length. (In fairseq's own eos mode, every blank line is an empty sample, and ``--tokens-per-sample`` is ignored.)

    Args:
        dataset: token ids of each line, ending in ``</s>``; a blank line is only ``</s>``.
        max_tokens: maximum length of a sample, including ``<s>`` and ``</s>``; at least 3.
        prefix: path of the data files, without their suffixes, if other texts are aligned with these lines. Each line is then
            one sample, and a longer line is cut to ``max_tokens`` but keeps its ``</s>``.

    Attributes:
        lines: (samples,) line number of each sample, from 0; samples of a split line have the same number.
    """

    def __init__(self, dataset: Any, bos: int, eos: int, max_tokens: int, name: str, prefix: str | None = None) -> None:
        self.prefix, self.text = prefix, lines_of(dataset)
        self.bos, self.eos, self.max_tokens, self.part_tokens = bos, eos, max_tokens, max_tokens - 2
        sizes = np.asarray(dataset.sizes)
        # int32 halves the memory of these arrays, which have an entry for each sentence of the corpus
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

    def rows(self, indices: Tokens) -> Ragged:
        """Return several samples."""
        lines, lengths = self.lines[indices].astype(np.int64), self.sizes[indices].astype(np.int64) - 2
        begins = np.zeros_like(lengths)
        if self.prefix is None and self.cut:
            full = self.text.sizes[lines].astype(np.int64) - 1
            long = np.flatnonzero(full > self.part_tokens)
            # of the type of self.lines, which numpy would otherwise convert as a whole
            part = indices[long] - np.searchsorted(self.lines, self.lines[indices[long]])
            begins[long] = full[long] * part // -(-full[long] // self.part_tokens)
        return self.text.framed(lines, begins, lengths, self.bos, self.eos)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(self.rows(np.array([index]))[0])

    def __len__(self) -> int:
        return len(self.lines)


class BlockDataset(PrependTokenDataset):
    """The blocks of fairseq's modes ``complete`` and ``complete_doc``, long blocks split.

    The tokens are the same, in the same order. Each block that is longer than ``--tokens-per-sample`` is split into as few
    blocks as possible, of nearly equal length.

    Args:
        prepended: a TokenBlockDataset with ``<s>`` before each block, as fairseq's masked_lm makes it.
        max_tokens: maximum length of a sample, including ``<s>``.
    """

    def __init__(self, prepended: PrependTokenDataset, max_tokens: int, name: str) -> None:
        blocks = prepended.dataset
        slices = blocks.slice_indices  # (B, 2); the 16 bits of blocks.sizes overflow
        lengths = slices[:, 1] - slices[:, 0]
        if (lengths > max_tokens - 1).any():
            counts, places, begins, ends = _split_long(lengths, max_tokens - 1)
            first = np.repeat(slices[:, 0], counts)[places].astype(np.int64)
            slices, origins = (np.repeat(array, counts, axis=0) for array in (slices, blocks.block_to_dataset_index))
            slices[places, 0], slices[places, 1] = first + begins, first + ends
            origins[places, 1] = begins  # a long block starts where its sentence starts
            blocks._slice_indices, blocks._block_to_dataset_index = PlasmaArray(slices), PlasmaArray(origins)
            blocks._sizes = PlasmaArray((slices[:, 1] - slices[:, 0]).astype(blocks.sizes.dtype))
            logger.info(
                "%s: %d sentences longer than --tokens-per-sample %d, split into %d samples",
                *(name, int((counts > 1).sum()), max_tokens, len(places)),
            )
        super().__init__(blocks, prepended.token)
        self.text = lines_of(blocks.dataset)

    def rows(self, indices: Tokens) -> Ragged:
        """Return several blocks, read at once if the data are memory-mapped."""
        if not isinstance(self.text, MappedLines):
            return Ragged.of([as_tokens(self[index]) for index in indices.tolist()])
        blocks = self.dataset
        origins = blocks.block_to_dataset_index[indices].astype(np.int64)  # the first line, and the position in it
        slices = blocks.slice_indices[indices].astype(np.int64)  # the 16 bits of its sizes may overflow
        lengths = slices[:, 1] - slices[:, 0]
        starts = self.text.starts(origins[:, 0]) + origins[:, 1]
        return Ragged.copied(self.text.tokens, starts, lengths, first=self.token)


def _split_long(lengths: npt.NDArray[Any], longest: int) -> tuple[Tokens, Tokens, Tokens, Tokens]:
    """Determine where to split texts of these lengths (N,), so that no part is longer than ``longest``.

    Returns:
        The number of parts of each text (N,). For the P parts of long texts: the index among all parts (P,), and the begin (P,)
        and end (P,) in the text.
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
