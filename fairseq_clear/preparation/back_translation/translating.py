"""Translates chunks of lines with both models, one line per input line; lines that fail keep their text and are counted."""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fairseq_clear.errors import UserError, one_line
from fairseq_clear.preparation.back_translation.segmentation import clean_line
from fairseq_clear.preparation.back_translation.text_similarity import compare
from fairseq_clear.preparation.back_translation.translation_settings import PASSES, BackTranslateSettings
from fairseq_clear.preparation.back_translation.translator import Tokens, Translation, Translator
from fairseq_clear.preparation.back_translation.translator_kinds import load_translator
from fairseq_clear.preparation.corpus_reading import sentence_splitter

logger = logging.getLogger(__name__)


Pieces = list[str]  # a text, or the parts of a text that was too long


@dataclass(frozen=True)
class ChunkResult:
    """The translated lines of a chunk, copy after copy, and its counts (see ``translation_report``)."""

    chunk: int
    lines: list[str]
    counts: Counter[str]


class RoundTrip:
    """Both models, ready to translate chunks.

    Args:
        settings: settings of the run.
        device: device of the models.
        on_lines: called with the number of lines done; a line that only one model has translated counts half.

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
        counts: Counter[str] = Counter()
        texts = {index: [text] for index, text in enumerate(originals) if text}
        counts["lines"], counts["blank"] = len(lines), len(lines) - len(texts)
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

    def _copies(self, texts: dict[int, Pieces], chunk: int, counts: Counter[str]) -> list[dict[int, Pieces]]:
        """The round trips of each copy, without the texts that could not be translated."""
        first, second = self.passes
        there = [first.translate_some(texts, chunk, counts, copy) for copy in range(self._passes_made[0])]
        for found in there:
            self._on_texts((len(texts) - len(found)) * self._passes_made[1] / self._passes_made[0], 1)
        if self._passes_made[1] > 1 or self.copies == 1:
            drawn = range(self.copies)
            back = [second.translate_some(there[copy % len(there)], chunk, counts, copy) for copy in drawn]
        else:
            back = second.alternatives_of_some(there[0], chunk, counts, self.copies)
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


@dataclass(frozen=True)
class Unit:
    """An input of the model: a text, or a sentence of a text that is too long."""

    text: int
    ids: Tokens


@dataclass(frozen=True)
class Place:
    """What the texts of a call share: index of the chunk and of the copy, and the number of translations of each text."""

    chunk: int
    copy: int
    count: int


class Pass:
    """One direction, applied to the texts of a chunk.

    Args:
        model: model of the direction.
        settings: settings for batches, seed and texts that are too long.
        on_texts: called with the number of texts that each batch completes, and 0 or 1 for forward or backward.
    """

    def __init__(
        self,
        model: Translator,
        settings: BackTranslateSettings,
        on_texts: Callable[[float, int], object] = lambda texts, which: None,
    ) -> None:
        self.model = model
        self.settings = settings
        self.on_texts = lambda texts: on_texts(texts, PASSES.index(model.which))
        self._split: Callable[[str], list[str]] | None = None

    def translate_some(
        self, texts: dict[int, Pieces], chunk: int, counts: Counter[str], copy: int = 0
    ) -> dict[int, Pieces]:
        """Translate texts; those that could not be translated are left out. See ``translate``."""
        found = self.translate(list(texts.values()), chunk, counts, copy)
        return {index: pieces for index, pieces in zip(texts, found, strict=True) if pieces is not None}

    def alternatives_of_some(
        self, texts: dict[int, Pieces], chunk: int, counts: Counter[str], copies: int
    ) -> list[dict[int, Pieces]]:
        """Translate texts to ``copies`` alternatives each; those that could not be translated are left out."""
        found = self.alternatives(list(texts.values()), chunk, counts, copies)
        pairs = [(index, several) for index, several in zip(texts, found, strict=True) if several]
        return [{index: several[copy % len(several)] for index, several in pairs} for copy in range(copies)]

    def translate(
        self, texts: Sequence[Sequence[str]], chunk: int, counts: Counter[str], copy: int = 0
    ) -> list[Pieces | None]:
        """Translate each text to its translated pieces, or None if it could not be translated.

        Args:
            texts: lists of pieces, which are translated separately; no piece is blank.
            chunk: index of the chunk; with seed and copy it determines the samples.
            counts: updated with ``forward.split`` and so on.
            copy: index of the copy.

        Raises:
            UserError: none of several texts could be translated, so the cause is not a text.
        """
        found = self.alternatives(texts, chunk, counts, 1, copy)
        return [several[0] if several else None for several in found]

    def alternatives(
        self, texts: Sequence[Sequence[str]], chunk: int, counts: Counter[str], copies: int, copy: int = 0
    ) -> list[list[Pieces]]:
        """Translate each text to at most ``copies`` different translations, best first; see ``translate``."""
        found: Counter[str] = Counter()
        units = [unit for index, pieces in enumerate(texts) for unit in self._units(index, pieces, found)]
        count = self.settings.search.beam_in(self.model.which) if copies > 1 else 1
        translated = self._translate_units(units, len(texts), Place(chunk, copy, count), found)
        parts: list[list[list[Translation]]] = [[] for _ in texts]
        lost = set(range(len(texts))) - {unit.text for unit in units}
        for unit, translations in zip(units, translated, strict=True):
            if not translations:
                lost.add(unit.text)
            parts[unit.text].append(translations)
        found["failed"] = len(lost) - found["copied"]
        results: list[list[Pieces]] = []
        for index, pieces in enumerate(parts):
            several = [] if index in lost else _combine(pieces, copies)
            found["empty"] += index not in lost and not several
            found["cut"] += index not in lost and any(piece[0].is_cut for piece in pieces)
            results.append(several)
        counts.update({f"{self.model.which}.{name}": number for name, number in found.items()})
        return results

    def _units(self, index: int, pieces: Sequence[str], found: Counter[str]) -> list[Unit]:
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
        return [Unit(index, ids) for ids in encoded]

    def _sentences(self, text: str) -> list[Tokens]:
        """The sentences of a text; empty with ``--too-long copy``, or if a sentence is still too long."""
        if self.settings.too_long == "copy":
            return []
        if self._split is None:
            self._split = sentence_splitter(self.model.languages[0] if self.model.languages else "en")
        encoded = [self.model.encode(sentence) for sentence in self._split(text)]
        return encoded if all(len(ids) <= self.model.max_source for ids in encoded) else []

    def _translate_units(
        self, units: list[Unit], texts: int, place: Place, found: Counter[str]
    ) -> list[list[Translation]]:
        results: list[list[Translation]] = [[] for _ in units]
        error: Exception | None = None
        share = texts / max(len(units), 1)
        for group in batches([len(unit.ids) for unit in units], self.settings.max_tokens, self.settings.batch_size):
            error = self._translate_group(group, units, place, results) or error
            self.on_texts(len(group) * share)
        if error is not None and len(units) > 1 and not any(results):
            raise UserError(
                f"--{self.model.which}: not one of {len(units)} texts could be translated ({one_line(error)}); "
                "finished chunks are kept: fix this and rerun"
            )
        if not units:
            self.on_texts(texts)
        return results

    def _translate_group(
        self, group: list[int], units: list[Unit], place: Place, results: list[list[Translation]]
    ) -> Exception | None:
        """Store the results of a batch; a batch that fails is halved until only the failing text is left."""
        try:
            seed = _seed(self.settings.seed, self.model.which, place.chunk, group[0], place.copy)
            translations = self.model.translate_batch([units[position].ids for position in group], seed, place.count)
        except UserError:  # about the model
            raise
        except Exception as error:
            if "CUDA error" in str(error):  # the device cannot be used any more
                raise UserError(f"--device {self.model.device}: {one_line(error)}; rerun to resume") from None
            if isinstance(error, torch.OutOfMemoryError):
                torch.cuda.empty_cache()
            if len(group) > 1:
                logger.warning("%s: a batch of %d is halved: %s", self.model.which, len(group), one_line(error))
                halves = group[: len(group) // 2], group[len(group) // 2 :]
                errors = [self._translate_group(half, units, place, results) for half in halves]
                return errors[0] or errors[1]
            logger.warning("%s: one text is kept unchanged: %s", self.model.which, one_line(error))
            return error
        for position, translation in zip(group, translations, strict=True):
            results[position] = translation
        return None


def _combine(pieces: list[list[Translation]], copies: int) -> list[Pieces]:
    """Join the alternatives of a text's pieces by rank; at most ``copies``, none twice, none empty.

    A piece with fewer alternatives than another repeats its last one.
    """
    found: dict[tuple[str, ...], None] = {}
    for rank in range(max(map(len, pieces))):
        ranked = [alternatives[min(rank, len(alternatives) - 1)].text for alternatives in pieces]
        if kept := tuple(text for text in ranked if text):
            found[kept] = None
    return [list(kept) for kept in found][:copies]


def _seed(seed: int, which: str, chunk: int, first: int, copy: int = 0) -> int:
    """Seed of a batch, so that samples do not depend on earlier batches or on the process."""
    sequence = np.random.SeedSequence([seed, which == "backward", chunk, first, *([copy] if copy else [])])
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))


def batches(lengths: list[int], max_tokens: int, batch_size: int | None) -> Iterator[list[int]]:
    """Yield batches of indices of similar length, longest first.

    Args:
        lengths: lengths in tokens.
        max_tokens: maximum tokens of a batch, padding included; a longer text is a batch by itself.
        batch_size: maximum number of texts of a batch.
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


def choose_device(name: str | None, fp16: bool, worker: int = 0) -> torch.device:
    """Choose the device of a worker; with ``cuda``, worker i gets GPU i modulo the number of GPUs.

    Raises:
        UserError: the device does not exist, or half precision is requested without a GPU.
    """
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError:
        raise UserError(f"--device {name}: no such device; give cpu, cuda or cuda:N") from None
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if not torch.cuda.is_available() or (device.index or 0) >= count:
            raise UserError(f"--device {device}: there {'is 1 GPU' if count == 1 else f'are {count} GPUs'} here")
        return torch.device("cuda", worker % count) if device.index is None else device
    if fp16:
        raise UserError(f"--fp16: needs a GPU, and --device is {device}; leave it out")
    return device
