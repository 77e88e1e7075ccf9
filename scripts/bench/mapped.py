"""Writes random binarized data quickly, in the format of fairseq's binarizer."""

import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt

__all__ = ["write_data", "write_index"]

VOCABULARY, EOS = 8_000, 2
FIRST_ID = 4  # after <s>, <pad>, </s>, <unk>
LINES_OF_DOCUMENT, CHUNK_LINES = 20, 1 << 18


def write_index(prefix: Path, sizes: npt.NDArray[np.int32]) -> None:
    """Write ``prefix.idx`` for lines of these lengths (L,) with ids of type uint16."""
    with open(f"{prefix}.idx", "wb") as file:
        file.write(b"MMIDIDX\x00\x00" + struct.pack("<QBQ", 1, 8, len(sizes)))
        file.write(sizes.tobytes())
        file.write(((np.cumsum(sizes, dtype=np.int64) - sizes) * 2).tobytes())


def write_data(folder: Path, lines: int) -> None:
    """Write ``dict.txt``, ``train.bin`` and ``train.idx`` as fairseq's binarizer would."""
    folder.mkdir(parents=True)
    dictionary = "".join(f"w{number} 1\n" for number in range(VOCABULARY))
    (folder / "dict.txt").write_text(dictionary, encoding="utf-8")
    rng = np.random.default_rng(1)
    sizes = rng.integers(5, 21, lines, dtype=np.int32)
    sizes[LINES_OF_DOCUMENT :: LINES_OF_DOCUMENT + 1] = 1  # </s> alone
    with open(folder / "train.bin", "wb") as file:
        for first in range(0, lines, CHUNK_LINES):
            part = sizes[first : first + CHUNK_LINES]
            ids = rng.integers(FIRST_ID, FIRST_ID + VOCABULARY, int(part.sum()), dtype=np.uint16)
            ids[np.cumsum(part) - 1] = EOS
            file.write(ids.tobytes())
    write_index(folder / "train", sizes)
