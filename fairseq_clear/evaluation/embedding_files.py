"""Encodes a file of sentences to a file of vectors, block by block, in constant memory and with any number of workers."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fairseq_clear.errors import UserError
from fairseq_clear.files import CorpusFile, check_output_file, read_whole_lines, record_text, sync_folder
from fairseq_clear.models.encoding import EncodingCounts, Floats
from fairseq_clear.shared_work import FINISHED, Workers, open_work, take_blocks

BLOCK = 10_000  # sentences that are sorted by length and encoded together
FORMATS = (".npy", ".jsonl")

# encodes the texts of a block: their vectors (n, D), and their counts
Encode = Callable[[list[str]], tuple[Floats, EncodingCounts]]


@dataclass(frozen=True)
class EmbedReport:
    """Counts of all texts, and the dimension of their vectors."""

    counts: EncodingCounts
    dimension: int

    def summary(self) -> str:
        """The report in one line."""
        counts = self.counts
        return (
            f"{counts.sentences:,} sentences, dimension {self.dimension}; {counts.truncated:,} cut at the model's length; "
            f"{counts.unknown_share:.2%} unknown tokens; {counts.padding_share:.1%} padding"
        )


def read_sentences(path: Path, text_field: str = "text") -> Iterator[str]:
    """Yield the lines of a UTF-8 text file (also ``.gz`` and ``.xz``); a blank line is an empty text.

    Lines end with LF or CRLF, as ``wc -l`` counts them; a CR within a line becomes a space. In ``.jsonl`` each line is a
    record, whose text is under ``text_field``; line breaks in it become spaces, and blank lines are ignored.
    """
    is_jsonl = CorpusFile(path).is_jsonl
    for number, line in read_whole_lines(path):
        if not is_jsonl:
            yield line.replace("\r", " ")
        elif line.strip():
            yield " ".join(record_text(line, text_field, path, number).splitlines())


@dataclass(frozen=True)
class Sentences:
    """A scanned file: the number of its sentences, and the SHA-256 of their text, each followed by a line feed."""

    path: Path
    text_field: str  # see ``read_sentences``
    count: int
    sha256: str

    def blocks(self, numbers: Sequence[int]) -> Iterator[tuple[int, list[str]]]:
        """Yield number and sentences of the blocks with these ascending numbers; UserError if the file has changed."""
        for number, texts in take_blocks(read_sentences(self.path, self.text_field), BLOCK, numbers):
            if len(texts) != min(BLOCK, self.count - number * BLOCK):
                what = "has changed since its texts were counted; rerun when it no longer changes"
                raise UserError(f"{self.path}: {what}")
            yield number, texts


def scan_sentences(path: Path, text_field: str = "text") -> Sentences:
    """Count and hash the texts. Since this reads all of them, a malformed line is found before the first text is encoded.

    Raises:
        UserError: the file is unreadable or has no lines.
    """
    digest, count = hashlib.sha256(), 0
    for text in read_sentences(path, text_field):
        digest.update(text.encode() + b"\n")
        count += 1
    if not count:
        raise UserError(f"{path}: holds no line; give a text file with one sentence a line")
    return Sentences(path, text_field, count, digest.hexdigest())


def check_output(path: Path, overwrite: bool) -> None:
    """Raise UserError if the suffix is unknown, the folder is missing, or a file exists and ``overwrite`` is off."""
    if path.suffix not in FORMATS:
        raise UserError(f"--output {path}: unknown suffix; give {' or '.join(FORMATS)}")
    check_output_file(path, overwrite)


def write_jsonl(stream: BinaryIO, sentences: Sentences, encode: Encode) -> EmbedReport:
    """Write a line ``{"text": ..., "embedding": [...]}`` per text in UTF-8, with the shortest numbers that read back exactly.

    Raises:
        UserError: the input has changed since it was scanned.
    """
    total, dimension = EncodingCounts(), 0
    for _, texts in sentences.blocks(range(-(-sentences.count // BLOCK))):
        vectors, counts = _finite(*encode(texts))
        total, dimension = total + counts, vectors.shape[1]
        for text, vector in zip(texts, vectors, strict=True):
            embedding = [float(str(number)) for number in vector]
            record = json.dumps({"text": text, "embedding": embedding}, ensure_ascii=False)
            stream.write(f"{record}\n".encode())
    return EmbedReport(total, dimension)


def write_array(
    output: Path,
    sentences: Sentences,
    encode: Encode,
    dimension: int,
    settings: Mapping[str, Any],
    *,
    workers: Workers,
    overwrite: bool = False,
) -> EmbedReport:
    """Write the vectors to a (sentences, dimension) array. The workers share the blocks; a killed call can be resumed.

    The file has the same bytes for any number of workers on devices of one kind.

    Args:
        settings, overwrite: what determines the vectors, see ``open_work``.

    Raises:
        UserError: the input has changed since it was scanned, or as for ``open_work``.
    """
    record = {**settings, "input": sentences.sha256, "dimension": dimension, "block": BLOCK}
    with open_work(output, record, -(-sentences.count // BLOCK), workers, overwrite=overwrite) as work:
        array = work.folder / "vectors.npy"
        if workers.rank == 0 and not any(work.folder.glob(FINISHED)):
            _allocate(array, (sentences.count, dimension))
        workers.gather(None)
        start = _first_byte(array)
        with array.open("r+b") as stream:
            for number, texts in sentences.blocks(work.own):
                vectors, counts = _finite(*encode(texts))
                # not a memory map: a full disk would end in a SIGBUS instead of an error
                stream.seek(start + 4 * number * BLOCK * dimension)
                stream.write(np.ascontiguousarray(vectors, "<f4").data)
                stream.flush()
                os.fsync(stream.fileno())
                work.finish(number, asdict(counts))
        workers.gather(None)
        total = EncodingCounts()
        if workers.rank == 0:
            total = sum((EncodingCounts(**counts) for counts in work.results()), total)
            os.replace(array, output)
            sync_folder(output.parent)
    return EmbedReport(total, dimension)


def _finite(vectors: Floats, counts: EncodingCounts) -> tuple[Floats, EncodingCounts]:
    """Return what was given; UserError if a vector has NaN or infinity, which JSON cannot hold and no search can compare."""
    if not np.isfinite(vectors).all():
        raise UserError("a vector has NaN or infinity; check the checkpoint")
    return vectors, counts


def _allocate(array: Path, shape: tuple[int, int]) -> None:
    """Make the file, and reserve its space, so that a full disk is found at once."""
    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
    with array.open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, header)
        stream.flush()
        os.posix_fallocate(stream.fileno(), stream.tell(), 4 * shape[0] * shape[1])


def _first_byte(array: Path) -> int:
    """Return the position of the first vector in the file; UserError if the file was removed from under finished blocks."""
    try:
        return int(np.load(array, mmap_mode="r").offset)
    except (OSError, ValueError):
        raise UserError(f"{array}: was damaged after it was written; remove {array.parent} and rerun") from None
