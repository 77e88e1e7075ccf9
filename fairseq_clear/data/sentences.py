"""One sentence a sample, for ``--sample-break-mode eos``."""

import logging
from typing import Any

import numpy as np
import torch
from fairseq.data import FairseqDataset

__all__ = ["SentenceDataset"]

logger = logging.getLogger(__name__)


class SentenceDataset(FairseqDataset):
    """Sentences with ``<s>`` in front, blank lines dropped and long ones cut.

    fairseq's own eos mode makes every blank line an empty sample and ignores ``--tokens-per-sample``. Cutting keeps the
    final ``</s>``.

    Args:
        dataset: of token ids, each item ending in ``</s>``, blank lines being ``</s>`` alone.
        bos, eos: their indices.
        max_tokens: greatest length of a sample, ``<s>`` and ``</s>`` included.
        name: of the split, for the log.
        prefix: of the files it was read from, by which aligned texts are found; None where there is none.
    """

    def __init__(self, dataset: Any, bos: int, eos: int, max_tokens: int, name: str, prefix: str | None = None) -> None:
        super().__init__()
        self.dataset, self.prefix = dataset, prefix
        sizes = np.asarray(dataset.sizes)
        # kept for each sentence of a corpus: half the memory, where that is enough
        self.lines = np.flatnonzero(sizes > 1).astype(np.int32 if len(sizes) <= 2**31 else np.int64)
        self.bos, self.eos, self.max_tokens = bos, eos, max_tokens
        full = sizes[self.lines] + 1
        self.sizes = np.minimum(full, max_tokens)
        self.blank = len(sizes) - len(self.lines)
        self.cut = int((full > max_tokens).sum())
        logger.info(
            "%s: %d sentences; %d blank lines dropped, %d sentences cut at --tokens-per-sample %d",
            name,
            len(self.lines),
            self.blank,
            self.cut,
            max_tokens,
        )

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.frame(self.dataset[self.lines[index]])

    def frame(self, line: torch.Tensor) -> torch.Tensor:
        """A line with ``<s>`` in front, cut."""
        item = torch.cat([line.new_tensor([self.bos]), line])
        if len(item) > self.max_tokens:
            item = item[: self.max_tokens].clone()
            item[-1] = self.eos
        return item

    def __len__(self) -> int:
        return len(self.lines)

    def num_tokens(self, index: int) -> int:
        """Length of a sentence after cutting."""
        return int(self.sizes[index])

    def size(self, index: int) -> int:
        """The same."""
        return int(self.sizes[index])
