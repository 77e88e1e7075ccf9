"""The interface of translation models, whichever library runs them, and what they share."""

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from fairseq_clear.errors import UserError
from fairseq_clear.files import hash_file
from fairseq_clear.preparation.back_translation.translation_settings import BackTranslateSettings

Tokens = list[Any]  # ids or pieces of a text, with an end symbol

FORMS = ("{}", "__{}__", ">>{}<<")  # tokens of a language: NLLB and mBART, M2M100, OPUS-MT
LANGUAGE = re.compile(r">>[^<>]+<<|__[a-z]{2,3}__|[a-z]{3}_[A-Z][a-z]{3}|[a-z]{2}_[A-Z]{2}")
SHOWN = 5
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class Translation:
    """A translation, and whether it was cut off at the maximum length."""

    text: str
    is_cut: bool


class Translator(ABC):
    """The model of one direction, ``which`` is forward or backward; making it loads the model on the device.

    Attributes:
        TITLE: name of the kind of model, for messages.
        LOOKED_FOR: what identifies the kind, for messages.
        FLAGS: flags that apply to it: of a direction (``data``, ``codes``, ``languages``) and of both (``bpe``, ``tokenizer``,
            ``search``, ``fp16``); ``drawn-beam`` for ``--beam`` with ``--sampling``.
        languages: source and target language; None if neither the model nor a flag names them.
        max_source: maximum number of tokens of a source text, end symbol included.
        draws: whether translations depend on the seed.
        has_alternatives: whether the model can return several translations of a text.

    Raises:
        UserError: the model is missing, incomplete, or needs a package that is not installed.
    """

    TITLE: ClassVar[str]
    LOOKED_FOR: ClassVar[str]
    FLAGS: ClassVar[frozenset[str]] = frozenset({"languages", "search", "fp16"})
    max_source: int
    has_alternatives = True

    def __init__(self, settings: BackTranslateSettings, which: str, device: torch.device) -> None:
        self.which, self.search, self.device = which, settings.search, device
        self.source = settings.source(which)
        self.where = f"--{which} {self.source.path}"
        self.languages = self.source.languages
        self.draws = self.search.samples_in(which)

    @staticmethod
    @abstractmethod
    def matches(path: str) -> bool:
        """Whether the value of ``--forward`` or ``--backward`` is of this kind; reads no file."""

    @staticmethod
    def identity(settings: BackTranslateSettings, which: str) -> dict[str, str]:
        """Return names and hashes of what determines the translations: here, of the files of the folder, except hidden ones."""
        return hash_files(path for path in sorted(Path(settings.source(which).path).glob("[!.]*")) if path.is_file())

    @abstractmethod
    def encode(self, text: str) -> Tokens:
        """Convert one line of text to tokens, the last of which is an end symbol."""

    @abstractmethod
    def count_unknown(self, tokens: Tokens) -> int:
        """Number of tokens that the model does not know."""

    @abstractmethod
    def translate_batch(self, batch: Sequence[Tokens], seed: int, count: int = 1) -> list[list[Translation]]:
        """Translate texts, given by their tokens; the result of a text does not depend on earlier calls.

        Returns:
            At most ``count`` translations of each text, best first; empty if none was found. ``seed`` determines the samples.
        """


def clean_line(text: str) -> str:
    """Strip a text and replace control characters, line separators and runs of white space by one space.

    Every program reads the result as one line: it has no tab, CR, NUL, U+0085, U+2028 or U+2029.
    """
    return " ".join(_CONTROL.sub(" ", text).split())


def hash_files(paths: Iterable[Path]) -> dict[str, str]:
    """Hash files (SHA-256, by name).

    Raises:
        UserError: a file cannot be read.
    """
    try:
        return {path.name: hash_file(path) for path in paths}
    except OSError as error:
        raise UserError(f"{error.filename}: cannot read it ({error.strerror or error})") from None


def language_tokens(
    vocabulary: Collection[str], languages: tuple[str, str] | None, which: str, path: str
) -> tuple[list[str], list[str]]:
    """Find the tokens that tell a multilingual model its languages.

    OPUS-MT marks the target language in the source text (``>>por<<``). NLLB, M2M100 and mBART mark the source language there,
    and start the translation with the target language.

    Args:
        vocabulary: tokens of the model.
        languages: value of ``--forward-languages`` or ``--backward-languages``; ``which`` and ``path`` are for messages.

    Returns:
        The tokens before those of the source text, and the first tokens of every translation; none for one language pair.

    Raises:
        UserError: the model has several languages and none was given, or it does not know a given one; or languages were
            given for a model of one language pair.
    """
    known = sorted(token for token in vocabulary if LANGUAGE.fullmatch(token))
    if len(known) < 2:
        if languages is not None:
            raise UserError(
                f"--{which}-languages {':'.join(languages)}: {path} has no language tokens in its vocabulary; leave the flag "
                "out if it translates between two languages, else convert or download it again"
            )
        return [], []
    shown = ", ".join(token.strip("_<>") for token in known[:SHOWN]) + ", ..." * (len(known) > SHOWN)
    if languages is None:
        raise UserError(
            f"--{which} {path}: translates between several languages ({shown}); add --{which}-languages SOURCE:TARGET"
        )
    source, target = (
        next((form.format(name) for form in FORMS if form.format(name) in vocabulary), "") for name in languages
    )
    if target.startswith(">>"):
        return [target], []
    if not target and source.startswith(">>"):  # OPUS-MT from several languages into one
        return [], []
    if not (source and target):
        name = languages[bool(source)]
        raise UserError(f"--{which}-languages {':'.join(languages)}: {path} does not know {name}; it has {shown}")
    return [source], [target]


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
