"""Documents for tests: written out by hand, in memory or really binarized."""

import numpy as np
import torch
from fairseq.data.indexed_dataset import MMapIndexedDataset, MMapIndexedDatasetBuilder

from fairseq_clear.text.documents import Documents, Lines

BOS, EOS = 0, 2


def numbered_lines(shape, first=10):
    """Lines of consecutive token ids, no id twice; ``shape`` gives their lengths, 0 for a blank line."""
    lines = []
    for length in shape:
        lines.append([*range(first, first + length), EOS])
        first += length
    return lines


def in_memory(*shapes, boundary="blank"):
    parts, first = [], 10
    for shape in shapes:
        parts.append(Lines(numbered_lines(shape, first)))
        first += sum(shape)
    return Documents(parts, BOS, EOS, boundary=boundary)


def binarize(prefix, lines, dtype=np.uint16):
    """``prefix.bin`` and ``prefix.idx``, opened."""
    builder = MMapIndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype)
    for line in lines:
        builder.add_item(torch.tensor(line))
    builder.finalize(f"{prefix}.idx")
    return MMapIndexedDataset(str(prefix))


def whole_text(documents, number):
    at = np.array([number])
    return documents.read(at, np.zeros_like(at), documents.lengths[at]).tokens.tolist()
