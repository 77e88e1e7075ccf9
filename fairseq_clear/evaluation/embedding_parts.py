"""Embeds one part of a file of sentences, and joins the parts into one output.

A part of ``out.npy`` is two files: ``out.npy.part-2-of-8.npy``, its vectors, and ``out.npy.part-2-of-8.json``, its record,
which is written last. A part without a record is not finished.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.embedding_files import (
    BLOCK,
    EmbedReport,
    Writer,
    check_output,
    open_output,
    write_npy_header,
)
from fairseq_clear.files import write_errors, write_json, write_whole
from fairseq_clear.models.encoding import EncodingCounts

__all__ = ["Shard", "is_finished", "join_parts", "open_part", "read_record", "remove_parts"]

SHARD = re.compile(r"([0-9]+)/([0-9]+)")
COPIED_BYTES = 2**22
NAMED = 5  # missing parts that a message names


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


@contextmanager
def open_part(
    output: Path, shard: Shard, source: Mapping[str, Any], rows: int, dimension: int
) -> Iterator[tuple[Writer, Callable[[EmbedReport], None]]]:
    """Open a part for writing. The files only appear if the block ends without an error.

    Args:
        output: of all parts.
        shard: the part.
        source: what determines the vectors of all parts, as JSON values; ``join_parts`` compares it.
        rows: number of lines of the part.
        dimension: of the vectors.

    Yields:
        The writer of the vectors, and a function to call with the report at the end.
    """
    part, reports = shard.path(output), list[EmbedReport]()
    with write_errors(part):
        _record_path(part).unlink(missing_ok=True)  # it describes the vectors that are now replaced
        with open_output(part, rows, dimension) as write:
            yield write, reports.append
        with open(part, "rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
    counts = asdict(reports[0].counts)
    record = {"source": dict(source), "rows": rows, "dimension": dimension, "counts": counts, "sha256": digest}
    write_json(_record_path(part), {**record, "seconds": reports[0].seconds}, flag="--output")


def is_finished(output: Path, shard: Shard, source: Mapping[str, Any], *, overwrite: bool) -> bool:
    """Whether the part exists, made from the same source.

    Raises:
        UserError: it was made from another source, and ``overwrite`` is False.
    """
    record = read_record(output, shard)
    if record is None or overwrite:
        return False
    if record["source"] != dict(source):
        what = ", ".join(_differences(record["source"], source))
        raise UserError(
            f"--output {shard.path(output)}: exists, made with another {what}; add --overwrite to replace it"
        )
    return True


def read_record(output: Path, shard: Shard) -> dict[str, Any] | None:
    """Read the record of a part; None if the part is missing or not finished."""
    part = shard.path(output)
    try:
        record = json.loads(_record_path(part).read_bytes())
        is_whole = isinstance(record["source"], dict) and part.is_file()
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return record if is_whole else None


def join_parts(output: Path, count: int, *, overwrite: bool = False, parts_of: Path | None = None) -> EmbedReport:
    """Join all parts into ``output``, which has the bytes of a run without parts.

    Args:
        output: of the parts.
        count: number of parts.
        overwrite: replace an existing output.
        parts_of: the output whose parts are joined, if it is another file.

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
            write_npy_header(stream, rows, dimension)
        for shard, record in zip(shards, records, strict=True):
            _copy(shard.path(named), record, stream)
    counts = sum((EncodingCounts(**record["counts"]) for record in records), EncodingCounts())
    return EmbedReport(counts, dimension, max(record["seconds"] for record in records))


def remove_parts(output: Path, count: int) -> None:
    """Remove the files of all parts of an output."""
    for number in range(1, count + 1):
        part = Shard(number, count).path(output)
        for path in (_record_path(part), part):
            with suppress(OSError):
                path.unlink()


def _read_records(output: Path, shards: list[Shard]) -> list[dict[str, Any]]:
    records = {shard: read_record(output, shard) for shard in shards}
    missing = [shard for shard in shards if records[shard] is None]
    if missing:
        names = ", ".join(shard.path(output).name for shard in missing[:NAMED])
        more = f" and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
        raise UserError(
            f"--join {len(shards)}: not finished: {names}{more}; run --shard {missing[0].number}/{len(shards)} ..."
        )
    found = [record for record in records.values() if record is not None]
    for shard, record in zip(shards, found, strict=True):
        if record["source"] != found[0]["source"]:
            what = ", ".join(_differences(found[0]["source"], record["source"]))
            raise UserError(
                f"--join {len(shards)}: {shard.path(output)} was made with another {what} than part 1; "
                f"run --shard {shard.number}/{len(shards)} again with --overwrite"
            )
    return found


def _differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    return [name for name in {**one, **other} if one.get(name) != other.get(name)]


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
