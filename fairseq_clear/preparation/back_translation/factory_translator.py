"""Translates with an object that a function of the user makes: ``package.module:factory``."""

import inspect
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from fairseq_clear.errors import UserError, one_line
from fairseq_clear.libraries import import_factory
from fairseq_clear.preparation.back_translation.translation_settings import Model
from fairseq_clear.preparation.back_translation.translator import Tokens, Translation, Translator, clean_line

END = "</s>"


class FactoryTranslator(Translator):
    """The translator that a factory returned, on a device of its choice.

    Its tokens are words; a text of any length is passed on whole. A parameter ``seed`` of its method ``translate``, if there is
    one, gets the seed of the batch.
    """

    max_source, unknown = sys.maxsize, None

    def __init__(self, model: Model, device: torch.device) -> None:
        super().__init__(model, device)
        factory = import_factory(model.path, f"--{model.name}")
        try:
            self._translate: Any = factory().translate
            parameters = inspect.signature(self._translate).parameters
            self.draws = "seed" in parameters
            inspect.signature(self._translate).bind([], **({"seed": 0} if self.draws else {}))
        except Exception as error:
            raise UserError(
                f"{model.where}: it must return an object with translate(list of str) -> list of str; the only other "
                f"parameter may be seed ({one_line(error)})"
            ) from None

    @classmethod
    def files(cls, model: Model) -> list[Path]:
        """The source file of the factory's module."""
        import_factory(model.path, f"--{model.name}")
        file = getattr(sys.modules[model.path.partition(":")[0]], "__file__", None)
        return [Path(file)] if file and Path(file).is_file() else []

    def encode(self, text: str) -> Tokens:
        """Split text into words."""
        return [*text.split(), END]

    def search(self, batch: Sequence[Tokens], seed: int) -> list[Translation]:
        """Translate texts; UserError if the result is not a list of as many strings."""
        texts = [" ".join(words[:-1]) for words in batch]
        found = self._translate(texts, **({"seed": seed} if self.draws else {}))
        is_list = isinstance(found, list | tuple) and all(isinstance(text, str) for text in found)
        if not is_list or len(found) != len(texts):
            raise UserError(
                f"{self.model.where}: translate must return a list of {len(texts)} str, one for each text, an empty one if it "
                f"fails; found {found!r:.60}"
            )
        return [Translation(clean_line(text)) for text in found]
