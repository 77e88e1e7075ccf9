"""Encodes a file of sentences to a file of vectors, block by block, in constant memory."""

import hashlib
import io
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Protocol, TextIO

import numpy as np

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.sentence_encoder import SentenceEncoder
from fairseq_clear.files import CorpusFile, check_output_file, read_whole_lines, record_text, write_errors, write_whole
from fairseq_clear.models.encoding import EncodingCounts, Floats

__all__ = [
    "BLOCK",
    "FORMATS",
    "EmbedReport",
    "Sentences",
    "check_output",
    "embed_lines",
    "jsonl_writer",
    "open_output",
    "scan_sentences",
    "write_npy_header",
]

BLOCK = 10_000  # sentences that are sorted by length and encoded together
FORMATS = (".npy", ".jsonl")


class Writer(Protocol):
    """Function that writes the vectors (n, D) of consecutive texts."""

    def __call__(self, texts: list[str], vectors: Floats) -> None:
        """Write one block."""


@dataclass(frozen=True)
class EmbedReport:
    """Statistics of ``embed_lines``: counts, the dimension of the vectors, and the total wall time in seconds."""

    counts: EncodingCounts
    dimension: int
    seconds: float

    def summary(self) -> str:
        """The report in one line."""
        counts = self.counts
        return (
            f"{counts.sentences:,} sentences, dimension {self.dimension}; {counts.truncated:,} cut at the model's length; "
            f"{counts.unknown_share:.2%} unknown tokens; {counts.padding_share:.1%} padding; "
            f"{counts.sentences / max(self.seconds, 1e-9):,.0f} sentences/s"
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
    """Number of sentences of an input, and the SHA-256 of their text, each followed by a line feed."""

    count: int
    sha256: str


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
    return Sentences(count, digest.hexdigest())


def check_output(path: Path, overwrite: bool) -> None:
    """Raise UserError if the suffix is unknown, the folder is missing, or the file exists and ``overwrite`` is off."""
    if path.suffix not in FORMATS:
        raise UserError(f"--output {path}: unknown suffix; give {' or '.join(FORMATS)}")
    check_output_file(path, overwrite)


def embed_lines(
    encoder: SentenceEncoder,
    path: Path,
    write: Writer,
    *,
    batch_size: int = 32,
    normalize: bool = False,
    text_field: str = "text",
    lines: range | None = None,
    block: int = BLOCK,
    on_batch: Callable[[int], object] | None = None,
) -> EmbedReport:
    """Encode the lines of a text file and pass the vectors to ``write``, block by block, in order.

    Args:
        encoder: encodes each block.
        path: of the file; see ``read_sentences``.
        write: called with each block.
        batch_size: texts per batch, as for ``SentenceEncoder.encode``.
        normalize: scale vectors to length 1.
        text_field: name of the field of a ``.jsonl`` record that holds its text.
        lines: the texts to encode, counted from 0 (default: all).
        block: number of texts that are encoded together.
        on_batch: called after each batch with the number of its texts.
    """
    started = time.perf_counter()
    counts = EncodingCounts()
    chosen = islice(read_sentences(path, text_field), *((lines.start, lines.stop) if lines is not None else (None,)))
    while texts := list(islice(chosen, block)):
        write(texts, encoder.encode_block(texts, batch_size, normalize=normalize, on_batch=on_batch))
        counts += encoder.last
    return EmbedReport(counts, encoder.dimension, time.perf_counter() - started)


@contextmanager
def open_output(path: Path, rows: int, dimension: int) -> Iterator[Writer]:
    """Open a writer to ``path``. The file only appears if the block ends without an error.

    Args:
        path: ``.npy`` for a (rows, dimension) float32 array, ``.jsonl`` for the lines of ``jsonl_writer``.
        rows: number of rows that will be written; used for ``.npy``.
        dimension: of the vectors.
    """
    with write_errors(path), write_whole(path) as binary:
        if path.suffix == ".npy":
            yield _npy_writer(binary, rows, dimension)
        else:
            stream = io.TextIOWrapper(binary, encoding="utf-8", write_through=True)
            yield jsonl_writer(stream)
            stream.detach()  # write_whole still needs the open file


def jsonl_writer(stream: TextIO) -> Writer:
    """A writer of lines ``{"text": ..., "embedding": [...]}``, with the shortest numbers that read back as the same float32."""

    def write(texts: list[str], vectors: Floats) -> None:
        for text, vector in zip(texts, vectors, strict=True):
            embedding = [float(str(number)) for number in vector]
            stream.write(json.dumps({"text": text, "embedding": embedding}, ensure_ascii=False) + "\n")

    return write


def _npy_writer(stream: BinaryIO, rows: int, dimension: int) -> Writer:
    # Written row by row: with a memory map, a full disk would end in a SIGBUS instead of an error.
    write_npy_header(stream, rows, dimension)

    def write(texts: list[str], vectors: Floats) -> None:
        stream.write(np.ascontiguousarray(vectors, "<f4").data)

    return write


def write_npy_header(stream: BinaryIO, rows: int, dimension: int) -> None:
    """Write the start of a ``.npy`` file of a (rows, dimension) float32 array; its rows follow."""
    np.lib.format.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": (rows, dimension)})
