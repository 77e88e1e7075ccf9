"""The interface of translation models of all libraries, and their shared code for batches and failures."""

import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fairseq_clear.errors import UserError, one_line
from fairseq_clear.preparation.back_translation.translation_settings import Model

logger = logging.getLogger(__name__)

Tokens = list[Any]  # ids or pieces of a text, with an end symbol

FORMS = ("__{}__", ">>{}<<", "{}")  # tokens of a language: M2M100, OPUS-MT, NLLB and mBART
LANGUAGE = re.compile(r">>[^<>]+<<|__[a-z]{2,3}__|[a-z]{3}_[A-Z][a-z]{3}|[a-z]{2}_[A-Z]{2}")
PROBE = "Yes."  # a text that every model translates
SHOWN = 20  # warnings of a model; a text that fails is counted in the report
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class Translation:
    """The translation of a text."""

    text: str  # empty if the text could not be translated
    is_cut: bool = False  # at the maximum length
    unknown: int = 0  # number of source tokens that the model does not know


class Translator(ABC):
    """A translation model of one direction. The constructor loads the model on the device.

    Attributes:
        languages: source and target language; None if neither the model nor a flag names them.
        max_source: maximum number of tokens of a source text, end symbol included.
        unknown: token of a word that the model does not know.
        draws: whether translations depend on the seed.

    Raises:
        UserError: the model is missing, incomplete, or needs a package that is not installed.
    """

    max_source: int
    unknown: Any

    def __init__(self, model: Model, device: torch.device) -> None:
        self.model, self.settings, self.device = model, model.settings, device
        self.languages, self.draws = model.languages, model.settings.sampling is not None
        self._warnings = 0

    @classmethod
    def files(cls, model: Model) -> list[Path]:
        """Return the files that determine the translations: by default, all files of the folder except hidden ones."""
        return [path for path in sorted(Path(model.path).glob("[!.]*")) if path.is_file()]

    def longest(self, batch: Sequence[Tokens]) -> int:
        """Return the maximum number of tokens of a translation in a batch, without an end symbol."""
        return int(self.settings.max_len_a * max(map(len, batch)) + self.settings.max_len_b)

    @abstractmethod
    def encode(self, text: str) -> Tokens:
        """Convert one line of text to tokens; the last one is an end symbol."""

    @abstractmethod
    def search(self, batch: Sequence[Tokens], seed: int) -> list[Translation]:
        """Translate each text; ``seed`` determines the samples."""

    def translate(self, texts: Sequence[str], seed: int = 0) -> list[Translation]:
        """Translate texts that are not blank. Earlier calls do not change the result.

        Raises:
            UserError: neither one of several texts nor PROBE could be translated, so the texts are not the cause.
        """
        sources = {index: tokens for index, text in enumerate(texts) if (tokens := self._encode(text))}
        found: dict[int, Translation] = {}
        for batch in batches({index: len(tokens) for index, tokens in sources.items()}, self.settings.max_tokens):
            found |= self._search(sources, batch, seed)
        if len(sources) > 1 and not found and not self._search({0: self._encode(PROBE)}, [0], seed):
            raise UserError(
                f"{self.model.where}: none of {len(sources)} texts could be translated; see the warnings above"
            )
        return [found.get(index, Translation("")) for index in range(len(texts))]

    def _encode(self, text: str) -> Tokens:
        """Return the tokens of a text; an empty list if the text is too long or the library fails."""
        try:
            tokens = self.encode(text)
            if len(tokens) > self.max_source:
                raise ValueError(f"it has {len(tokens)} tokens, and the model takes at most {self.max_source}")
        except Exception as error:  # one text on which a library fails must not end the run
            self._warn(f"{text[:80]!r} is kept unchanged", error)
            return []
        return tokens

    def _warn(self, what: str, error: Exception) -> None:
        self._warnings += 1
        if self._warnings <= SHOWN:
            logger.warning("%s: %s: %s", self.model.name, what, one_line(error))
        if self._warnings == SHOWN:
            logger.warning("%s: further failures are not shown", self.model.name)

    def _search(self, sources: Mapping[int, Tokens], batch: list[int], seed: int) -> dict[int, Translation]:
        """Translate the sources with these indices. Split a failing batch in halves, down to the text that fails."""
        try:
            found = self.search([sources[index] for index in batch], mix(seed, batch[0]))
            unknown = [sources[index].count(self.unknown) for index in batch]
            return {index: replace(one, unknown=n) for index, one, n in zip(batch, found, unknown, strict=True)}
        except UserError:  # the model is the cause
            raise
        except Exception as error:
            if "CUDA error" in str(error):  # the device is unusable from now on
                raise UserError(f"--device {self.device}: {one_line(error)}; rerun to resume") from None
            self._warn(f"a batch of {len(batch)} failed", error)
        if len(batch) == 1:
            return {}
        torch.cuda.empty_cache()
        middle = len(batch) // 2
        return self._search(sources, batch[:middle], seed) | self._search(sources, batch[middle:], seed)


def mix(*numbers: int) -> int:
    """Mix numbers into a seed below 2 ** 63."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))


def batches(lengths: Mapping[int, int], max_tokens: int) -> Iterator[list[int]]:
    """Yield batches of indices, longest texts first. Texts of a batch have similar lengths, in tokens.

    A batch has at most ``max_tokens`` tokens, padding included; a longer text is a batch by itself.
    """
    group: list[int] = []
    for index in sorted(lengths, key=lambda index: (-lengths[index], index)):
        if group and (len(group) + 1) * lengths[group[0]] > max_tokens:
            yield group
            group = []
        group.append(index)
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
        The tokens before the source text, and the first tokens of every translation; both empty for one language pair.

    Raises:
        UserError: the model has several languages and none is given, or it does not know a given language.
    """
    known = sorted(token for token in vocabulary if LANGUAGE.fullmatch(token))  # "en" alone can be a piece of a word
    if model.languages is None and len(known) < 2:
        return [], []
    source, target = (
        next((form.format(name) for form in FORMS if form.format(name) in known), "")
        for name in model.languages or ("", "")
    )
    if target.startswith(">>"):
        return [target], []
    if source.startswith(">>") and not target:  # OPUS-MT from several languages into one
        return [], []
    if not (source and target):
        shown = ", ".join(token.strip("_<>") for token in known[:5]) + ", ..." * (len(known) > 5)
        given = ":".join(model.languages or ()) or "not given"
        raise UserError(
            f"--{model.name}-languages {given}: {model.path} knows the languages {shown or 'of one pair only'}"
        )
    return [source], [target]
