"""Translates chunks of lines with both models, in one or several processes.

Each line gives one line. Lines that fail keep their text and are counted.
"""

import logging
import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
import torch

from fairseq_clear.errors import UserError, one_line
from fairseq_clear.preparation.back_translation.translation_report import compare
from fairseq_clear.preparation.back_translation.translation_settings import PASSES, BackTranslateSettings
from fairseq_clear.preparation.back_translation.translator import (
    Tokens,
    Translation,
    Translator,
    choose_device,
    clean_line,
)
from fairseq_clear.preparation.back_translation.translator_kinds import load_translator
from fairseq_clear.preparation.corpus_reading import sentence_splitter
from fairseq_clear.preparation.workers import worker_pool

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.5
WAITING_EACH = 2  # chunks queued per worker process

Chunks = Iterator[tuple[int, list[str]]]
Pieces = list[str]  # a text, or the parts of a text that was too long
Texts = dict[int, Pieces]  # texts of a chunk by their index


@dataclass(frozen=True)
class ChunkResult:
    """The translated lines of a chunk, copy after copy, and its counts (see ``translation_report``)."""

    chunk: int
    lines: list[str]
    counts: Counter[str]


class RoundTrip:
    """Both models, ready to translate chunks.

    ``on_lines`` is called with the number of lines done; a line that only one model has translated counts half.

    Raises:
        UserError: a model cannot be loaded, the second model does not translate back, or no model makes several copies.
    """

    def __init__(
        self, settings: BackTranslateSettings, device: torch.device, on_lines: Callable[[float], object]
    ) -> None:
        torch.set_num_threads(settings.threads_each)
        models = [load_translator(settings, which, device) for which in PASSES]
        there, back = (model.languages for model in models)
        if there is not None and back is not None and there != back[::-1]:
            raise UserError(
                f"--forward translates {' to '.join(there)} and --backward {' to '.join(back)}: the second must undo "
                "the first"
            )
        self.copies = settings.copies
        _check_copies(settings, models)
        self.language = there[0] if there else back[1] if back else "en"
        self.passes = [Pass(model, settings, self._on_texts) for model in models]
        drawn = [model.draws for model in models]
        self._passes_made = [self.copies if drawn[0] else 1, self.copies if any(drawn) else 1]
        self._on_lines = on_lines

    def translate(self, chunk: int, lines: Sequence[str]) -> ChunkResult:
        """Translate lines and back. A line that cannot be translated keeps its text, with white space normalised."""
        originals = [clean_line(line) for line in lines]
        texts = {index: [text] for index, text in enumerate(originals) if text}
        counts = Counter(lines=len(lines), blank=len(lines) - len(texts))
        results = [
            [" ".join(found.get(index, [text])) for index, text in enumerate(originals)]
            for found in self._copies(texts, chunk, counts)
        ]
        self._on_lines(counts["blank"])
        for copy, result in enumerate(results):
            counts["repeated"] += sum(
                bool(text) and any(result[index] == other[index] for other in results[:copy])
                for index, text in enumerate(originals)
            )
            counts.update(compare(originals, result, self.language))
        return ChunkResult(chunk, [line for result in results for line in result], counts)

    def _copies(self, texts: Texts, chunk: int, counts: Counter[str]) -> list[Texts]:
        """The round trips of each copy, without the texts that could not be translated."""
        first, second = self.passes
        many, back_many = self._passes_made
        there = [found for copy in range(many) for found in first.translate(texts, chunk, counts, copy)]
        for found in there:
            self._on_texts((len(texts) - len(found)) * back_many / many, 1)
        back: list[Texts] = []
        if back_many == self.copies:
            for copy in range(self.copies):
                back += second.translate(there[copy % many], chunk, counts, copy)
        else:
            back = second.translate(there[0], chunk, counts, copies=self.copies)
        counts["kept"] = sum(len(texts) - len(found) for found in back)
        return back

    def _on_texts(self, texts: float, which: int) -> None:
        self._on_lines(texts / self._passes_made[which] / 2)


