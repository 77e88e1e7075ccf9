"""Translates with an object that a function of the user makes: ``package.module:factory``."""

import importlib
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from fairseq_clear.errors import UserError, one_line
from fairseq_clear.preparation.back_translation.translation_settings import Model
from fairseq_clear.preparation.back_translation.translator import Tokens, Translation, Translator, clean_line

NAME = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)", re.ASCII)
END = "</s>"


class FactoryTranslator(Translator):
    """The translator that a factory returned, on a device of its choice.

    Its tokens are words; a text of any length is passed on whole. A parameter ``seed`` of its method ``translate``, if there is
    one, gets the seed of the batch.
    """

    LOOKED_FOR = "package.module:factory"
    FLAGS = frozenset({"languages"})
    max_source = sys.maxsize

    def __init__(self, model: Model, device: torch.device) -> None:
        super().__init__(model, device)
        module, _, name = model.path.partition(":")
        _search_working_directory()
        try:
            factory = getattr(importlib.import_module(module), name, None)
        except Exception as error:
            raise _cannot_import(model, error) from None
        if not callable(factory):
            raise UserError(f"{model.where}: {module} has no function {name}; give package.module:factory")
        try:
            self._translate: Any = factory().translate
            parameters = inspect.signature(self._translate).parameters
            self.draws = "seed" in parameters
            inspect.signature(self._translate).bind([], **({"seed": 0} if self.draws else {}))
        except Exception as error:
            raise UserError(
                f"{model.where}: {name}() must return an object with translate(list of str) -> list of str, and besides the "
                f"texts at most a parameter seed ({one_line(error)})"
            ) from None

    @staticmethod
    def matches(path: str) -> bool:
        """Whether the path names a function."""
        return NAME.fullmatch(path) is not None

    @classmethod
    def files(cls, model: Model) -> list[Path]:
        """The source file of the factory's module."""
        module = model.path.partition(":")[0]
        _search_working_directory()
        try:
            spec = importlib.util.find_spec(module)
            if spec is None:
                raise ModuleNotFoundError(f"no module {module}")
        except Exception as error:  # finding a module in a package imports the package
            raise _cannot_import(model, error) from None
        return [Path(spec.origin)] if spec.origin and Path(spec.origin).is_file() else []

    def encode(self, text: str) -> Tokens:
        """Split text into words."""
        return [*text.split(), END]

    def count_unknown(self, tokens: Tokens) -> int:
        """Return 0: the words that the translator knows are not known here."""
        return 0

    def search(self, batch: Sequence[Tokens], seed: int, count: int) -> list[list[Translation]]:
        """Translate texts, one translation each; UserError if the result is not a list of as many strings."""
        texts = [" ".join(words[:-1]) for words in batch]
        found = self._translate(texts, **({"seed": seed} if self.draws else {}))
        if not isinstance(found, list | tuple) or not all(isinstance(text, str) for text in found):
            raise UserError(f"{self.model.where}: translate must return a list of str; found {found!r:.60}")
        if len(found) != len(texts):
            raise UserError(
                f"{self.model.where}: translate returned {len(found)} translations of {len(texts)} texts; it must return one "
                "for each, an empty one if it fails"
            )
        return [[Translation(clean_line(text), False)] for text in found]


def _cannot_import(model: Model, error: Exception) -> UserError:
    module = model.path.partition(":")[0]
    return UserError(f"{model.where}: cannot import {module} ({one_line(error)}); install it, or run in its folder")


def _search_working_directory() -> None:
    """Let imports find modules in the working directory, after all others, as they do with ``python -m``."""
    if (folder := os.getcwd()) not in sys.path:
        sys.path.append(folder)
    importlib.invalidate_caches()
