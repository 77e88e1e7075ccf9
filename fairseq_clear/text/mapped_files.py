"""Whether binarized text is whole, before anything reads it: fairseq maps the files and finds out in the midst of a run."""

import itertools
from pathlib import Path

import numpy as np

from fairseq_clear.errors import UserError
from fairseq_clear.text.data_folders import DICTIONARY

__all__ = ["check_data_files"]

# MMapIndexedDataset: magic, version (8), type of the ids (1), number of lines (8); int32 sizes, int64 addresses.
MAGIC = b"MMIDIDX\0\0"
HEADER = 26
TYPES = {
    1: np.uint8,
    2: np.int8,
    3: np.int16,
    4: np.int32,
    5: np.int64,
    6: np.float64,
    7: np.double,
    8: np.uint16,
    9: np.uint32,
    10: np.uint64,
}
LINES = 1 << 20
IDS = 1 << 22
REMEDY = "make the data folder again"


def check_data_files(prefix: str, entries: int, *, combine: bool = False) -> None:
    """Check sizes and addresses of all lines, and that every id is in the vocabulary; in bounded memory.

    Files of fairseq's other formats (``--dataset-impl`` raw, lazy, cached) are left to fairseq.

    Args:
        prefix: of ``.bin`` and ``.idx``.
        entries: of the vocabulary, special symbols included; ids are smaller.
        combine: also ``prefix1``, ``prefix2``, ..., as ``--combine-val`` reads them.

    Raises:
        UserError: a file that is cut off, the two not belonging together, an id that ``dict.txt`` does not have.
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


def _check(index: Path, ids: Path, entries: int) -> None:
    size = index.stat().st_size
    with index.open("rb") as stream:
        header = stream.read(HEADER)
    if not header.startswith(MAGIC[: len(header)]):
        return  # another format
    lines = int.from_bytes(header[18:HEADER], "little")
    if len(header) < HEADER or header[17] not in TYPES or size != HEADER + 12 * lines:
        raise UserError(f"{index}: {size} bytes, but {lines} lines take {HEADER + 12 * lines}: cut off; {REMEDY}")
    dtype = np.dtype(TYPES[header[17]])
    expected = _bytes_of_lines(index, lines, dtype.itemsize)
    found = ids.stat().st_size
    if found != expected:
        raise UserError(f"{ids}: {found} bytes, but {index.name} describes {expected}: cut off, or of others; {REMEDY}")
    if np.issubdtype(dtype, np.integer):
        _check_ids(ids, dtype, entries)


def _bytes_of_lines(index: Path, lines: int, width: int) -> int:
    """What all lines take, after checking that each begins where the one before it ends."""
    end = 0
    with index.open("rb") as sizes_stream, index.open("rb") as addresses_stream:
        sizes_stream.seek(HEADER)
        addresses_stream.seek(HEADER + 4 * lines)
        for first in range(0, lines, LINES):
            count = min(LINES, lines - first)
            sizes = np.fromfile(sizes_stream, np.int32, count)
            ends = end + np.cumsum(sizes, dtype=np.int64) * width
            addresses = np.fromfile(addresses_stream, np.int64, count)
            if (sizes < 0).any() or addresses[0] != end or (addresses[1:] != ends[:-1]).any():
                raise UserError(f"{index}: its lines do not follow each other: damaged; {REMEDY}")
            end = int(ends[-1])
    return end


def _check_ids(path: Path, dtype: np.dtype[np.generic], entries: int) -> None:
    with path.open("rb") as stream:
        while len(ids := np.fromfile(stream, dtype, IDS)):
            low, high = int(ids.min()), int(ids.max())
            if low < 0 or high >= entries:
                raise UserError(
                    f"{path}: holds the token id {high if low >= 0 else low}, but {DICTIONARY} has {entries} entries, "
                    f"special symbols included: it is cut off or of other data; {REMEDY}"
                )
