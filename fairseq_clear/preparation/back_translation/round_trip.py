"""Translates a text file with two translation models, in one or several processes; a killed run can be resumed."""

import hashlib
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from glob import escape
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Any

from tqdm import tqdm

from fairseq_clear.errors import UserError
from fairseq_clear.files import read_whole_lines, write_errors, write_json, write_whole
from fairseq_clear.preparation.back_translation.finished_chunks import FinishedChunks, open_chunks, remove_partial
from fairseq_clear.preparation.back_translation.translating import Chunks, translate_chunks
from fairseq_clear.preparation.back_translation.translation_report import (
    COUNTS_FORMAT,
    Example,
    build_report,
    choose_examples,
    report_text,
)
from fairseq_clear.preparation.back_translation.translation_settings import PASSES, BackTranslateSettings
from fairseq_clear.preparation.back_translation.translator import choose_device, clean_line
from fairseq_clear.preparation.back_translation.translator_kinds import check_flags, identity
from fairseq_clear.preparation.corpus_reading import sentence_splitter

REPORT_SUFFIX, TEXT_SUFFIX = ".report.json", ".report.txt"


@dataclass(frozen=True)
class Outcome:
    """Result of a call: name of the output, its report, whether it was already complete, and the file of each copy."""

    output: Path
    report: dict[str, Any]
    was_complete: bool
    files: list[Path]

    def summary(self) -> str:
        """The text to print at the end."""
        if self.was_complete:
            return f"{self.output}: already complete, from the same input, models and settings; nothing was translated"
        files = ", ".join(map(str, self.files))
        return f"{report_text(self.report)}\nwrote {files}, {self.output.name}{REPORT_SUFFIX} and {TEXT_SUFFIX}"


