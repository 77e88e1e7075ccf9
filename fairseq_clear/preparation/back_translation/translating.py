"""Texts through one model: cut, batched by length, translated, put back in order; no text is lost whatever goes wrong."""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fairseq_clear.errors import UserError
from fairseq_clear.preparation.back_translation.models import Translation, TranslationModel, one_line_error
from fairseq_clear.preparation.back_translation.settings import BackTranslateSettings
from fairseq_clear.preparation.sentences import sentence_splitter

__all__ = ["Pass", "batches", "check_splitter"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Unit:
    """What the model reads at once: a text, or a sentence of one that is too long."""

    text: int
    ids: list[int]


def check_splitter(settings: BackTranslateSettings) -> None:
    """UserError where texts shall be split but the splitter is not installed."""
    if settings.too_long == "split":
        try:
            sentence_splitter("en")
        except UserError:
            raise UserError(
                "--too-long split needs sentencex; pip install 'fairseq_clear[split]', or give --too-long copy"
            ) from None


class Pass:
    """One direction, applied to the texts of a chunk.

    Args:
        model: of the direction.
        settings: for batches, seed and overlong texts.
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
        """A translation of each text in as many pieces as were translated; None where there is none, and counted why.

        Args:
            texts: each in pieces, which are translated by themselves; none blank.
            chunk: number of the chunk; with the seed it decides the draws.
            counts: added to: ``forward.split`` and so on.

        Raises:
            UserError: not one of several texts could be translated, so the fault lies elsewhere.
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
        """What the model can take of a text: its pieces, their sentences where they are too long, or nothing."""
        encoded: list[list[int]] = []
        try:
            for piece in pieces:
                whole = self.model.encode(piece)
                parts = [whole] if len(whole) <= self.model.max_source else self._sentences(piece)
                if not parts:
                    found["copied"] += 1
                    return []
                encoded += parts
        except Exception as error:  # a text that a library stumbles over must not end the run
            logger.warning("%s: %r is passed through: %s", self.model.which, pieces[0][:80], error)
            return []
        found["split"] += len(encoded) > len(pieces)
        found["tokens"] += sum(map(len, encoded)) - len(encoded)
        found["unknown"] += sum(map(self.model.count_unknown, encoded))
        return [Unit(index, ids) for ids in encoded]

    def _sentences(self, text: str) -> list[list[int]]:
        """The sentences of a text; nothing if one of them is too long too, or none shall be split."""
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
                f"--{self.model.which}: not one of {len(units)} texts could be translated ({one_line_error(error)}); what "
                "was done before is kept: mend it and run again"
            )
        if not units:
            self.on_texts(texts)
        return results

    def _translate_group(
        self, group: list[int], units: list[Unit], chunk: int, results: list[Translation | None]
    ) -> Exception | None:
        """Fill in the results of a batch; one that fails is halved, until the text that is to blame stands alone."""
        try:
            seed = _seed(self.settings.seed, self.model.which, chunk, group[0])
            translations = self.model.translate_batch([units[position].ids for position in group], seed)
        except Exception as error:
            if "CUDA error" in str(error):  # the device answers nothing from here on
                raise UserError(f"--device {self.model.device}: {one_line_error(error)}; run again to go on") from None
            if isinstance(error, torch.OutOfMemoryError):
                torch.cuda.empty_cache()
            if len(group) > 1:
                logger.warning("%s: a batch of %d is halved: %s", self.model.which, len(group), one_line_error(error))
                halves = group[: len(group) // 2], group[len(group) // 2 :]
                errors = [self._translate_group(half, units, chunk, results) for half in halves]
                return errors[0] or errors[1]
            logger.warning("%s: one text is passed through: %s", self.model.which, one_line_error(error))
            return error
        for position, translation in zip(group, translations, strict=True):
            results[position] = translation
        return None


def _seed(seed: int, which: str, chunk: int, first: int) -> int:
    """One seed for each batch, so that draws depend neither on what came before nor on who computes them."""
    sequence = np.random.SeedSequence([seed, which == "backward", chunk, first])
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))


def batches(lengths: list[int], max_tokens: int, batch_size: int | None) -> Iterator[list[int]]:
    """Positions in groups of similar length, longest first.

    Args:
        lengths: in tokens.
        max_tokens: most tokens of a group, padding included; a longer text is a group of its own.
        batch_size: most texts of a group.
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
