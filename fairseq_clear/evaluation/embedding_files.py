"""Encodes a file of sentences to a file of vectors, whole or in parts, block by block, in constant memory.

A part of ``out.npy`` is two files: ``out.npy.part-2-of-8.npy``, its vectors, and ``out.npy.part-2-of-8.json``, its record,
which is written last. A part without a record is not finished.
"""

import hashlib
import io
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import numpy as np

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.sentence_encoder import SentenceEncoder
from fairseq_clear.files import (
    CorpusFile,
    check_output_file,
    hash_file,
    read_whole_lines,
    record_text,
    write_errors,
    write_json,
    write_whole,
)
from fairseq_clear.models.encoding import EncodingCounts, Floats

__all__ = [
    "EmbedReport",
    "Sentences",
    "Shard",
    "embed_lines",
    "join_parts",
    "open_output",
    "read_sentences",
    "write_part",
]

BLOCK = 10_000  # sentences that are sorted by length and encoded together
FORMATS = (".npy", ".jsonl")
SHARD = re.compile(r"([0-9]+)/([0-9]+)")
COPIED_BYTES = 2**22
NAMED = 5  # missing parts that a message names


Writer = Callable[[list[str], Floats], object]  # writes the vectors (n, D) of consecutive texts


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
        path: of the file; see ``read_sentences``.
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
    """Open a writer to ``path``. The file only appears if the block ends without an error and wrote all rows.

    Args:
        path: ``.npy`` for a (rows, dimension) float32 array, ``.jsonl`` for the lines of ``jsonl_writer``.
        rows: number of rows that the block writes.
        dimension: of the vectors.

    Raises:
        UserError: the block wrote another number of rows.
    """
    written = 0

    def counted(write: Writer) -> Writer:
        def call(texts: list[str], vectors: Floats) -> None:
            nonlocal written
            write(texts, vectors)
            written += len(texts)

        return call

    with write_errors(path), write_whole(path) as binary:
        if path.suffix == ".npy":
            # Written row by row: with a memory map, a full disk would end in a SIGBUS instead of an error.
            _write_npy_header(binary, rows, dimension)
            yield counted(lambda texts, vectors: binary.write(np.ascontiguousarray(vectors, "<f4").data))
        else:
            stream = io.TextIOWrapper(binary, encoding="utf-8", write_through=True)
            yield counted(jsonl_writer(stream))
            stream.detach()  # write_whole still needs the open file
        if written != rows:
            raise UserError(
                f"--output {path}: the input had {rows:,} texts and now has {written:,}; rerun when it no longer changes"
            )


def jsonl_writer(stream: TextIO) -> Writer:
    """A writer of lines ``{"text": ..., "embedding": [...]}``, with the shortest numbers that read back as the same float32."""

    def write(texts: list[str], vectors: Floats) -> None:
        for text, vector in zip(texts, vectors, strict=True):
            embedding = [float(str(number)) for number in vector]
            stream.write(json.dumps({"text": text, "embedding": embedding}, ensure_ascii=False) + "\n")

    return write


def _write_npy_header(stream: BinaryIO, rows: int, dimension: int) -> None:
    """Write the start of a ``.npy`` file of a (rows, dimension) float32 array; its rows follow."""
    np.lib.format.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": (rows, dimension)})


@dataclass(frozen=True)
class Shard:
    """Part ``number`` of ``count``; the first part is number 1."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """Read ``I/N``; UserError if it has another form or I is not from 1 to N."""
        match = SHARD.fullmatch(text)
        if match is None:
            raise UserError(f"--shard {text}: give I/N, such as 1/8 for the first of 8 parts")
        shard = cls(int(match[1]), int(match[2]))
        if not 1 <= shard.number <= shard.count:
            raise UserError(f"--shard {text}: the parts are 1/{shard.count} to {shard.count}/{shard.count}")
        return shard

    def lines(self, count: int, block: int = BLOCK) -> range:
        """The part's lines, counted from 0, of ``count`` lines.

        A part consists of whole blocks of ``embed_lines``, so its batches, and the last bits of its vectors, are those of a
        run without parts. The sizes of two parts differ by at most one block.
        """
        blocks = -(-count // block)
        first, end = (blocks * number // self.count * block for number in (self.number - 1, self.number))
        return range(min(first, count), min(end, count))

    def path(self, output: Path) -> Path:
        """The file of the part's vectors, next to the output."""
        return output.with_name(f"{output.name}.part-{self.number}-of-{self.count}{output.suffix}")


