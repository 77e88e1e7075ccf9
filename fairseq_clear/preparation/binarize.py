"""Text parts to fairseq's mmap datasets: fairseq's binarizer converts the parts in parallel, then they are joined in order.

fairseq's own ``merge_file_`` keeps a Python object for each sentence and, under numpy 2, adds addresses in int32, which
overflows at 2 GiB. The result equals byte for byte what fairseq writes for the whole text with one worker.
"""

import shutil
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import as_completed
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq.binarizer import FileBinarizer, VocabularyDatasetBinarizer
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import MMapIndexedDataset, best_fitting_int_dtype
from numpy.typing import NDArray

from fairseq_clear import register
from fairseq_clear.preparation.workers import worker_pool
from fairseq_clear.text.tokenizers import Tokenizer

register()

# magic (9), version (8), type of the ids (1); the number of lines follows (8), then sizes (int32), addresses (int64)
INDEX_HEADER_BYTES = 18
CHUNK_IDS = 1 << 22


class LineEncoder:
    """Splits a line into symbols, for fairseq's binarizer.

    Args:
        tokenizer: makes the symbols.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def __call__(self, line: str) -> list[str]:
        """Return the symbols of a line, none for a blank one."""
        text = line.strip()
        if not text:
            return []
        # text that the tokenizer normalises to nothing must not become a blank line, which ends a document
        return self.tokenizer.encode(text) or ["<unk>"]


class LineBinarizer(VocabularyDatasetBinarizer):
    """fairseq's binarizer, which fills a tensor id by id; converting a list takes a quarter of the time."""

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
    """Write ``PREFIX.bin`` and ``PREFIX.idx`` for each split; the text parts are deleted.

    Args:
        splits: prefix of the dataset -> its text parts, in order.
        tokenizer: text to symbols.
        dictionary: symbols to ids.
        workers: processes; the result does not depend on it.
        progress: called with the number of bytes of text binarized since its last call.
    """
    binarizer = LineBinarizer(dictionary, tokenize=LineEncoder(tokenizer))
    parts = [part for split in splits.values() for part in split]
    if workers == 1 or len(parts) == 1:
        for part in parts:
            progress(_binarize_part(binarizer, part))
    else:
        with worker_pool(min(workers, len(parts)), _set_binarizer, (binarizer,)) as pool:
            for done in as_completed([pool.submit(_binarize_here, part) for part in parts]):
                progress(done.result())
    for prefix, split in splits.items():
        join_datasets([part.with_suffix("") for part in split], prefix)


_BINARIZERS: list[VocabularyDatasetBinarizer] = []  # of a worker process, which unpickles it once, not for each part


def _set_binarizer(binarizer: VocabularyDatasetBinarizer) -> None:
    _BINARIZERS[:] = [binarizer]


def _binarize_here(part: Path) -> int:
    return _binarize_part(_BINARIZERS[0], part)


def _binarize_part(binarizer: VocabularyDatasetBinarizer, part: Path) -> int:
    size = part.stat().st_size
    FileBinarizer.multiprocess_dataset(
        str(part),
        "mmap",
        binarizer,
        str(part.with_suffix("")),
        vocab_size=len(binarizer.dict),
        num_workers=1,
    )
    part.unlink()
    return size


def join_datasets(prefixes: Sequence[Path], dest: Path) -> None:
    """Join mmap datasets of one id type and delete them; memory holds the line lengths of one dataset at a time."""
    header = _with(prefixes[0], ".idx").read_bytes()[:INDEX_HEADER_BYTES]
    parts = [MMapIndexedDataset(str(prefix)) for prefix in prefixes]
    with open(_with(dest, ".idx"), "wb") as out:
        out.write(header + struct.pack("<Q", sum(map(len, parts))))
        for part in parts:
            out.write(part.sizes.tobytes())
        address = 0
        for part in parts:
            ends = address + np.cumsum(part.sizes, dtype=np.int64) * part._index.dtype().itemsize
            out.write(np.concatenate(([address], ends[:-1])).astype(np.int64).tobytes())
            address = int(ends[-1])
    shutil.move(_with(prefixes[0], ".bin"), _with(dest, ".bin"))
    with open(_with(dest, ".bin"), "ab") as out:
        for prefix in prefixes[1:]:
            with open(_with(prefix, ".bin"), "rb") as ids:
                shutil.copyfileobj(ids, out, 1 << 20)
            _with(prefix, ".bin").unlink()
    for prefix in prefixes:
        _with(prefix, ".idx").unlink()


def count_ids(prefix: Path, vocabulary: int) -> NDArray[np.int64]:
    """Return how often each id occurs in a dataset: int64 of shape (vocabulary,)."""
    kind = np.dtype(best_fitting_int_dtype(vocabulary))
    counts = np.zeros(vocabulary, dtype=np.int64)
    with open(_with(prefix, ".bin"), "rb") as stream:
        while len(ids := np.fromfile(stream, dtype=kind, count=CHUNK_IDS)):
            counts += np.bincount(ids, minlength=vocabulary)
    return counts


def _with(prefix: Path, suffix: str) -> Path:
    return prefix.with_name(prefix.name + suffix)
