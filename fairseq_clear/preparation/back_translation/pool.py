"""Chunks to processes: each loads both models once and translates whole chunks; results come as they are finished."""

import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from multiprocessing import connection
from typing import Any

from fairseq_clear.errors import UserError
from fairseq_clear.preparation.back_translation.roundtrip import ChunkResult, RoundTrip, choose_device
from fairseq_clear.preparation.back_translation.settings import BackTranslateSettings

__all__ = ["translate_chunks"]

POLL_SECONDS = 0.5
WAITING_EACH = 2  # chunks handed to each process ahead of time

Chunks = Iterator[tuple[int, list[str]]]


def translate_chunks(
    settings: BackTranslateSettings, chunks: Chunks, show: Callable[[float], object], count: int
) -> Iterator[ChunkResult]:
    """Yield every chunk's result as soon as it is there, in any order.

    Args:
        settings: ``workers`` says how many processes; one works in this process.
        chunks: number and lines.
        show: called with the number of lines done so far.
        count: how many chunks there are: no more processes than that are started.

    Raises:
        UserError: a model cannot be loaded, or a process was killed.
    """
    workers = min(settings.workers, count)
    if workers > 1:
        yield from _in_processes(settings, chunks, show, workers)
        return
    done = 0.0

    def add(lines: float) -> None:
        nonlocal done
        done += lines
        show(done)

    trip = RoundTrip(settings, choose_device(settings.device, settings.fp16), add)
    for number, lines in chunks:
        yield trip.translate(number, lines)


def _in_processes(
    settings: BackTranslateSettings, chunks: Chunks, show: Callable[[float], object], workers: int
) -> Iterator[ChunkResult]:
    context = multiprocessing.get_context("spawn")  # a process that is forked cannot use CUDA
    done, started = context.Value("d", 0.0), context.Value("i", 0)
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(workers, context, _start, (settings, done, started))
    try:
        waiting: set[Future[ChunkResult]] = set()
        while True:
            room = workers * WAITING_EACH - len(waiting)
            waiting |= {pool.submit(_translate, number, lines) for number, lines in islice(chunks, room)}
            if not waiting:
                break
            finished, waiting = wait(waiting, POLL_SECONDS, FIRST_COMPLETED)
            show(done.value)
            for future in finished:
                yield future.result()
        pool.shutdown()
    except BaseException as error:
        for process in set(multiprocessing.active_children()) - others:
            process.kill()
            process.join()
        pool.shutdown(wait=False, cancel_futures=True)
        if isinstance(error, BrokenProcessPool):
            raise UserError(
                "a worker process was killed, mostly for memory; what was done is kept: run again with fewer --workers"
            ) from None
        raise


_settings: BackTranslateSettings
_number: int
_done: Any
_trip: RoundTrip | None = None


def _start(settings: BackTranslateSettings, done: Any, started: Any) -> None:
    """Set up a process; its models are loaded with its first chunk, where an error finds its way to the parent."""
    global _settings, _number, _done
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    for name in ("fairseq", "fairseq_clear"):
        logging.getLogger(name).setLevel(logging.WARNING)
    with started.get_lock():
        _number = started.value
        started.value += 1
    _settings, _done = settings, done


def _translate(number: int, lines: list[str]) -> ChunkResult:
    global _trip
    if _trip is None:
        _trip = RoundTrip(_settings, choose_device(_settings.device, _settings.fp16, _number), _add)
    return _trip.translate(number, lines)


def _add(lines: float) -> None:
    with _done.get_lock():
        _done.value += lines


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
