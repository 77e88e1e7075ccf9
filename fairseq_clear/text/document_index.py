"""Where the documents of binarized data begin and end: found once, kept beside the data as a memory-mapped array.

A line that is ``</s>`` alone is blank. Documents are runs of other lines, or single ones (``boundary="line"``). One pass over
the line lengths in chunks finds them: linear time, and temporary memory that does not grow with the data.
"""

import hashlib
import logging
import os
import uuid
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fairseq_clear.errors import UserError
from fairseq_clear.spec import BOUNDARIES

__all__ = ["find_documents", "index_path", "load_document_index"]

logger = logging.getLogger(__name__)

FORMAT = 1
CHUNK_LINES = 1 << 22
_EDGE_BYTES = 1 << 16

Bounds = npt.NDArray[np.int64]
"""(D, 2): the first line of each document, and the line after its last."""


def find_documents(sizes: npt.NDArray[np.int32], boundary: str = "blank") -> Bounds:
    """The documents of lines of these lengths (L,), each counting its ``</s>``.

    Raises:
        UserError: no such boundary.
    """
    if boundary not in BOUNDARIES:
        raise UserError(f"--document-boundary {boundary}: choose from {', '.join(BOUNDARIES)}")
    parts = []
    was_text = False  # the line before the chunk
    for first in range(0, len(sizes), CHUNK_LINES):
        is_text = np.asarray(sizes[first : first + CHUNK_LINES]) > 1
        if boundary == "line":
            parts.append(np.flatnonzero(is_text) + first)
            continue
        changes = np.empty(len(is_text), np.bool_)
        changes[0] = is_text[0] != was_text
        np.not_equal(is_text[1:], is_text[:-1], out=changes[1:])
        was_text = bool(is_text[-1])
        parts.append(np.flatnonzero(changes) + first)
    edges = np.concatenate([np.zeros(0, np.int64), *parts])
    if boundary == "line":
        return np.stack([edges, edges + 1], axis=1)
    if was_text:
        edges = np.append(edges, len(sizes))
    return edges.reshape(-1, 2)


def index_path(prefix: str | Path, boundary: str) -> Path:
    """Where the index of the data ``prefix.bin`` and ``prefix.idx`` is kept."""
    return Path(f"{prefix}.documents-{boundary}.npy")


def load_document_index(prefix: str | Path, sizes: npt.NDArray[np.int32], boundary: str = "blank") -> Bounds:
    """The documents of the data at ``prefix``, memory-mapped where its folder can be written to.

    The file begins with a key made of the ``.idx`` file's length, time and both ends, so that new data makes a new index.
    It is written beside its place and renamed: another process sees a whole one or none. A folder that cannot be written to,
    or that is full, costs the search at each start and its result in memory.
    """
    place = index_path(prefix, boundary)
    key = _key(Path(f"{prefix}.idx"), boundary)
    kept = _read(place, key, len(sizes))
    if kept is not None:
        return kept
    bounds = find_documents(sizes, boundary)
    beside = place.with_name(f".{place.name}.{uuid.uuid4().hex}")
    try:
        try:
            with open(beside, "xb") as file:
                np.save(file, np.concatenate([key, bounds]))
            os.replace(beside, place)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
    except OSError as error:
        logger.info("%s: cannot keep the document index (%s); it stays in memory", place, error.strerror or error)
        return bounds
    kept = _read(place, key, len(sizes))
    return bounds if kept is None else kept


def _key(idx: Path, boundary: str) -> Bounds:
    """(1, 2) int64."""
    status = idx.stat()
    digest = hashlib.blake2b(f"{FORMAT} {boundary} {status.st_size} {status.st_mtime_ns}".encode(), digest_size=16)
    with open(idx, "rb") as file:
        digest.update(file.read(_EDGE_BYTES))
        file.seek(max(status.st_size - _EDGE_BYTES, 0))
        digest.update(file.read(_EDGE_BYTES))
    return np.frombuffer(digest.digest(), np.int64).reshape(1, 2)


def _read(place: Path, key: Bounds, lines: int) -> Bounds | None:
    """The index at ``place``; None where it is missing, damaged, or of other data."""
    try:
        stored = np.load(place, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    is_ours = stored.dtype == np.int64 and stored.ndim == 2 and stored.shape[1:] == (2,) and len(stored) > 0
    if not is_ours or (stored[0] != key[0]).any() or (len(stored) > 1 and stored[-1, 1] > lines):
        return None
    bounds: Bounds = stored[1:]
    return bounds
