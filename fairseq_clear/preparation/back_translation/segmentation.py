"""Text as a translation model reads it, and back: Moses tokenizer, then byte pairs or sentencepiece, or neither."""

import re
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fairseq.data import encoders

from fairseq_clear import register
from fairseq_clear.errors import UserError
from fairseq_clear.preparation.back_translation.bpe import BytePairs
from fairseq_clear.preparation.back_translation.files import find_codes

register()

__all__ = ["Segmentation", "make_segmentation", "one_line"]

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class Coder(Protocol):
    """Turns text into other text and back."""

    def encode(self, x: str) -> str:
        """Towards the model."""

    def decode(self, x: str) -> str:
        """Back."""


def one_line(text: str) -> str:
    """The text with every control character, line separator and run of blanks as one space; stripped.

    So a line is one line to whatever reads it next: tabs, lone CRs, NUL, U+0085, U+2028 and U+2029 are gone.
    """
    return " ".join(_CONTROL.sub(" ", text).split())


@dataclass(frozen=True)
class Segmentation:
    """Steps between text and a model's tokens, in order.

    Attributes:
        steps: applied one after the other, backwards for decoding.
        name: for the log.
        codes: the file that decides it, if any.
    """

    steps: tuple[Coder, ...]
    name: str
    codes: Path | None = None

    def encode(self, text: str) -> str:
        """Text to tokens separated by spaces."""
        for step in self.steps:
            text = step.encode(text)
        return text

    def decode(self, tokens: str) -> str:
        """Tokens separated by spaces to one line of text."""
        for step in reversed(self.steps):
            tokens = step.decode(tokens)
        return one_line(tokens)


def make_segmentation(
    folder: Path, languages: tuple[str, str], *, bpe: str, tokenizer: str, codes: Path | None, flag: str
) -> Segmentation:
    """The segmentation of a model in ``folder``.

    Unless said, the pieces are those of the code file beside the model (sentencepiece for ``.model``), and byte pairs
    come after the Moses tokenizer, as in the WMT19 archives. Without such a file words are separated by spaces.

    Args:
        folder: of the checkpoint.
        languages: source and target, which the Moses rules depend on.
        bpe, tokenizer: as in the settings.
        codes: the file of codes, where it lies elsewhere.
        flag: the command line's name of the model, for messages.

    Raises:
        UserError: no such file, or one of another kind.
    """
    if codes is not None and not codes.is_file():
        raise UserError(f"--{flag}-codes {codes}: no such file")
    found = codes if codes is not None or bpe == "none" else find_codes(folder, bpe)
    if bpe == "none":
        found = None
    elif found is None and bpe != "auto":
        raise UserError(f"--bpe {bpe}: no codes in {folder}; add --{flag}-codes FILE")
    kind = "none" if found is None else bpe
    if kind == "auto":
        kind = "sentencepiece" if found is not None and found.suffix == ".model" else "bpe"
    steps: list[Coder] = []
    names = []
    if tokenizer == "moses" or (tokenizer == "auto" and kind == "bpe"):
        steps.append(_moses(languages))
        names.append("moses")
    if kind != "none":
        assert found is not None
        steps.append(BytePairs(found) if kind == "bpe" else _sentencepiece(found))
        names.append(f"{kind} ({found})")
    return Segmentation(tuple(steps), " + ".join(names) or "words between spaces", found)


def _moses(languages: tuple[str, str]) -> Coder:
    settings = Namespace(
        tokenizer="moses",
        source_lang=languages[0],
        target_lang=languages[1],
        moses_no_dash_splits=False,
        moses_no_escape=False,
    )
    try:
        return encoders.build_tokenizer(settings)
    except ImportError:
        raise UserError("--tokenizer moses needs sacremoses; pip install sacremoses") from None


def _sentencepiece(path: Path) -> Coder:
    settings = Namespace(
        bpe="sentencepiece",
        sentencepiece_model=str(path),
        sentencepiece_enable_sampling=False,
        sentencepiece_alpha=None,
    )
    try:
        return encoders.build_bpe(settings)
    except (OSError, RuntimeError) as error:
        first = (str(error).splitlines() or [""])[0]
        raise UserError(f"{path}: not a sentencepiece model ({first[:120]})") from None
