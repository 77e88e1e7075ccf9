"""The interface of translation models, whichever library runs them, and what they share: batches, long texts, failures."""

import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from fairseq_clear.errors import UserError, one_line
from fairseq_clear.preparation.back_translation.translation_settings import Model
from fairseq_clear.preparation.corpus_reading import sentence_splitter

logger = logging.getLogger(__name__)

Tokens = list[Any]  # ids or pieces of a text, with an end symbol

FORMS = ("{}", "__{}__", ">>{}<<")  # tokens of a language: NLLB and mBART, M2M100, OPUS-MT
LANGUAGE = re.compile(r">>[^<>]+<<|__[a-z]{2,3}__|[a-z]{3}_[A-Z][a-z]{3}|[a-z]{2}_[A-Z]{2}")
SHOWN = 5
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class Translation:
    """The translation of a text.

    Attributes:
        text: empty if the text could not be translated. If it was too long, each of its sentences is on a line of its own.
        is_cut: whether it was cut off at the maximum length.
        unknown: number of source tokens that the model does not know.
        others: other translations, best first.
        problem: why ``text`` is empty: ``too_long`` (even when split into sentences), ``failed`` or ``empty``.
    """

    text: str
    is_cut: bool = False
    unknown: int = 0
    others: tuple[str, ...] = ()
    problem: str = ""


class Translator(ABC):
    """The model of one direction; making it loads the model on the device.

    Attributes:
        LOOKED_FOR: what identifies the kind of model, for messages.
        FLAGS: which of the flags ``languages`` and ``sampling`` apply to it.
        languages: source and target language; None if neither the model nor a flag names them.
        max_source: maximum number of tokens of a source text, end symbol included.
        draws: whether translations depend on the seed.

    Raises:
        UserError: the model is missing, incomplete, or needs a package that is not installed.
    """

    LOOKED_FOR: ClassVar[str]
    FLAGS: ClassVar[frozenset[str]] = frozenset({"languages", "sampling"})
    max_source: int

    def __init__(self, model: Model, device: torch.device) -> None:
        self.model, self.settings, self.device = model, model.settings, device
        self.languages, self.draws = model.languages, model.draws

    @staticmethod
    @abstractmethod
    def matches(path: str) -> bool:
        """Whether the path of a model is of this kind; reads no file."""

    @classmethod
    def files(cls, model: Model) -> list[Path]:
        """The files that determine the translations: here, all of the folder, except hidden ones."""
        return [path for path in sorted(Path(model.path).glob("[!.]*")) if path.is_file()]

    @abstractmethod
    def encode(self, text: str) -> Tokens:
        """Convert one line of text to tokens; the last one is an end symbol."""

    @abstractmethod
    def count_unknown(self, tokens: Tokens) -> int:
        """Number of tokens that the model does not know."""

    @abstractmethod
    def search(self, batch: Sequence[Tokens], seed: int, count: int) -> list[list[Translation]]:
        """Return at most ``count`` translations of each text, best first; ``seed`` determines the samples."""

    def translate(self, texts: Sequence[str], seed: int = 0) -> list[Translation]:
        """Translate texts that are not blank, each of their lines by itself. Earlier calls do not change the result.

        Raises:
            UserError: none of several texts could be translated, so the cause is not a text.
        """
        sources = [self._encode(text) for text in texts]
        units = [tokens for source in sources for tokens in source or ()]
        found: list[list[Translation]] = [[] for _ in units]
        for batch in batches([len(tokens) for tokens in units], self.settings.max_tokens):
            for position, translations in zip(batch, self._search(units, batch, seed), strict=True):
                found[position] = translations
        if len(units) > 1 and not any(found):
            raise UserError(
                f"{self.model.where}: not one of {len(units)} texts could be translated; see the warnings above"
            )
        parts = iter(found)
        return [self._join(source, list(islice(parts, len(source or ())))) for source in sources]

    def _encode(self, text: str) -> list[Tokens] | None:
        """The tokens of each line, or of each sentence if a line is too long; empty if even so, None if it fails."""
        try:
            parts = [self.encode(line) for line in text.split("\n")]
            if max(map(len, parts)) > self.max_source and self.settings.too_long == "split":
                split = sentence_splitter(self.languages[0] if self.languages else "en")
                parts = [self.encode(sentence) for line in text.split("\n") for sentence in split(line)]
            return parts if all(len(part) <= self.max_source for part in parts) else []
        except Exception as error:  # a single text for which a library fails must not end the run
            logger.warning("%s: %r is kept unchanged: %s", self.model.name, text[:80], error)
            return None

    def _search(self, units: list[Tokens], batch: list[int], seed: int) -> list[list[Translation]]:
        """Translate a batch of units. If it fails, halve it, down to the failing text, for which nothing is found."""
        count = self.model.beam if self.model.alternatives > 1 else 1
        try:
            return self.search([units[position] for position in batch], mix(seed, batch[0]), count)
        except UserError:  # about the model
            raise
        except Exception as error:
            if "CUDA error" in str(error):  # the device cannot be used any more
                raise UserError(f"--device {self.device}: {one_line(error)}; rerun to resume") from None
            logger.warning("%s: a batch of %d failed: %s", self.model.name, len(batch), one_line(error))
        if len(batch) == 1:
            return [[]]
        torch.cuda.empty_cache()
        middle = len(batch) // 2
        return self._search(units, batch[:middle], seed) + self._search(units, batch[middle:], seed)

    def _join(self, source: list[Tokens] | None, found: list[list[Translation]]) -> Translation:
        """Join what was found for the parts of a text, by rank; a part with fewer translations repeats its last one."""
        if not source or not all(found):
            return Translation("", problem="too_long" if source == [] else "failed")
        ranks = range(max(map(len, found)))
        texts = ("\n".join(part[min(rank, len(part) - 1)].text for part in found).strip() for rank in ranks)
        best, *others = [text for text in dict.fromkeys(texts) if text] or [""]
        is_cut, unknown = any(part[0].is_cut for part in found), sum(map(self.count_unknown, source))
        return Translation(best, is_cut, unknown, tuple(others), problem="" if best else "empty")


