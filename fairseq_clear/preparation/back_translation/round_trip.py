"""Translates a text file with two translation models, in one or several processes; a killed run can be resumed."""

import hashlib
import json
import logging
import math
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from glob import escape
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Any

from tqdm import tqdm

from fairseq_clear.errors import UserError
from fairseq_clear.files import read_whole_lines, write_json, write_whole
from fairseq_clear.preparation.back_translation.finished_chunks import FinishedChunks, open_chunks, remove_partial
from fairseq_clear.preparation.back_translation.translating import (
    ChunkResult,
    RoundTrip,
    choose_device,
)
from fairseq_clear.preparation.back_translation.translation_models import identity
from fairseq_clear.preparation.back_translation.translation_report import build_report, report_text
from fairseq_clear.preparation.back_translation.translation_settings import PASSES, BackTranslateSettings, shard_path
from fairseq_clear.preparation.corpus_reading import sentence_splitter
from fairseq_clear.preparation.workers import worker_pool

REPORT_SUFFIX, TEXT_SUFFIX = ".report.json", ".report.txt"
POLL_SECONDS = 0.5
WAITING_EACH = 2  # chunks queued per worker process
BLOCK_BYTES = 1 << 20

Chunks = Iterator[tuple[int, list[str]]]


@dataclass(frozen=True)
class Outcome:
    """Result of a call: the output file, its report, and whether the output was already complete."""

    output: Path
    report: dict[str, Any]
    was_complete: bool

    def summary(self) -> str:
        """The text to print at the end."""
        if self.was_complete:
            return f"{self.output}: already complete, from the same input, models and settings; nothing to do"
        return f"{report_text(self.report)}\nwrote {self.output}, {self.output.name}{REPORT_SUFFIX} and {TEXT_SUFFIX}"


