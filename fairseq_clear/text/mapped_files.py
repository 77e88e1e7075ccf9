"""Reads the ``.idx`` files of fairseq's memory-mapped format, and checks that ``.idx`` and ``.bin`` are complete.

fairseq maps the files without a check, so a file that is cut off stops a run in the middle of training.
"""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fairseq_clear.errors import UserError
from fairseq_clear.text.data_folders import DICTIONARY

# MMapIndexedDataset: magic (9 bytes), version (8), type of the ids (1), number of lines (8); int32 sizes, int64 addresses.
MAGIC = b"MMIDIDX\0\0"
HEADER_BYTES = 26
# fairseq's code of the type of the ids -> numpy's type; float64 has two codes.
TYPES = dict(enumerate(("u1", "i1", "i2", "i4", "i8", "f8", "f8", "u2", "u4", "u8"), start=1))
LINES = 1 << 20
IDS = 1 << 22
REMEDY = "make the data folder again"


def read_index(path: str | Path) -> tuple[np.dtype[Any], npt.NDArray[np.int32], npt.NDArray[np.int64]] | None:
    """Open an ``.idx`` file; None if the file has another format (``--dataset-impl`` raw, lazy, cached).

    Returns:
        The type of the token ids in the ``.bin`` file; and, memory-mapped, the number of tokens of each line (L,), including
        ``</s>``, and its first byte in the ``.bin`` file (L,).

    Raises:
        OSError: the file is unreadable.
        UserError: the file is cut off or damaged.
    """
    size = Path(path).stat().st_size
    with open(path, "rb") as stream:
        header = stream.read(HEADER_BYTES)
    if not header.startswith(MAGIC[: len(header)]):
        return None
    lines = int.from_bytes(header[18:], "little")
    if len(header) < HEADER_BYTES or header[17] not in TYPES or size != HEADER_BYTES + 12 * lines:
        raise UserError(f"{path}: {size} bytes, but {lines} lines take {HEADER_BYTES + 12 * lines}: cut off; {REMEDY}")
    # plain arrays over the maps: a slice of np.memmap itself costs microseconds
    sizes = np.asarray(np.memmap(path, np.int32, mode="r", offset=HEADER_BYTES, shape=(lines,)))
    addresses = np.memmap(path, np.int64, mode="r", offset=HEADER_BYTES + 4 * lines, shape=(lines,))
    return np.dtype(TYPES[header[17]]), sizes, np.asarray(addresses)


def check_data_files(prefix: str, entries: int, *, combine: bool = False) -> None:
    """Check sizes and addresses of all lines, and that every token id is in the vocabulary, with bounded memory.

    Args:
        prefix: path of ``.bin`` and ``.idx``.
        entries: size of the vocabulary, including special symbols; ids are smaller.
        combine: also check ``prefix1``, ``prefix2``, ..., as ``--combine-val`` reads them.

    Raises:
        UserError: a file is cut off, the two files do not belong together, or ``dict.txt`` lacks an id.
    """
    for number in itertools.count():
        part = f"{prefix}{number or ''}"
        index, ids = Path(f"{part}.idx"), Path(f"{part}.bin")
        if (number and not combine) or not (index.is_file() and ids.is_file()):
            return
        try:
            _check(index, ids, entries)
        except OSError as error:
            raise UserError(f"{error.filename or index}: cannot read it ({error.strerror or error})") from None


def _check(path: Path, ids: Path, entries: int) -> None:
    index = read_index(path)
    if index is None:  # fairseq's lazy and cached formats
        raise UserError(f"{path}: is not memory-mapped; binarize again with --dataset-impl mmap, the default")
    end, (dtype, all_sizes, all_addresses) = 0, index
    if not len(all_sizes):
        raise UserError(f"{path}: holds no line; {REMEDY}")
    for first in range(0, len(all_sizes), LINES):
        sizes, addresses = all_sizes[first : first + LINES], all_addresses[first : first + LINES]
        ends = end + np.cumsum(sizes, dtype=np.int64) * dtype.itemsize
        if (sizes < 0).any() or addresses[0] != end or (addresses[1:] != ends[:-1]).any():
            raise UserError(f"{path}: its lines are not consecutive: damaged; {REMEDY}")
        end = int(ends[-1])
    found = ids.stat().st_size
    if found != end:
        raise UserError(f"{ids}: {found} bytes, but {path.name} describes {end}: cut off, or of other data; {REMEDY}")
    if np.issubdtype(dtype, np.integer):
        _check_ids(ids, dtype, entries)


def _check_ids(path: Path, dtype: np.dtype[Any], entries: int) -> None:
    with path.open("rb") as stream:
        while len(ids := np.fromfile(stream, dtype, IDS)):
            low, high = int(ids.min()), int(ids.max())
            if low < 0 or high >= entries:
                raise UserError(
                    f"{path}: holds the token id {high if low >= 0 else low}, but {DICTIONARY} has {entries} entries, "
                    f"special symbols included: it is cut off or of other data; {REMEDY}"
                )
