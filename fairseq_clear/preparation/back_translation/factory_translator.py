"""Translates with an object that a function of the user makes: ``--forward package.module:factory``."""

import importlib
import importlib.metadata
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from fairseq_clear.errors import UserError, one_line
from fairseq_clear.files import hash_file
from fairseq_clear.preparation.back_translation.translation_settings import BackTranslateSettings
from fairseq_clear.preparation.back_translation.translator import Tokens, Translation, Translator, clean_line

NAME = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)", re.ASCII)
END = "</s>"


class FactoryTranslator(Translator):
    """The translator that a factory returned, on a device of its choice.

    Its tokens are words; a text of any length is passed on whole. A parameter ``seed`` of its method ``translate``, if there is
    one, gets the seed of the batch.
    """

    TITLE = "a function"
    LOOKED_FOR = "package.module:factory"
    FLAGS = frozenset({"languages"})
    max_source = sys.maxsize
    has_alternatives = False

    def __init__(self, settings: BackTranslateSettings, which: str, device: torch.device) -> None:
        super().__init__(settings, which, device)
        module, _, name = self.source.path.partition(":")
        _search_working_directory()
        try:
            factory = getattr(importlib.import_module(module), name, None)
        except Exception as error:
            raise _cannot_import(self.where, module, error) from None
        if not callable(factory):
            raise UserError(f"{self.where}: {module} has no function {name}; give package.module:factory")
        try:
            made = factory()
        except Exception as error:
            raise UserError(f"{self.where}: {name}() failed ({one_line(error)})") from None
        self._translate = getattr(made, "translate", None)
        if not callable(self._translate):
            raise UserError(
                f"{self.where}: {name}() returned {type(made).__name__}, which has no method translate; return an object "
                "with translate(list of str) -> list of str"
            )
        try:
            signature = inspect.signature(self._translate)
        except ValueError:  # a function in C that does not tell
            self.draws = False
            return
        self.draws = "seed" in signature.parameters
        try:
            signature.bind([], **({"seed": 0} if self.draws else {}))
        except TypeError as error:
            raise UserError(
                f"{self.where}: translate must take a list of texts, and besides it at most seed ({error})"
            ) from None

    @staticmethod
    def matches(path: str) -> bool:
        """Whether the value of ``--forward`` or ``--backward`` names a function."""
        return NAME.fullmatch(path) is not None

    @staticmethod
    def identity(settings: BackTranslateSettings, which: str) -> dict[str, str]:
        """Return the version of the factory's distribution, if it has one, and the SHA-256 of its source file."""
        path = settings.source(which).path
        module = path.partition(":")[0]
        found = {"factory": path}
        _search_working_directory()
        try:
            spec = importlib.util.find_spec(module)
        except Exception as error:  # finding a module in a package imports the package
            raise _cannot_import(f"--{which} {path}", module, error) from None
        if spec is None:
            raise _cannot_import(f"--{which} {path}", module, ModuleNotFoundError(f"no module {module}"))
        for name in sorted(set(importlib.metadata.packages_distributions().get(module.partition(".")[0], []))):
            found[name] = importlib.metadata.version(name)
        if spec.origin is not None and Path(spec.origin).is_file():
            found[Path(spec.origin).name] = hash_file(spec.origin)
        return found

    def encode(self, text: str) -> Tokens:
        """Split text into words."""
        return [*text.split(), END]

    def count_unknown(self, tokens: Tokens) -> int:
        """Return 0: the words that the translator knows are not known here."""
        return 0

    def translate_batch(self, batch: Sequence[Tokens], seed: int, count: int = 1) -> list[list[Translation]]:
        """Translate texts, one translation each; UserError if the result is not a list of as many strings."""
        texts = [" ".join(words[:-1]) for words in batch]
        found = self._translate(texts, **({"seed": seed} if self.draws else {}))
        is_list = isinstance(found, list | tuple)
        others = [text for text in found if not isinstance(text, str)] if is_list else [found]
        if others:
            raise UserError(f"{self.where}: translate must return a list of str; found {type(others[0]).__name__}")
        if len(found) != len(texts):
            raise UserError(
                f"{self.where}: translate returned {len(found)} translations of {len(texts)} texts; it must return one for "
                "each, an empty one if it fails"
            )
        return [[Translation(clean_line(text), is_cut=False)] for text in found]


def _cannot_import(where: str, module: str, error: Exception) -> UserError:
    return UserError(f"{where}: cannot import {module} ({one_line(error)}); install it, or run in its folder")


def _search_working_directory() -> None:
    """Let imports find modules in the working directory, after all others, as they do with ``python -m``."""
    if (folder := os.getcwd()) not in sys.path:
        sys.path.append(folder)
    importlib.invalidate_caches()
