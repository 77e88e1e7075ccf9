"""Binarizes text to fairseq's mmap data sets: fairseq's binarizer converts parts in parallel, which are then joined.

fairseq's own ``merge_file_`` is not used: it keeps a Python object for each sentence and, under numpy 2, adds addresses in
int32, which overflows at 2 GiB. The result is byte for byte what fairseq writes for the whole text with one worker.
"""

import os
import shutil
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import as_completed
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq.binarizer import FileBinarizer, VocabularyDatasetBinarizer
from fairseq.data import Dictionary
from numpy.typing import NDArray

from fairseq_clear import register
from fairseq_clear.preparation.workers import worker_pool
from fairseq_clear.text.mapped_files import HEADER_BYTES, MappedIndex, read_index
from fairseq_clear.text.tokenizers import Tokenizer

register()

CHUNK_IDS = 1 << 22


def encode_line(tokenizer: Tokenizer, line: str) -> list[str]:
    """Return the symbols of a line; none for a blank line."""
    text = line.strip()
    if not text:
        return []
    # A text that the tokenizer normalises to nothing must not become a blank line, which would end a document.
    return tokenizer.encode(text) or ["<unk>"]


class LineBinarizer(VocabularyDatasetBinarizer):
    """fairseq's binarizer with a faster ``binarize_line``: it converts a list of ids instead of filling a tensor one by one."""

    def binarize_line(self, line: str, summary: Any) -> torch.Tensor:
        """Return the ids of a line and ``</s>``, int32; unknown symbols are counted in the summary."""
        symbols = self.tokenize(line)
        unknown = self.dict.unk_index
        ids = [self.dict.indices.get(symbol, unknown) for symbol in symbols]
        if summary.replaced is None:
            summary.replaced = Counter()
        if unknown in ids:
            pairs = zip(symbols, ids, strict=True)
            summary.replaced.update(symbol for symbol, i in pairs if i == unknown and symbol != self.dict.unk_word)
        ids.append(self.dict.eos_index)
        summary.num_seq += 1
        summary.num_tok += len(ids)
        return torch.tensor(ids, dtype=torch.int32)


def binarize_parts(
    splits: dict[Path, list[Path]],
    tokenizer: Tokenizer,
    dictionary: Dictionary,
    workers: int,
    progress: Callable[[int], object],
) -> None:
    """Write ``PREFIX.bin`` and ``PREFIX.idx`` for each split, and delete the text parts.

    Args:
        splits: prefix of the dataset -> its text parts, in order.
        workers: number of processes; the result does not depend on it.
        progress: called with the number of bytes of text binarized since its last call.
    """
    binarizer = LineBinarizer(dictionary, tokenize=partial(encode_line, tokenizer))
    parts = [part for split in splits.values() for part in split]
    if workers == 1 or len(parts) == 1:
        _set_binarizer(binarizer)
        for part in parts:
            progress(_binarize_part(part))
    else:
        with worker_pool(min(workers, len(parts)), _set_binarizer, (binarizer,)) as pool:
            for done in as_completed([pool.submit(_binarize_part, part) for part in parts]):
                progress(done.result())
    for prefix, split in splits.items():
        join_datasets([part.with_suffix("") for part in split], prefix)


_binarizer: VocabularyDatasetBinarizer  # in a worker process, which unpickles it once instead of for each part


def _set_binarizer(binarizer: VocabularyDatasetBinarizer) -> None:
    global _binarizer
    _binarizer = binarizer


def _binarize_part(part: Path) -> int:
    size, prefix = part.stat().st_size, str(part.with_suffix(""))
    vocabulary = len(_binarizer.dict)
    FileBinarizer.multiprocess_dataset(str(part), "mmap", _binarizer, prefix, vocab_size=vocabulary, num_workers=1)
    part.unlink()
    return size


def join_datasets(prefixes: Sequence[Path], dest: Path) -> None:
    """Join mmap datasets of one id type and delete them; memory holds the line lengths of one dataset at a time."""
    sources = [Path(f"{prefix}.idx") for prefix in prefixes]
    header = sources[0].read_bytes()[: HEADER_BYTES - 8]  # without the number of lines
    parts = [_index_of(prefix) for prefix in prefixes]
    with open(f"{dest}.idx", "wb") as out:
        out.write(header + struct.pack("<Q", sum(len(part.sizes) for part in parts)))
        for part in parts:
            out.write(part.sizes.tobytes())
        address = 0
        for part in parts:
            ends = address + np.cumsum(part.sizes, dtype=np.int64) * part.dtype.itemsize
            out.write(np.concatenate(([address], ends[:-1])).astype(np.int64).tobytes())
            address = int(ends[-1])
    shutil.move(f"{prefixes[0]}.bin", f"{dest}.bin")
    with open(f"{dest}.bin", "ab") as out:
        for prefix in prefixes[1:]:
            with open(f"{prefix}.bin", "rb") as ids:
                shutil.copyfileobj(ids, out, 1 << 20)
            os.unlink(f"{prefix}.bin")
    for source in sources:
        source.unlink()


def count_ids(prefix: Path, vocabulary: int) -> NDArray[np.int64]:
    """Return how often each id occurs in a dataset: int64 of shape (vocabulary,)."""
    counts = np.zeros(vocabulary, dtype=np.int64)
    dtype = _index_of(prefix).dtype
    with open(f"{prefix}.bin", "rb") as stream:
        while len(ids := np.fromfile(stream, dtype, CHUNK_IDS)):
            counts += np.bincount(ids, minlength=vocabulary)
    return counts


def _index_of(prefix: Path) -> MappedIndex:
    index = read_index(f"{prefix}.idx")
    assert index is not None  # the format that FileBinarizer writes
    return index
