"""Translates chunks in one or several processes, and shows the progress."""

import logging
import math
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from functools import cache
from io import StringIO
from itertools import islice
from typing import Any

from tqdm import tqdm

from fairseq_clear.preparation.back_translation.translating import ChunkResult, RoundTrip, choose_device
from fairseq_clear.preparation.back_translation.translation_settings import BackTranslateSettings
from fairseq_clear.preparation.workers import worker_pool

POLL_SECONDS = 0.5
WAITING_EACH = 2  # chunks queued per worker process

Chunks = Iterator[tuple[int, list[str]]]


def translate_chunks(
    settings: BackTranslateSettings, chunks: Chunks, show: Callable[[float], object], count: int
) -> Iterator[ChunkResult]:
    """Yield the result of each chunk when it is ready, in any order.

    Args:
        settings: ``workers`` is the number of processes; with 1, this process translates.
        chunks: (index, lines) of each chunk.
        show: called with the number of lines done since its last call.
        count: number of chunks, which is the maximum number of processes.

    Raises:
        UserError: a model cannot be loaded, or a process was killed.
    """
    workers = min(settings.workers, count)
    if workers == 1:
        trip = RoundTrip(settings, choose_device(settings.device, settings.fp16), show)
        yield from (trip.translate(number, lines) for number, lines in chunks)
        return
    context = multiprocessing.get_context("spawn")  # a forked process cannot use CUDA
    shared, shown = context.Value("d", 0.0), 0.0
    arguments = (settings, shared, context.Value("i", 0))
    with worker_pool(workers, _start_worker, arguments, method="spawn") as pool:
        waiting: set[Future[ChunkResult]] = set()
        while True:
            queued = islice(chunks, workers * WAITING_EACH - len(waiting))
            waiting |= {pool.submit(_translate, number, lines) for number, lines in queued}
            if not waiting:
                return
            ready, waiting = wait(waiting, POLL_SECONDS, FIRST_COMPLETED)
            done = shared.value
            show(done - shown)
            shown = done
            for future in ready:
                yield future.result()


_trip: Callable[[], RoundTrip]  # in a worker process


def _start_worker(settings: BackTranslateSettings, done: Any, started: Any) -> None:
    """Set up a worker process. The models are loaded with its first chunk, so that errors reach the parent."""
    global _trip
    for name in ("fairseq", "fairseq_clear"):
        logging.getLogger(name).setLevel(logging.WARNING)
    with started.get_lock():
        number = started.value
        started.value += 1

    def add(lines: float) -> None:
        with done.get_lock():
            done.value += lines

    _trip = cache(lambda: RoundTrip(settings, choose_device(settings.device, settings.fp16, number), add))


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
