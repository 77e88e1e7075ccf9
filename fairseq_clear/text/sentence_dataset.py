"""Data sets with samples of at most ``--tokens-per-sample``: single sentences, or fairseq's blocks with long blocks split."""

import logging
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from fairseq.data import FairseqDataset, PrependTokenDataset
from fairseq.data.plasma_utils import PlasmaArray

from fairseq_clear import patches
from fairseq_clear.text.documents import map_lines
from fairseq_clear.tokens import Ragged, Tokens, as_tokens

patches.apply()

logger = logging.getLogger(__name__)


class SentenceDataset(FairseqDataset):
    """A data set with one sentence per sample, between ``<s>`` and ``</s>``, for ``--sample-break-mode eos``.

    Blank lines are dropped. A sentence longer than ``max_tokens`` is split into as few samples as possible, of nearly equal
    length. (In fairseq's own eos mode, every blank line is an empty sample, and ``--tokens-per-sample`` is ignored.)

    Args:
        dataset: token ids of each line, ending in ``</s>``; a blank line is only ``</s>``.
        bos, eos: ids of ``<s>`` and ``</s>``.
        max_tokens: maximum length of a sample, including ``<s>`` and ``</s>``.
        name: name of the split, for the log.
        prefix: path of the data files, without their suffixes, if other texts are aligned with these lines. Each line is then
            one sample, and a longer line is cut to ``max_tokens`` but keeps its ``</s>``.

    Attributes:
        lines: (samples,) line number of each sample, from 0; samples of a split line have the same number.
    """

    def __init__(self, dataset: Any, bos: int, eos: int, max_tokens: int, name: str, prefix: str | None = None) -> None:
        super().__init__()
        self.dataset, self.prefix = dataset, prefix
        self.mapped = map_lines(dataset)
        self.bos, self.eos, self.max_tokens = bos, eos, max_tokens
        self.part_tokens = max(max_tokens - 2, 1)
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

    def __getitem__(self, index: int) -> torch.Tensor:
        line = self.lines[index]
        text = self.dataset[line]
        tokens = len(text) - 1
        if self.prefix is not None or tokens <= self.part_tokens:
            return self.frame(text)
        part, parts = int(index) - int(np.searchsorted(self.lines, line)), -(-tokens // self.part_tokens)
        begin, end = (tokens * number // parts for number in (part, part + 1))
        return self.frame(torch.cat([text[begin:end], text[-1:]]))

    def rows(self, indices: Tokens) -> Ragged:
        """Return several samples, read at once if the data are memory-mapped."""
        if self.mapped is None or self.max_tokens < 3:
            return Ragged.of([as_tokens(self[index]) for index in indices.tolist()])
        lines = self.lines[indices].astype(np.int64)
        lengths = self.mapped.sizes[lines].astype(np.int64) - 1
        if self.prefix is not None:
            return self.mapped.framed(lines, 0, np.minimum(lengths, self.part_tokens), self.bos, self.eos)
        begins, long = np.zeros_like(lengths), np.flatnonzero(lengths > self.part_tokens)
        if len(long):
            full = lengths[long]
            part, parts = indices[long] - np.searchsorted(self.lines, lines[long]), -(-full // self.part_tokens)
            begins[long] = full * part // parts
            lengths[long] = full * (part + 1) // parts - begins[long]
        return self.mapped.framed(lines, begins, lengths, self.bos, self.eos)

    def frame(self, line: torch.Tensor) -> torch.Tensor:
        """Put ``<s>`` before a line and cut it to ``max_tokens``, keeping its ``</s>``."""
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

    size = num_tokens


class BlockDataset(PrependTokenDataset):
    """Blocks of text as fairseq makes them, with ``<s>`` before each."""

    def __init__(self, blocks: Any, token: int) -> None:
        super().__init__(blocks, token)
        self.mapped = map_lines(blocks.dataset)

    def rows(self, indices: Tokens) -> Ragged:
        """Return several blocks, read at once if the data are memory-mapped."""
        if self.mapped is None:
            return Ragged.of([as_tokens(self[index]) for index in indices.tolist()])
        blocks = self.dataset
        origins = blocks.block_to_dataset_index[indices].astype(np.int64)  # the first line, and the position in it
        slices = blocks.slice_indices[indices].astype(np.int64)  # the 16 bits of its sizes may overflow
        lengths = slices[:, 1] - slices[:, 0]
        found = Ragged.of_lengths(np.empty(int(lengths.sum()) + len(lengths), np.int64), lengths + 1)
        found.tokens[found.offsets[:-1]] = self.token
        found.write(1, self.mapped.tokens, self.mapped.starts(origins[:, 0]) + origins[:, 1], lengths)
        return found


def split_long_blocks(texts: PrependTokenDataset, max_tokens: int, name: str) -> BlockDataset:
    """Split the blocks of fairseq's modes ``complete`` and ``complete_doc`` that are longer than ``--tokens-per-sample``.

    Args:
        texts: a TokenBlockDataset with ``<s>`` before each block, as fairseq's masked_lm makes it.
        max_tokens: maximum length of a sample, including ``<s>``.
        name: name of the split, for the log.

    Returns:
        A data set with the same tokens in the same order, in which each long block is split into as few blocks as possible, of
        nearly equal length.
    """
    blocks = texts.dataset
    slices = blocks.slice_indices  # (B, 2); the 16 bits of blocks.sizes overflow
    lengths = slices[:, 1] - slices[:, 0]
    if not (lengths > max_tokens - 1).any():
        return BlockDataset(blocks, texts.token)
    counts, places, begins, ends = _split_long(lengths, max(max_tokens - 1, 1))
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
    return BlockDataset(blocks, texts.token)


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