def _check_copies(settings: BackTranslateSettings, models: Sequence[Translator]) -> None:
    """Raise UserError if the models make fewer copies than ``settings`` wants."""
    if settings.copies == 1 or any(model.draws for model in models):
        return
    back, beam = models[1], settings.search.beam_in("backward")
    if not back.has_alternatives:
        raise UserError(
            f"--copies {settings.copies}: --backward {settings.backward.path} gives one translation of a text; let its "
            "translate take a parameter seed"
        )
    if settings.copies > beam:
        raise UserError(
            f"--copies {settings.copies}: a beam of {beam} finds {beam} alternatives; add --beam {settings.copies} or "
            "--sampling"
        )


class Pass:
    """One direction, applied to the texts of a chunk.

    ``on_texts`` is called with the number of texts that each batch completes, and 0 or 1 for forward or backward.
    """

    def __init__(
        self,
        model: Translator,
        settings: BackTranslateSettings,
        on_texts: Callable[[float, int], object] = lambda texts, which: None,
    ) -> None:
        self.model, self.settings = model, settings
        self.on_texts = lambda texts: on_texts(texts, PASSES.index(model.which))

    def translate(self, texts: Texts, chunk: int, counts: Counter[str], copy: int = 0, copies: int = 1) -> list[Texts]:
        """Translate texts; those that could not be translated are left out.

        Args:
            texts: index of each text -> its pieces, which are translated separately; no piece is blank.
            chunk: index of the chunk; with seed and copy it determines the samples.
            counts: updated with ``forward.split`` and so on.
            copy: index of the copy.
            copies: number of different translations of each text; a text with fewer repeats them.

        Returns:
            The translated pieces of the texts, for each of the ``copies``, best first.

        Raises:
            UserError: none of several texts could be translated, so the cause is not a text.
        """
        found: Counter[str] = Counter()
        inputs = {index: self._inputs(pieces, found) for index, pieces in texts.items()}
        units = [tokens for encoded in inputs.values() for tokens in encoded]
        count = self.settings.search.beam_in(self.model.which) if copies > 1 else 1
        translated = iter(self._translate_units(units, len(texts), (chunk, copy), count))
        results: list[Texts] = [{} for _ in range(copies)]
        for index, encoded in inputs.items():
            parts = list(islice(translated, len(encoded)))
            if not parts or not all(parts):
                found["failed"] += 1
                continue
            several = _combine(parts, copies)
            found["empty"] += not several
            found["cut"] += any(alternatives[0].is_cut for alternatives in parts)
            for rank, result in enumerate(results if several else ()):
                result[index] = several[rank % len(several)]
        found["failed"] -= found["copied"]
        counts.update({f"{self.model.which}.{name}": number for name, number in found.items()})
        return results

    def _inputs(self, pieces: Pieces, found: Counter[str]) -> list[Tokens]:
        """The inputs for a text: its pieces, the sentences of pieces that are too long, or nothing if that fails."""
        encoded: list[Tokens] = []
        try:
            for piece in pieces:
                whole = self.model.encode(piece)
                parts = [whole] if len(whole) <= self.model.max_source else self._sentences(piece)
                if not parts:
                    found["copied"] += 1
                    return []
                encoded += parts
        except Exception as error:  # a single text for which a library fails must not end the run
            logger.warning("%s: %r is kept unchanged: %s", self.model.which, pieces[0][:80], error)
            return []
        found["split"] += len(encoded) > len(pieces)
        found["tokens"] += sum(map(len, encoded)) - len(encoded)
        found["unknown"] += sum(map(self.model.count_unknown, encoded))
        return encoded

    def _sentences(self, text: str) -> list[Tokens]:
        """The sentences of a text; empty with ``--too-long copy``, or if a sentence is still too long."""
        if self.settings.too_long == "copy":
            return []
        split = sentence_splitter(self.model.languages[0] if self.model.languages else "en")
        encoded = [self.model.encode(sentence) for sentence in split(text)]
        return encoded if all(len(ids) <= self.model.max_source for ids in encoded) else []

    def _translate_units(
        self, units: list[Tokens], texts: int, place: tuple[int, int], count: int
    ) -> list[list[Translation]]:
        """Translate the inputs of ``texts`` texts, each to at most ``count`` translations; none for inputs that fail.

        A batch that fails is halved until only the failing input is left. ``place`` is the index of the chunk and of the copy.
        """
        which = self.model.which
        results: list[list[Translation]] = [[] for _ in units]
        failure = ""
        waiting = list(batches([len(ids) for ids in units], self.settings.max_tokens, self.settings.batch_size))[::-1]
        while waiting:
            group = waiting.pop()
            seed = _seed(self.settings.seed, which, place[0], group[0], place[1])
            try:
                found = self.model.translate_batch([units[position] for position in group], seed, count)
                for position, translations in zip(group, found, strict=True):
                    results[position] = translations
            except UserError:  # about the model
                raise
            except Exception as error:
                failure = one_line(error)
                if "CUDA error" in str(error):  # the device cannot be used any more
                    raise UserError(f"--device {self.model.device}: {failure}; rerun to resume") from None
                if isinstance(error, torch.OutOfMemoryError):
                    torch.cuda.empty_cache()
                if len(group) > 1:
                    logger.warning("%s: a batch of %d is halved: %s", which, len(group), failure)
                    waiting += [group[len(group) // 2 :], group[: len(group) // 2]]
                    continue
                logger.warning("%s: one text is kept unchanged: %s", which, failure)
            self.on_texts(len(group) * texts / len(units))
        if failure and len(units) > 1 and not any(results):
            raise UserError(
                f"--{which}: not one of {len(units)} texts could be translated ({failure}); finished chunks are kept: fix "
                "this and rerun"
            )
        if not units:
            self.on_texts(texts)
        return results


def _combine(pieces: list[list[Translation]], copies: int) -> list[Pieces]:
    """Join the alternatives of a text's pieces by rank; at most ``copies``, none twice, none empty.

    A piece with fewer alternatives than another repeats its last one.
    """
    ranked = (
        tuple(alternatives[min(rank, len(alternatives) - 1)].text for alternatives in pieces)
        for rank in range(max(map(len, pieces)))
    )
    found = dict.fromkeys(tuple(filter(None, texts)) for texts in ranked)
    return [list(kept) for kept in found if kept][:copies]


def _seed(seed: int, which: str, chunk: int, first: int, copy: int) -> int:
    """Seed of a batch, so that samples do not depend on earlier batches or on the process."""
    sequence = np.random.SeedSequence([seed, which == "backward", chunk, first, *([copy] if copy else [])])
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))


def batches(lengths: list[int], max_tokens: int, batch_size: int | None) -> Iterator[list[int]]:
    """Yield batches of indices of texts of similar length (in tokens), longest first.

    A batch has at most ``max_tokens`` tokens, padding included, and ``batch_size`` texts; a longer text is a batch by itself.
    """
    group: list[int] = []
    for position in sorted(range(len(lengths)), key=lambda position: (-lengths[position], position)):
        longest = lengths[group[0]] if group else 0
        if group and ((len(group) + 1) * longest > max_tokens or len(group) == batch_size):
            yield group
            group = []
        group.append(position)
    if group:
        yield group


def translate_chunks(
    settings: BackTranslateSettings, chunks: Chunks, show: Callable[[float], object], count: int
) -> Iterator[ChunkResult]:
    """Yield the result of each chunk when it is ready, in any order.

    Args:
        settings: ``workers`` is the number of processes; with 1, this process translates.
        chunks: index and lines of each of ``count`` chunks.
        show: called with the number of lines done since its last call.

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
