"""Translates chunks of lines with both models, one line per input line; lines that fail keep their text and are counted."""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fairseq_clear.errors import UserError, one_line
from fairseq_clear.preparation.back_translation.segmentation import clean_line
from fairseq_clear.preparation.back_translation.translation_models import (
    Translation,
    TranslationModel,
    load_translation_model,
)
from fairseq_clear.preparation.back_translation.translation_report import compare
from fairseq_clear.preparation.back_translation.translation_settings import PASSES, BackTranslateSettings
from fairseq_clear.preparation.corpus_reading import sentence_splitter

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ChunkResult:
    """The translated lines of a chunk, and its counts (see ``translation_report``)."""

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
        UserError: a model cannot be loaded, or the second model does not translate back.
    """

    def __init__(
        self, settings: BackTranslateSettings, device: torch.device, on_lines: Callable[[float], object]
    ) -> None:
        torch.set_num_threads(settings.threads_each)
        models = [load_translation_model(settings, which, device) for which in PASSES]
        there, back = (model.languages for model in models)
        if there[1] != back[0] or there[0] != back[1]:
            raise UserError(
                f"--forward translates {' to '.join(there)} and --backward {' to '.join(back)}: the second must undo "
                "the first"
            )
        self.language = there[0]
        self.passes = [Pass(model, settings, lambda texts: on_lines(texts / 2)) for model in models]
        self._on_lines = on_lines

    def translate(self, chunk: int, lines: Sequence[str]) -> ChunkResult:
        """Translate lines and back. A line that cannot be translated keeps its text, with white space normalised."""
        originals = [clean_line(line) for line in lines]
        counts: Counter[str] = Counter()
        # line -> its pieces (several if it was too long); lines that fail leave this dictionary
        pieces = {index: [text] for index, text in enumerate(originals) if text}
        counts["lines"], counts["blank"] = len(lines), len(lines) - len(pieces)
        for number, one_pass in enumerate(self.passes):
            translated = one_pass.translate(list(pieces.values()), chunk, counts)
            before = len(pieces)
            pieces = {index: parts for index, parts in zip(pieces, translated, strict=True) if parts is not None}
            self._on_lines((len(self.passes) - 1 - number) * (before - len(pieces)) / 2)
        results = [" ".join(pieces.get(index, [text])) for index, text in enumerate(originals)]
        counts["kept"] = len(lines) - counts["blank"] - len(pieces)
        self._on_lines(counts["blank"])
        counts.update(compare(originals, results, self.language))
        return ChunkResult(chunk, results, counts)


@dataclass(frozen=True)
class Unit:
    """An input of the model: a text, or a sentence of a text that is too long."""

    text: int
    ids: list[int]


class Pass:
    """One direction, applied to the texts of a chunk.

    Args:
        model: model of the direction.
        settings: settings for batches, seed and texts that are too long.
        on_texts: called with the number of texts that each batch completes.
    """

    def __init__(
        self,
        model: TranslationModel,
        settings: BackTranslateSettings,
        on_texts: Callable[[float], object] = lambda texts: None,
    ) -> None:
        self.model = model
        self.settings = settings
        self.on_texts = on_texts
        self._split: Callable[[str], list[str]] | None = None

    def translate(self, texts: Sequence[Sequence[str]], chunk: int, counts: Counter[str]) -> list[list[str] | None]:
        """Translate each text to its translated pieces, or None if it could not be translated.

        Args:
            texts: lists of pieces, which are translated separately; no piece is blank.
            chunk: index of the chunk; with the seed it determines the samples.
            counts: updated with ``forward.split`` and so on.

        Raises:
            UserError: none of several texts could be translated, so the cause is not a text.
        """
        found: Counter[str] = Counter()
        units = [unit for index, pieces in enumerate(texts) for unit in self._units(index, pieces, found)]
        translated = self._translate_units(units, len(texts), chunk, found)
        parts: list[list[Translation]] = [[] for _ in texts]
        lost = set(range(len(texts))) - {unit.text for unit in units}
        for unit, translation in zip(units, translated, strict=True):
            if translation is None:
                lost.add(unit.text)
            else:
                parts[unit.text].append(translation)
        found["failed"] = len(lost) - found["copied"]
        results: list[list[str] | None] = []
        for index, pieces in enumerate(parts):
            found["empty"] += index not in lost and not any(piece.text for piece in pieces)
            found["cut"] += index not in lost and any(piece.is_cut for piece in pieces)
            results.append(None if index in lost else [piece.text for piece in pieces if piece.text] or None)
        counts.update({f"{self.model.which}.{name}": count for name, count in found.items()})
        return results

    def _units(self, index: int, pieces: Sequence[str], found: Counter[str]) -> list[Unit]:
        """The inputs for a text: its pieces, the sentences of pieces that are too long, or nothing if that fails."""
        encoded: list[list[int]] = []
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

    def _sentences(self, text: str) -> list[list[int]]:
        """The sentences of a text; empty with ``--too-long copy``, or if a sentence is still too long."""
        if self.settings.too_long == "copy":
            return []
        if self._split is None:
            self._split = sentence_splitter(self.model.languages[0])
        encoded = [self.model.encode(sentence) for sentence in self._split(text)]
        return encoded if all(len(ids) <= self.model.max_source for ids in encoded) else []

    def _translate_units(
        self, units: list[Unit], texts: int, chunk: int, found: Counter[str]
    ) -> list[Translation | None]:
        results: list[Translation | None] = [None] * len(units)
        error: Exception | None = None
        share = texts / max(len(units), 1)
        for group in batches([len(unit.ids) for unit in units], self.settings.max_tokens, self.settings.batch_size):
            error = self._translate_group(group, units, chunk, results) or error
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
        self, group: list[int], units: list[Unit], chunk: int, results: list[Translation | None]
    ) -> Exception | None:
        """Store the results of a batch; a batch that fails is halved until only the failing text is left."""
        try:
            seed = _seed(self.settings.seed, self.model.which, chunk, group[0])
            translations = self.model.translate_batch([units[position].ids for position in group], seed)
        except Exception as error:
            if "CUDA error" in str(error):  # the device cannot be used any more
                raise UserError(f"--device {self.model.device}: {one_line(error)}; rerun to resume") from None
            if isinstance(error, torch.OutOfMemoryError):
                torch.cuda.empty_cache()
            if len(group) > 1:
                logger.warning("%s: a batch of %d is halved: %s", self.model.which, len(group), one_line(error))
                halves = group[: len(group) // 2], group[len(group) // 2 :]
                errors = [self._translate_group(half, units, chunk, results) for half in halves]
                return errors[0] or errors[1]
            logger.warning("%s: one text is kept unchanged: %s", self.model.which, one_line(error))
            return error
        for position, translation in zip(group, translations, strict=True):
            results[position] = translation
        return None


def _seed(seed: int, which: str, chunk: int, first: int) -> int:
    """Seed of a batch, so that samples do not depend on earlier batches or on the process."""
    sequence = np.random.SeedSequence([seed, which == "backward", chunk, first])
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