def back_translate(settings: BackTranslateSettings) -> Outcome:
    """Write the file of each copy, and the report as JSON and as text.

    Chunks that an earlier call finished are not translated again. Output and reports are written atomically at the end.

    Raises:
        UserError: an error in settings, input, models or disk; finished chunks are kept for the next call.
    """
    began = time.monotonic()
    lines, deciding = check(settings)
    output, files = settings.shard_output, settings.output_files
    report = read_report(output)
    if report is not None and report.get("settings") == deciding and not settings.overwrite:
        if all(path.is_file() for path in files):
            remove_partial(output)
            return Outcome(output, report, was_complete=True, files=files)
    else:
        _check_outputs(files, settings.overwrite, "already, and not from this input, models and settings")
    count = -(-lines // settings.chunk_lines)
    shard, shards = settings.shard_id, settings.num_shards
    # contiguous chunks; shards differ by at most one chunk
    chunks = range(count * shard // shards, count * (shard + 1) // shards)
    with open_chunks(output, deciding, settings.overwrite) as finished:
        before = _sentences(finished.total())
        _translate_missing(settings, lines, finished, chunks)
        counts = finished.total()

        def texts() -> list[Iterator[bytes]]:
            return [finished.texts(chunks, copy, settings.copies) for copy in range(settings.copies)]

        examples = _examples(settings, chunks, texts(), counts["lines"])
        report = build_report(counts, deciding, time.monotonic() - began, _sentences(counts) - before, examples)
        return _write_output(settings, texts(), report)


def merge_shards(settings: BackTranslateSettings) -> Outcome:
    """Write ``settings.output`` from its finished shards, and one report over all of them; the shards stay.

    Raises:
        UserError: a shard is missing, or was made from another input or with other models or settings.
    """
    began = time.monotonic()
    if settings.num_shards < 2:
        raise UserError(f"--merge: give the --num-shards with which the shards were made, not {settings.num_shards}")
    whole = replace(settings, num_shards=1, shard_id=0)
    _check_outputs(whole.output_files, settings.overwrite, "already")
    lines, deciding = check(replace(settings, shard_id=0))
    counts: Counter[str] = Counter()
    shards = [replace(settings, shard_id=shard) for shard in range(settings.num_shards)]
    for shard in shards:
        for file in shard.output_files:
            if not file.is_file():
                raise UserError(f"--merge: {file} does not exist; finish its shard first")
        report = read_report(shard.shard_output)
        if report is None or report.get("settings") != deciding | {"shard_id": shard.shard_id}:
            raise UserError(
                f"--merge: {shard.shard_output} was made from another input, or with other models or settings; make it again"
            )
        counts.update(report["sums"])

    def texts() -> list[Iterator[bytes]]:
        return [_joined(paths, lines) for paths in zip(*(shard.output_files for shard in shards), strict=True)]

    chunks = range(-(-lines // settings.chunk_lines))
    examples = _examples(whole, chunks, texts(), lines)
    report = build_report(counts, {**deciding, "num_shards": 1}, time.monotonic() - began, 0, examples)
    with write_errors(settings.output):
        return _write_output(whole, texts(), report)


def _sentences(counts: Counter[str]) -> int:
    return counts["lines"] - counts["blank"]


def scan(path: Path) -> tuple[int, str]:
    """Read the number of lines of the input, and the SHA-256 of its text; only LF ends a line, as for ``wc -l``.

    Raises:
        UserError: the file is missing, unreadable, damaged, empty or not UTF-8; the message names the line.
    """
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "is not a regular file" if path.exists() else "no such file"
        raise UserError(f"--input {path}: {what}; give a text file")
    digest = hashlib.sha256()
    lines = 0
    for line in _lines(path):
        digest.update(line.encode() + b"\n")
        lines += 1
    if not lines:
        raise UserError(f"--input {path}: holds no line; give a text with one sentence a line")
    return lines, digest.hexdigest()


def read_chunks(path: Path, chunk_lines: int, first: int, end: int) -> Chunks:
    """Yield (index, lines) of the chunks ``first`` to ``end``, end exclusive."""
    lines = islice(_lines(path), first * chunk_lines, end * chunk_lines)
    for number in range(first, end):
        if chunk := list(islice(lines, chunk_lines)):
            yield number, chunk


def read_report(output: Path) -> dict[str, Any] | None:
    """Read the report next to an output; None if it is missing or unreadable."""
    try:
        report = json.loads(output.with_name(output.name + REPORT_SUFFIX).read_bytes())
    except (OSError, ValueError):
        return None
    return report if isinstance(report, dict) else None


def _lines(path: Path) -> Iterator[str]:
    return (line for _, line in read_whole_lines(path, allow_nul=True))


def check(settings: BackTranslateSettings) -> tuple[int, dict[str, Any]]:
    """Check settings and input before a model is loaded.

    Returns:
        Number of input lines, and all settings and hashes that determine the output.

    Raises:
        UserError: an error in settings, input, models or names of files.
    """
    settings.check()
    output = settings.shard_output
    if not output.parent.is_dir():
        raise UserError(f"--output {output}: there is no folder {output.parent}; make it first")
    for path in settings.output_files:
        if path.is_dir():
            raise UserError(f"--output {path}: is a folder; give the name of a file")
        if settings.input.exists() and path.exists() and path.samefile(settings.input):
            raise UserError(f"--output {path}: is the input; give another name")
    if settings.too_long == "split":
        sentence_splitter("en", "--too-long split", ", or give --too-long copy")
    choose_device(settings.device, settings.fp16)
    check_flags(settings)
    models = {which: identity(settings, which) for which in PASSES}
    lines, digest = scan(settings.input)
    deciding = settings.deciding() | models | {"input": digest, "input_lines": lines, "counts": COUNTS_FORMAT}
    return lines, json.loads(json.dumps(deciding))


def _check_outputs(paths: Sequence[Path], overwrite: bool, found: str) -> None:
    """Raise UserError if an output exists and is not to be replaced."""
    for path in paths:
        if path.exists() and not overwrite:
            raise UserError(f"--output {path}: exists {found}; give another name, or replace it with --overwrite")


def _examples(
    settings: BackTranslateSettings, chunks: range, copies: Sequence[Iterable[bytes]], lines: int
) -> list[Example]:
    """Choose the examples of the report from the input and the text of each copy."""
    if not settings.show:
        return []
    size = settings.chunk_lines
    originals = map(clean_line, islice(_lines(settings.input), chunks.start * size, chunks.stop * size))
    results = [(line.decode() for part in parts for line in part.split(b"\n")[:-1]) for parts in copies]
    return choose_examples(zip(originals, *results, strict=False), lines, settings.show)


def _write_output(settings: BackTranslateSettings, texts: Iterable[Iterable[bytes]], report: dict[str, Any]) -> Outcome:
    """Write the reports, then the text of each copy, so that a text always has its report."""
    output, files = settings.shard_output, settings.output_files
    text, content = (output.with_name(output.name + suffix) for suffix in (TEXT_SUFFIX, REPORT_SUFFIX))
    for path in (text, content, *files):
        for leftover in output.parent.glob(f".{escape(path.name)}.writing.*"):  # of a killed call of write_whole
            leftover.unlink(missing_ok=True)
    for path in files:  # of other settings, with --overwrite
        path.unlink(missing_ok=True)
    with write_whole(text) as stream:
        stream.write(report_text(report).encode() + b"\n")
    write_json(content, report, flag="--output")
    for path, parts in zip(files, texts, strict=True):
        with write_whole(path) as stream:
            stream.writelines(parts)
    remove_partial(output)
    return Outcome(output, report, was_complete=False, files=files)


def _joined(shards: Sequence[Path], lines: int) -> Iterator[bytes]:
    """Yield the lines of the shards; at the end, raise an error unless they have ``lines`` lines."""
    found = 0
    for path in shards:
        with open(path, "rb") as stream:
            for line in stream:
                found += line.endswith(b"\n")
                yield line
    if found != lines:
        raise UserError(f"--merge: the shards hold {found:,} lines, not {lines:,}; one was changed since it was made")


def _translate_missing(settings: BackTranslateSettings, lines: int, finished: FinishedChunks, chunks: range) -> None:
    missing = [chunk for chunk in chunks if chunk not in finished.counts]
    if not missing:
        return
    total = min(chunks.stop * settings.chunk_lines, lines) - chunks.start * settings.chunk_lines
    read = read_chunks(settings.input, settings.chunk_lines, missing[0], missing[-1] + 1)
    todo = ((chunk, part) for chunk, part in read if chunk not in finished.counts)
    with show_progress(total, finished.total()["lines"], settings.log_interval) as show:
        for result in translate_chunks(settings, todo, show, len(missing)):
            finished.add(result.chunk, result.lines, result.counts)


@contextmanager
def show_progress(lines: int, before: int, interval: float) -> Iterator[Callable[[float], None]]:
    """Show progress on standard error: a bar on a terminal, else a line every ``interval`` seconds (0: at each change).

    The run has ``lines`` lines, of which earlier calls have done ``before``.

    Yields:
        A function to call with the number of lines done since its last call; a line that only one model has translated
        counts half.
    """
    is_terminal = sys.stderr.isatty()
    form = "{desc}: {n_fmt} of {total_fmt} lines ({percentage:.1f}%), {rate_fmt}, {remaining} left"
    with tqdm(
        total=lines, initial=before, desc="back-translate", unit=" sentences", bar_format=form,
        file=sys.stderr if is_terminal else StringIO(), mininterval=0.1 if is_terminal else math.inf,
    ) as bar:  # fmt: skip
        logged, done = time.monotonic(), float(before)

        def show(lines: float) -> None:
            nonlocal logged, done
            done += lines
            if round(done) <= bar.n:
                return
            bar.update(round(done) - bar.n)
            if not is_terminal and time.monotonic() - logged >= interval:
                logged = time.monotonic()
                sys.stderr.write(f"{bar}\n")
                sys.stderr.flush()

        yield show
