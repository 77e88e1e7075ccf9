"""Text to the tokens of a translation model and back: Moses tokenizer, then byte pairs or sentencepiece, or neither."""

import re
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fairseq.data import encoders

from fairseq_clear import register
from fairseq_clear.errors import UserError
from fairseq_clear.files import read_text_lines

register()


WORD_END = "</w>"
JOINER = "@@"
CACHE_WORDS = 200_000
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")

Merges = dict[tuple[str, str], int]


class Coder(Protocol):
    """Turns text into tokens separated by spaces and back."""

    def encode(self, x: str) -> str:
        """Text to tokens."""

    def decode(self, x: str) -> str:
        """Tokens to text."""


@dataclass(frozen=True)
class Segmentation:
    """The steps from text to the tokens of a model.

    Attributes:
        steps: applied in this order, and in reverse for decoding.
        name: for the log.
    """

    steps: tuple[Coder, ...]
    name: str

    def encode(self, text: str) -> str:
        """Text to tokens separated by spaces."""
        for step in self.steps:
            text = step.encode(text)
        return text

    def decode(self, tokens: str) -> str:
        """Tokens separated by spaces to one line of text."""
        for step in reversed(self.steps):
            tokens = step.decode(tokens)
        return clean_line(tokens)


def clean_line(text: str) -> str:
    """The text, stripped, with each control character, line separator and run of white space as one space.

    The result is one line for any reader: it has no tab, CR, NUL, U+0085, U+2028 or U+2029.
    """
    return " ".join(_CONTROL.sub(" ", text).split())


def make_segmentation(languages: tuple[str, str], *, bpe: str, tokenizer: str, codes: Path | None) -> Segmentation:
    """The segmentation of a model.

    With ``auto``, codes in a ``.model`` file are sentencepiece, other codes are byte pairs, and byte pairs come after the
    Moses tokenizer, as in the WMT19 archives. Without codes, words are separated by spaces.

    Args:
        languages: source and target, which the rules of Moses depend on.
        bpe, tokenizer: as in the settings.
        codes: the file of codes, if any.

    Raises:
        UserError: a file of another kind, or sacremoses is not installed.
    """
    kind = "none" if codes is None else bpe
    if kind == "auto":
        kind = "sentencepiece" if codes is not None and codes.suffix == ".model" else "bpe"
    steps: list[Coder] = []
    names = []
    if tokenizer == "moses" or (tokenizer == "auto" and kind == "bpe"):
        steps.append(_moses(languages))
        names.append("moses")
    if codes is not None:
        steps.append(BytePairs(codes) if kind == "bpe" else _sentencepiece(codes))
        names.append(f"{kind} ({codes})")
    return Segmentation(tuple(steps), " + ".join(names) or "words between spaces")


def _moses(languages: tuple[str, str]) -> Coder:
    settings = Namespace(
        tokenizer="moses", source_lang=languages[0], target_lang=languages[1],
        moses_no_dash_splits=False, moses_no_escape=False,
    )  # fmt: skip
    try:
        return encoders.build_tokenizer(settings)
    except ImportError:
        raise UserError("--tokenizer moses needs sacremoses; pip install sacremoses") from None


def _sentencepiece(path: Path) -> Coder:
    settings = Namespace(
        bpe="sentencepiece", sentencepiece_model=str(path),
        sentencepiece_enable_sampling=False, sentencepiece_alpha=None,
    )  # fmt: skip
    try:
        return encoders.build_bpe(settings)
    except (OSError, RuntimeError) as error:
        first = (str(error).splitlines() or [""])[0]
        raise UserError(f"{path}: not a sentencepiece model ({first[:120]})") from None


def read_codes(path: Path) -> tuple[Merges, bool]:
    """Read the codes of fastBPE (``left right count``) or subword-nmt (``#version: 0.2``, then ``left right``).

    Returns:
        Each merge with its rank, and whether the end of a word is part of its last character. In version 0.1 of
        subword-nmt, whose files have no version line, the end of a word is a symbol of its own.

    Raises:
        UserError: a line that is not a merge.
    """
    lines = read_text_lines(path)
    has_version = bool(lines) and lines[0].startswith("#version:")
    if has_version:
        is_joined = lines[0].split(":", 1)[1].strip() != "0.1"
    else:
        is_joined = not (lines and len(lines[0].split(" ")) == 2)
    merges: Merges = {}
    for number, line in enumerate(lines[has_version:], 1 + has_version):
        parts = line.split(" ")
        if len(parts) not in (2, 3) or not all(parts) or (len(parts) == 3 and not parts[2].isdecimal()):
            raise UserError(
                f"{path}:{number}: {line[:60]!r} is no merge; BPE codes hold 'left right' or 'left right count' a line"
            )
        merges.setdefault((parts[0], parts[1]), len(merges))  # the first of equal merges counts
    if not merges:
        raise UserError(f"{path}: holds no merge; give the codes that the model was trained with")
    return merges, is_joined


class BytePairs:
    """Byte pair encoding of words (Sennrich et al. 2016, arXiv:1508.07909, algorithm 1); ``@@`` ends a piece that goes on.

    The fastBPE package needs a compiler; both tools apply codes in this way.

    Args:
        path: the codes.
    """

    def __init__(self, path: Path) -> None:
        self._merges, self._joined = read_codes(path)
        self._known: dict[str, str] = {}

    def encode(self, text: str) -> str:
        """Words separated by spaces to pieces separated by spaces."""
        return " ".join(self._pieces(word) for word in text.split(" ") if word)

    def decode(self, text: str) -> str:
        """Pieces to words."""
        return (text + " ").replace(JOINER + " ", "").rstrip()

    def _pieces(self, word: str) -> str:
        if word not in self._known:
            if len(self._known) >= CACHE_WORDS:
                self._known.clear()
            self._known[word] = f"{JOINER} ".join(self._merge(word))
        return self._known[word]

    def _merge(self, word: str) -> list[str]:
        """Merge the pair of the lowest rank, wherever it occurs, until no pair has a rank."""
        symbols = [*word[:-1], word[-1] + WORD_END] if self._joined else [*word, WORD_END]
        while pairs := [pair for pair in zip(symbols, symbols[1:], strict=False) if pair in self._merges]:
            symbols = _join(symbols, min(pairs, key=self._merges.__getitem__))
        if symbols[-1] == WORD_END:
            return symbols[:-1]
        return [*symbols[:-1], symbols[-1].removesuffix(WORD_END)]


def _join(symbols: list[str], pair: tuple[str, str]) -> list[str]:
    joined: list[str] = []
    index = 0
    while index < len(symbols):
        is_pair = tuple(symbols[index : index + 2]) == pair
        joined.append(pair[0] + pair[1] if is_pair else symbols[index])
        index += 1 + is_pair
    return joined