def mix(*numbers: int) -> int:
    """Mix numbers into a seed below 2 ** 63."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))


def batches(lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Yield batches of indices of texts of similar length (in tokens), longest first.

    A batch has at most ``max_tokens`` tokens, padding included; a longer text is a batch by itself.
    """
    group: list[int] = []
    for position in sorted(range(len(lengths)), key=lambda position: (-lengths[position], position)):
        if group and (len(group) + 1) * lengths[group[0]] > max_tokens:
            yield group
            group = []
        group.append(position)
    if group:
        yield group


def clean_line(text: str) -> str:
    """Strip a text and replace control characters, line separators and runs of white space by one space.

    Every program reads the result as one line: it has no tab, CR, NUL, U+0085, U+2028 or U+2029.
    """
    return " ".join(_CONTROL.sub(" ", text).split())


def language_tokens(vocabulary: Collection[str], model: Model) -> tuple[list[str], list[str]]:
    """Find the tokens that tell a multilingual model its languages.

    OPUS-MT marks the target language in the source text (``>>por<<``). NLLB, M2M100 and mBART mark the source language there,
    and start the translation with the target language.

    Returns:
        The tokens before the source text, and the first tokens of every translation; none for one language pair.

    Raises:
        UserError: the model has several languages and none was given, or it does not know a given one.
    """
    known = sorted(token for token in vocabulary if LANGUAGE.fullmatch(token))
    if model.languages is None and len(known) < 2:
        return [], []
    source, target = (
        next((form.format(name) for form in FORMS if form.format(name) in vocabulary), "")
        for name in model.languages or ("", "")
    )
    if target.startswith(">>"):
        return [target], []
    if source.startswith(">>") and not target:  # OPUS-MT from several languages into one
        return [], []
    if not (source and target):
        shown = ", ".join(token.strip("_<>") for token in known[:SHOWN]) + ", ..." * (len(known) > SHOWN)
        given = ":".join(model.languages or ()) or "not given"
        raise UserError(
            f"--{model.name}-languages {given}: {model.path} knows the languages {shown or 'of one pair only'}"
        )
    return [source], [target]
