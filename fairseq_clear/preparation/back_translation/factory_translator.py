"""Translates with an object that a function of the user makes: ``--forward package.module:factory``."""

import importlib
import importlib.metadata
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from fairseq_clear.errors import UserError, one_line
from fairseq_clear.files import hash_file
from fairseq_clear.preparation.back_translation.segmentation import clean_line
from fairseq_clear.preparation.back_translation.translation_settings import BackTranslateSettings, ModelSource
from fairseq_clear.preparation.back_translation.translator import Tokens, Translation

TITLE = "a function"
LOOKED_FOR = "package.module:factory"
FLAGS = frozenset({"languages"})
NAME = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)", re.ASCII)
END = "</s>"


def matches(path: str) -> bool:
    """Whether the value of ``--forward`` or ``--backward`` names a function."""
    return NAME.fullmatch(path) is not None


class FactoryTranslator:
    """The translator that a factory returned. Its tokens are words; a text of any length is passed on whole.

    Args:
        which: ``forward`` or ``backward``.
        name: ``package.module:factory``.
        translate: translates a list of texts; a parameter ``seed``, if it has one, gets the seed of the batch.
        languages: source and target language, if known.

    Raises:
        UserError: ``translate`` has a parameter that is required besides the texts and ``seed``.
    """

    max_source = sys.maxsize
    has_alternatives = False
    device = "cpu"

    def __init__(
        self, which: str, name: str, translate: Callable[..., Any], languages: tuple[str, str] | None = None
    ) -> None:
        self.which, self.name, self.languages = which, name, languages
        self._translate = translate
        try:
            signature = inspect.signature(translate)
        except ValueError:  # a function in C that does not tell
            self.draws = False
            return
        self.draws = "seed" in signature.parameters
        try:
            signature.bind([], **({"seed": 0} if self.draws else {}))
        except TypeError as error:
            raise UserError(
                f"--{which} {name}: translate must take a list of texts, and besides it at most seed ({error})"
            ) from None

    def encode(self, text: str) -> Tokens:
        """Split text into words."""
        return [*text.split(), END]

    def count_unknown(self, tokens: Tokens) -> int:
        """Return 0: the words that the translator knows are not known here."""
        return 0

    def translate_batch(self, batch: Sequence[Tokens], seed: int, count: int = 1) -> list[list[Translation]]:
        """Translate texts, one translation each; see ``Translator``.

        Raises:
            UserError: the result is not a list of as many strings.
        """
        texts = [" ".join(words[:-1]) for words in batch]
        found = self._translate(texts, **({"seed": seed} if self.draws else {}))
        is_list = isinstance(found, list | tuple)
        others = [text for text in found if not isinstance(text, str)] if is_list else [found]
        if others:
            kind = type(others[0]).__name__
            raise UserError(f"--{self.which} {self.name}: translate must return a list of str; found {kind}")
        if len(found) != len(texts):
            raise UserError(
                f"--{self.which} {self.name}: translate returned {len(found)} translations of {len(texts)} texts; it "
                "must return one for each, an empty one if it fails"
            )
        return [[Translation(clean_line(text), is_cut=False)] for text in found]


def identity(settings: BackTranslateSettings, which: str) -> dict[str, str]:
    """Return the version of the factory's distribution, if it has one, and the SHA-256 of its source file.

    Raises:
        UserError: the module does not exist.
    """
    source: ModelSource = getattr(settings, which)
    module = _module_name(source.path)
    found = {"factory": source.path}
    _search_working_directory()
    try:
        spec = importlib.util.find_spec(module)
    except Exception as error:  # finding a module in a package imports the package
        raise _cannot_import(which, source.path, error) from None
    if spec is None:
        raise _cannot_import(which, source.path, ModuleNotFoundError(f"no module {module}"))
    for name in sorted(set(importlib.metadata.packages_distributions().get(module.partition(".")[0], []))):
        found[name] = importlib.metadata.version(name)
    if spec.origin is not None and Path(spec.origin).is_file():
        found[Path(spec.origin).name] = hash_file(spec.origin)
    return found


def load_translator(settings: BackTranslateSettings, which: str, device: torch.device) -> FactoryTranslator:
    """Import the module and call the factory. The device is the factory's choice.

    Raises:
        UserError: the module or its factory is missing or fails, or what it returns cannot translate.
    """
    source: ModelSource = getattr(settings, which)
    module, name = _module_name(source.path), source.path.partition(":")[2]
    _search_working_directory()
    try:
        factory = getattr(importlib.import_module(module), name, None)
    except Exception as error:
        raise _cannot_import(which, source.path, error) from None
    if not callable(factory):
        raise UserError(f"--{which} {source.path}: {module} has no function {name}; give package.module:factory")
    try:
        made = factory()
    except Exception as error:
        raise UserError(f"--{which} {source.path}: {name}() failed ({one_line(error)})") from None
    translate = getattr(made, "translate", None)
    if not callable(translate):
        raise UserError(
            f"--{which} {source.path}: {name}() returned {type(made).__name__}, which has no method translate; return an "
            "object with translate(list of str) -> list of str"
        )
    return FactoryTranslator(which, source.path, translate, source.languages)


def _module_name(path: str) -> str:
    return path.partition(":")[0]


def _cannot_import(which: str, path: str, error: Exception) -> UserError:
    return UserError(
        f"--{which} {path}: cannot import {_module_name(path)} ({one_line(error)}); install it, or run in its folder"
    )


def _search_working_directory() -> None:
    """Let imports find modules in the working directory, after all others, as they do with ``python -m``."""
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.append(folder)
    importlib.invalidate_caches()