def _record_path(part: Path) -> Path:
    return part.with_suffix(".json")


def write_part(
    output: Path,
    shard: Shard,
    source: Mapping[str, Any],
    shape: tuple[int, int],
    embed: Callable[[Writer], EmbedReport],
    *,
    overwrite: bool,
) -> EmbedReport | None:
    """Write a part and its record, which only appear if ``embed`` ends without an error; return None if they exist already.

    Args:
        output: of all parts.
        source: what determines the vectors of all parts, as JSON values; ``join_parts`` compares it.
        shape: number of lines of the part, dimension of the vectors.
        embed: writes the vectors.

    Raises:
        UserError: the part exists, made from another source, and ``overwrite`` is False.
    """
    part, old = shard.path(output), _read_record(output, shard)
    if old is not None and not overwrite:
        if what := _differences(old["source"], source):
            raise UserError(f"--output {part}: exists, made with another {what}; add --overwrite to replace it")
        return None
    with write_errors(part):
        _record_path(part).unlink(missing_ok=True)  # it describes the vectors that are now replaced
        with open_output(part, *shape) as write:
            report = embed(write)
        digest = hash_file(part)
    record = {"source": dict(source), "rows": shape[0], "dimension": shape[1], "counts": asdict(report.counts)}
    write_json(_record_path(part), {**record, "sha256": digest, "seconds": report.seconds}, flag="--output")
    return report


def _read_record(output: Path, shard: Shard) -> dict[str, Any] | None:
    """Read the record of a part; None if the part is missing or not finished."""
    part = shard.path(output)
    try:
        record = json.loads(_record_path(part).read_bytes())
        is_whole = isinstance(record["source"], dict) and part.is_file()
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return record if is_whole else None


def join_parts(output: Path, count: int, *, overwrite: bool = False, parts_of: Path | None = None) -> EmbedReport:
    """Join all parts into ``output``, which has the bytes of a run without parts, and remove them.

    Args:
        output: file to write.
        parts_of: the output that the parts are named after (default: ``output``).

    Returns:
        The sums of the counts, with the seconds of the slowest part.

    Raises:
        UserError: a part is missing, was made from another source, or has changed; then no output is written.
    """
    check_output(output, overwrite)
    named = parts_of or output
    shards = [Shard(number, count) for number in range(1, count + 1)]
    records = _read_records(named, shards)
    rows, dimension = sum(record["rows"] for record in records), records[0]["dimension"]
    with write_errors(output), write_whole(output) as stream:
        if output.suffix == ".npy":
            _write_npy_header(stream, rows, dimension)
        for shard, record in zip(shards, records, strict=True):
            _copy(shard.path(named), record, stream)
    for shard in shards:
        with suppress(OSError):
            _record_path(shard.path(named)).unlink()
            shard.path(named).unlink()
    counts = sum((EncodingCounts(**record["counts"]) for record in records), EncodingCounts())
    return EmbedReport(counts, dimension, max(record["seconds"] for record in records))


def _read_records(output: Path, shards: list[Shard]) -> list[dict[str, Any]]:
    records = {shard: _read_record(output, shard) for shard in shards}
    missing = [shard for shard in shards if records[shard] is None]
    if missing:
        names = ", ".join(shard.path(output).name for shard in missing[:NAMED])
        more = f" and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
        raise UserError(
            f"--join {len(shards)}: not finished: {names}{more}; run --shard {missing[0].number}/{len(shards)} ..."
        )
    found = [record for record in records.values() if record is not None]
    for shard, record in zip(shards, found, strict=True):
        if what := _differences(found[0]["source"], record["source"]):
            raise UserError(
                f"--join {len(shards)}: {shard.path(output)} was made with another {what} than part 1; "
                f"run --shard {shard.number}/{len(shards)} again with --overwrite"
            )
    return found


def _differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    return ", ".join(name for name in {**one, **other} if one.get(name) != other.get(name))


def _copy(part: Path, record: Mapping[str, Any], stream: BinaryIO) -> None:
    """Append the rows of a part, without the header of a ``.npy`` file; UserError if the file has changed."""
    digest = hashlib.sha256()
    with open(part, "rb") as rows:
        if part.suffix == ".npy":
            digest.update(rows.read(max(0, part.stat().st_size - 4 * record["rows"] * record["dimension"])))
        while copied := rows.read(COPIED_BYTES):
            digest.update(copied)
            stream.write(copied)
    if digest.hexdigest() != record["sha256"]:
        raise UserError(f"{part}: has changed since it was written; run its --shard again with --overwrite")
