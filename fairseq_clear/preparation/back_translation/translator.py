"""The interface that back-translation uses to translate, whichever library runs the model."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fairseq_clear.errors import UserError
from fairseq_clear.files import hash_file

Tokens = list[Any]  # ids or pieces of a text, with an end symbol


@dataclass(frozen=True)
class Translation:
    """A translation, and whether it was cut off at the maximum length."""

    text: str
    is_cut: bool


class Translator(Protocol):
    """The model of one direction.

    Attributes:
        which: ``forward`` or ``backward``.
        languages: source and target language; None if neither the model nor a flag names them.
        max_source: maximum number of tokens of a source text, end symbol included.
        draws: whether translations depend on the seed.
        has_alternatives: whether the model can return several translations of a text.
        device: device of the model, for messages.
    """

    @property
    def which(self) -> str: ...  # noqa: D102
    @property
    def languages(self) -> tuple[str, str] | None: ...  # noqa: D102
    @property
    def max_source(self) -> int: ...  # noqa: D102
    @property
    def draws(self) -> bool: ...  # noqa: D102
    @property
    def has_alternatives(self) -> bool: ...  # noqa: D102
    @property
    def device(self) -> Any: ...  # noqa: D102

    def encode(self, text: str) -> Tokens:
        """Convert one line of text to tokens, the last of which is an end symbol."""

    def count_unknown(self, tokens: Tokens) -> int:
        """Number of tokens that the model does not know."""

    def translate_batch(self, batch: Sequence[Tokens], seed: int, count: int = 1) -> list[list[Translation]]:
        """Translate texts; the result of a text does not depend on earlier calls.

        Args:
            batch: tokens of each text.
            seed: seed of the samples; unused if ``draws`` is False.
            count: maximum number of translations of a text.

        Returns:
            The translations of each text, best first; empty if none was found.
        """


def hash_files(folder: Path) -> dict[str, str]:
    """Hash the files of a model's folder (SHA-256, by name), except hidden ones.

    Raises:
        UserError: a file cannot be read.
    """
    try:
        return {
            path.name: hash_file(path)
            for path in sorted(folder.iterdir())
            if path.is_file() and not path.name.startswith(".")
        }
    except OSError as error:
        raise UserError(f"{error.filename}: cannot read it ({error.strerror or error})") from None