def back_translate(settings: BackTranslateSettings) -> Outcome:
    """Write ``settings.shard_output``, and its report as JSON and as text.

    Chunks that an earlier call finished are not translated again. Output and reports are written atomically at the end.

    Raises:
        UserError: an error in settings, input, models or disk; finished chunks are kept for the next call.
    """
    began = time.monotonic()
    lines, deciding = _check(settings)
    output = settings.shard_output
    report = read_report(output) if output.is_file() else None
    if report is not None and report.get("settings") == deciding and not settings.overwrite:
        remove_partial(output)
        return Outcome(output, report, was_complete=True)
    if output.exists() and not settings.overwrite:
        raise UserError(
            f"--output {output}: exists already, and not from this input, models and settings; give another name, or "
            "replace it with --overwrite"
        )
    count = -(-lines // settings.chunk_lines)
    shard, shards = settings.shard_id, settings.num_shards
    chunks = range(
        count * shard // shards, count * (shard + 1) // shards
    )  # contiguous chunks; shards differ by at most one chunk
    with open_chunks(output, deciding, settings.overwrite) as finished:
        before = finished.total()["lines"]
        _translate_missing(settings, lines, finished, chunks)
        counts = finished.total()
        report = build_report(counts, deciding, time.monotonic() - began, counts["lines"] - before)
        _write_output(output, map(finished.text, chunks), report)
        remove_partial(output)
    return Outcome(output, report, was_complete=False)


def merge_shards(settings: BackTranslateSettings) -> Outcome:
    """Write ``settings.output`` from its finished shards, and one report over all of them; the shards stay.

    Raises:
        UserError: a shard is missing, unfinished, or was made with other settings or from another input.
    """
    began = time.monotonic()
    if settings.num_shards < 2:
        raise UserError(f"--merge: give the --num-shards with which the shards were made, not {settings.num_shards}")
    if settings.output.exists() and not settings.overwrite:
        raise UserError(f"--output {settings.output}: exists already; add --overwrite to replace it")
    lines, deciding = _check(replace(settings, shard_id=0))
    counts: Counter[str] = Counter()
    shards = [shard_path(settings.output, shard, settings.num_shards) for shard in range(settings.num_shards)]
    for shard, path in enumerate(shards):
        if not path.is_file():
            raise UserError(f"--merge: {path} does not exist; finish its shard first")
        report = read_report(path)
        if report is None or report.get("settings") != deciding | {"shard_id": shard}:
            raise UserError(
                f"--merge: {path} was made from another input, or with other models or settings; make it again"
            )
        counts.update(report["sums"])
    report = build_report(counts, {**deciding, "num_shards": 1}, time.monotonic() - began, 0)
    try:
        _write_output(settings.output, _joined(shards, lines), report)
    except OSError as error:
        raise UserError(f"--output {settings.output}: cannot write it ({error.strerror or error})") from None
    remove_partial(settings.output)
    return Outcome(settings.output, report, was_complete=False)


def scan(path: Path) -> tuple[int, str]:
    """Read the number of lines of the input, and the SHA-256 of its text; only LF ends a line, as for ``wc -l``.

    Raises:
        UserError: the file is missing, unreadable, damaged, empty or not UTF-8; the message names the line.
    """
    if path.is_dir() or not path.exists():
        raise UserError(f"--input {path}: {'is a folder' if path.is_dir() else 'no such file'}; give a text file")
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


def _check(settings: BackTranslateSettings) -> tuple[int, dict[str, Any]]:
    """Check settings and input before a model is loaded.

    Returns:
        Number of input lines, and all settings and hashes that determine the output.
    """
    settings.check()
    output = settings.shard_output
    if not output.parent.is_dir():
        raise UserError(f"--output {output}: there is no folder {output.parent}; make it first")
    if output.is_dir():
        raise UserError(f"--output {output}: is a folder; give the name of a file")
    if settings.input.exists() and output.exists() and output.samefile(settings.input):
        raise UserError(f"--output {output}: is the input; give another name")
    if settings.too_long == "split":
        sentence_splitter("en", "--too-long split", ", or give --too-long copy")
    choose_device(settings.device, settings.fp16)
    models = {which: identity(settings, which) for which in PASSES}
    lines, digest = scan(settings.input)
    deciding = settings.deciding() | models | {"input": digest, "input_lines": lines}
    return lines, json.loads(json.dumps(deciding))


def _write_output(output: Path, parts: Iterable[bytes], report: dict[str, Any]) -> None:
    """Write the reports, then the output, so that an output always has its report."""
    text, content = (output.with_name(output.name + suffix) for suffix in (TEXT_SUFFIX, REPORT_SUFFIX))
    for path in (text, content, output):
        for leftover in output.parent.glob(f".{escape(path.name)}.writing.*"):  # of a killed call of write_whole
            leftover.unlink(missing_ok=True)
    with write_whole(text) as stream:
        stream.write(report_text(report).encode() + b"\n")
    write_json(content, report, flag="--output")
    with write_whole(output) as stream:
        stream.writelines(parts)


def _joined(shards: list[Path], lines: int) -> Iterator[bytes]:
    """Yield the content of the shards; at the end, raise an error unless they have ``lines`` lines."""
    found = 0
    for path in shards:
        with open(path, "rb") as stream:
            while block := stream.read(BLOCK_BYTES):
                found += block.count(b"\n")
                yield block
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


def translate_chunks(
    settings: BackTranslateSettings, chunks: Chunks, show: Callable[[float], object], count: int
) -> Iterator[ChunkResult]:
    """Yield the result of each chunk when it is ready, in any order.

    Args:
        settings: ``workers`` is the number of processes; with 1, this process translates.
        chunks: (index, lines) of each chunk.
        show: called with the number of lines done so far.
        count: number of chunks, which is the maximum number of processes.

    Raises:
        UserError: a model cannot be loaded, or a process was killed.
    """
    workers = min(settings.workers, count)
    if workers == 1:
        done = [0.0]

        def add(lines: float) -> None:
            done[0] += lines
            show(done[0])

        trip = RoundTrip(settings, choose_device(settings.device, settings.fp16), add)
        yield from (trip.translate(number, lines) for number, lines in chunks)
        return
    context = multiprocessing.get_context("spawn")  # a forked process cannot use CUDA
    shared = context.Value("d", 0.0)
    arguments = (settings, shared, context.Value("i", 0))
    with worker_pool(workers, _start_worker, arguments, method="spawn") as pool:
        waiting: set[Future[ChunkResult]] = set()
        while True:
            queued = islice(chunks, workers * WAITING_EACH - len(waiting))
            waiting |= {pool.submit(_translate, number, lines) for number, lines in queued}
            if not waiting:
                return
            ready, waiting = wait(waiting, POLL_SECONDS, FIRST_COMPLETED)
            show(shared.value)
            for future in ready:
                yield future.result()


_worker: tuple[Any, ...]  # in a worker process: settings, lines done by all workers, index of the process


def _start_worker(settings: BackTranslateSettings, done: Any, started: Any) -> None:
    global _worker
    for name in ("fairseq", "fairseq_clear"):
        logging.getLogger(name).setLevel(logging.WARNING)
    with started.get_lock():
        _worker = settings, done, started.value
        started.value += 1


@cache
def _trip() -> RoundTrip:
    """The models of a worker process. They are loaded with its first chunk, so that errors reach the parent."""
    settings, done, number = _worker

    def add(lines: float) -> None:
        with done.get_lock():
            done.value += lines

    return RoundTrip(settings, choose_device(settings.device, settings.fp16, number), add)


def _translate(number: int, lines: list[str]) -> ChunkResult:
    return _trip().translate(number, lines)


@contextmanager
def show_progress(lines: int, before: int, interval: float) -> Iterator[Callable[[float], None]]:
    """Show progress on standard error: a bar on a terminal, else a line every ``interval`` seconds.

    Args:
        lines: number of lines of the run.
        before: number of lines that earlier calls have done.
        interval: seconds between two lines of progress; 0 for a line at each change.

    Yields:
        A function to call with the number of lines that this call has done; a line that only one model has translated counts
        half.
    """
    is_terminal = sys.stderr.isatty()
    form = "{desc}: {n_fmt} of {total_fmt} lines ({percentage:.1f}%), {rate_fmt}, {remaining} left"
    with tqdm(
        total=lines, initial=before, desc="back-translate", unit=" sentences", bar_format=form,
        file=sys.stderr if is_terminal else StringIO(), mininterval=0.1 if is_terminal else math.inf,
    ) as bar:  # fmt: skip
        logged = time.monotonic()

        def show(now: float) -> None:
            nonlocal logged
            if before + round(now) <= bar.n:
                return
            bar.update(before + round(now) - bar.n)
            if not is_terminal and time.monotonic() - logged >= interval:
                logged = time.monotonic()
                sys.stderr.write(f"{bar}\n")
                sys.stderr.flush()

        yield show
