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
from fairseq_clear.files import CorpusFile, check_output_file, read_whole_lines, record_texts, sync_folder
from fairseq_clear.models.encoding import EncodingCounts, Floats
from fairseq_clear.shared_work import FINISHED, Workers, open_work, take_blocks

BLOCK = 10_000  # sentences that are sorted by length and encoded together
FORMATS = (".npy", ".jsonl")

# encodes the texts of a block: their vectors (n, D), and their counts
Encode = Callable[[list[str]], tuple[Floats, EncodingCounts]]


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
            yield " ".join(record_texts(line, (text_field,), path, number)[0].splitlines())


@dataclass(frozen=True)
class Sentences:
    """A scanned file: the number of its sentences, and the SHA-256 of their text, each followed by a line feed."""

    path: Path
    text_field: str  # see ``read_sentences``
    count: int
    sha256: str

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return -(-self.count // BLOCK)

    def encoded(
        self, numbers: Sequence[int], encode: Encode
    ) -> Iterator[tuple[int, list[str], Floats, EncodingCounts]]:
        """Yield number, sentences, vectors (n, D) and counts of the blocks with these ascending numbers.

        Raises:
            UserError: the file has changed since it was scanned, or a vector has NaN or infinity.
        """
        for number, texts in take_blocks(read_sentences(self.path, self.text_field), BLOCK, numbers):
            if len(texts) != min(BLOCK, self.count - number * BLOCK):
                what = "has changed since its texts were counted; rerun when it no longer changes"
                raise UserError(f"{self.path}: {what}")
            vectors, counts = encode(texts)
            if not np.isfinite(vectors).all():  # JSON cannot hold them and no search can compare them
                raise UserError("a vector has NaN or infinity; check the checkpoint")
            yield number, texts, vectors, counts


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


def write_jsonl(stream: BinaryIO, sentences: Sentences, encode: Encode) -> EncodingCounts:
    """Write a line ``{"text": ..., "embedding": [...]}`` per text in UTF-8, with the shortest exact numbers."""
    total = EncodingCounts()
    for _, texts, vectors, counts in sentences.encoded(range(sentences.blocks), encode):
        total += counts
        for text, vector in zip(texts, vectors, strict=True):
            embedding = [float(str(number)) for number in vector]
            record = json.dumps({"text": text, "embedding": embedding}, ensure_ascii=False)
            stream.write(f"{record}\n".encode())
    return total


def write_array(
    output: Path,
    sentences: Sentences,
    encode: Encode,
    dimension: int,
    settings: Mapping[str, Any],
    *,
    workers: Workers,
    overwrite: bool = False,
) -> EncodingCounts:
    """Write the vectors to a (sentences, dimension) array. The workers share the blocks; a killed call can be resumed.

    The file has the same bytes for any number of workers on devices of one kind.

    Args:
        settings, overwrite: what determines the vectors, see ``open_work``.

    Returns:
        The counts of all texts; on other workers than the first, zeros.
    """
    output = Path(os.path.realpath(output))  # a link stays
    record = {**settings, "input": sentences.sha256, "dimension": dimension, "block": BLOCK}
    with open_work(output, record, sentences.blocks, workers, overwrite=overwrite) as work:
        array = work.folder / "vectors.npy"
        if workers.rank == 0 and not any(work.folder.glob(FINISHED)):
            _allocate(array, (sentences.count, dimension))
        workers.gather(None)
        try:
            start = int(np.load(array, mmap_mode="r").offset)
        except (OSError, ValueError, EOFError):
            raise UserError(f"{array}: was damaged after it was written; remove {work.folder} and rerun") from None
        with array.open("r+b") as stream:
            for number, _, vectors, counts in sentences.encoded(work.own, encode):
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
    return total


def _allocate(array: Path, shape: tuple[int, int]) -> None:
    """Make the file, and reserve its space, so that a full disk is found at once."""
    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
    with array.open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, header)
        stream.flush()
        os.posix_fallocate(stream.fileno(), stream.tell(), 4 * shape[0] * shape[1])
