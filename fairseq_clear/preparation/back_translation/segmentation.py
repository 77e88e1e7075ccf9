"""Converts text to the tokens of a translation model and back: Moses tokenizer, byte pair encoding, sentencepiece."""

import re
from argparse import Namespace
from functools import lru_cache
from pathlib import Path
from typing import Any

from fairseq.data import encoders

from fairseq_clear import register
from fairseq_clear.errors import UserError, one_line
from fairseq_clear.files import read_text_lines

register()

WORD_END = "</w>"
JOINER = "@@"
CACHE_WORDS = 200_000
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class Segmentation:
    """The steps from text to the tokens of a model, and back.

    With ``auto``, codes in a ``.model`` file are taken as sentencepiece, other codes as byte pair encoding after the Moses
    tokenizer, as in the WMT19 archives. Without codes, tokens are words separated by spaces.

    Args:
        languages: source and target language, on which the rules of Moses depend.
        bpe, tokenizer: as in the settings.
        codes: the file of codes, if any.

    Attributes:
        name: name for the log.

    Raises:
        UserError: the file has another format, or sacremoses is not installed.
    """

    def __init__(self, languages: tuple[str, str], *, bpe: str, tokenizer: str, codes: Path | None) -> None:
        kind = "none" if codes is None else bpe
        if kind == "auto":
            kind = "sentencepiece" if codes is not None and codes.suffix == ".model" else "bpe"
        self._steps: list[Any] = []  # steps of encoding; decoding applies them in reverse
        names = []
        if tokenizer == "moses" or (tokenizer == "auto" and kind == "bpe"):
            source, target = languages
            flags = {
                "source_lang": source,
                "target_lang": target,
                "moses_no_dash_splits": False,
                "moses_no_escape": False,
            }
            try:
                self._steps.append(encoders.build_tokenizer(Namespace(tokenizer="moses", **flags)))
            except ImportError:
                raise UserError("--tokenizer moses needs sacremoses; pip install sacremoses") from None
            names.append("moses")
        if codes is not None:
            self._steps.append(BytePairs(codes) if kind == "bpe" else _sentencepiece(codes))
            names.append(f"{kind} ({codes})")
        self.name = " + ".join(names) or "words between spaces"

    def encode(self, text: str) -> str:
        """Convert text to tokens separated by spaces."""
        for step in self._steps:
            text = step.encode(text)
        return text

    def decode(self, tokens: str) -> str:
        """Convert tokens separated by spaces to one line of text."""
        for step in reversed(self._steps):
            tokens = step.decode(tokens)
        return clean_line(tokens)


def clean_line(text: str) -> str:
    """Strip a text and replace control characters, line separators and runs of white space by one space.

    Every program reads the result as one line: it has no tab, CR, NUL, U+0085, U+2028 or U+2029.
    """
    return " ".join(_CONTROL.sub(" ", text).split())


def _sentencepiece(path: Path) -> Any:
    settings = {"sentencepiece_model": str(path), "sentencepiece_enable_sampling": False, "sentencepiece_alpha": None}
    try:
        return encoders.build_bpe(Namespace(bpe="sentencepiece", **settings))
    except (OSError, RuntimeError) as error:
        raise UserError(f"{path}: not a sentencepiece model ({one_line(error)})") from None


def read_codes(path: Path) -> tuple[dict[tuple[str, str], int], bool]:
    """Read the codes of fastBPE (``left right count``) or subword-nmt (``#version: 0.2``, then ``left right``).

    Returns:
        Each merge with its rank, and whether the end-of-word mark is part of a word's last character. In version 0.1 of
        subword-nmt, whose files have no version line, it is a separate symbol.

    Raises:
        UserError: a line that is not a merge.
    """
    lines = read_text_lines(path)
    first = lines[0] if lines else ""
    has_version = first.startswith("#version:")
    is_joined = first.split(":", 1)[1].strip() != "0.1" if has_version else len(first.split(" ")) != 2
    merges: dict[tuple[str, str], int] = {}
    for number, line in enumerate(lines[has_version:], 1 + has_version):
        parts = line.split(" ")
        if len(parts) not in (2, 3) or not all(parts) or (len(parts) == 3 and not parts[2].isdecimal()):
            raise UserError(
                f"{path}:{number}: {line[:60]!r} is not a merge; BPE codes have 'left right' or 'left right count' on each line"
            )
        merges.setdefault((parts[0], parts[1]), len(merges))  # of equal merges, the first counts
    if not merges:
        raise UserError(f"{path}: holds no merge; give the codes that the model was trained with")
    return merges, is_joined


class BytePairs:
    """Byte pair encoding (Sennrich et al. 2016, arXiv:1508.07909, algorithm 1); all but a word's last piece end in ``@@``.

    Implemented here because the fastBPE package needs a compiler. Both fastBPE and subword-nmt apply codes in this way.

    Args:
        path: file of the codes.
    """

    def __init__(self, path: Path) -> None:
        self._merges, self._joined = read_codes(path)
        self._pieces = lru_cache(CACHE_WORDS)(self._merge)

    def encode(self, text: str) -> str:
        """Split words into pieces, both separated by spaces."""
        return " ".join(self._pieces(word) for word in text.split(" ") if word)

    def decode(self, text: str) -> str:
        """Join pieces to words."""
        return (text + " ").replace(JOINER + " ", "").rstrip()

    def _merge(self, word: str) -> str:
        """Return the pieces of a word: the pair with the lowest rank is merged everywhere, until no pair has a rank."""
        symbols = [*word[:-1], word[-1] + WORD_END] if self._joined else [*word, WORD_END]
        while pairs := [pair for pair in zip(symbols, symbols[1:], strict=False) if pair in self._merges]:
            symbols = _join(symbols, min(pairs, key=self._merges.__getitem__))
        return f"{JOINER} ".join(symbols).removesuffix(WORD_END).removesuffix(f"{JOINER} ")


def _join(symbols: list[str], pair: tuple[str, str]) -> list[str]:
    joined: list[str] = []
    index = 0
    while index < len(symbols):
        is_pair = tuple(symbols[index : index + 2]) == pair
        joined.append(pair[0] + pair[1] if is_pair else symbols[index])
        index += 1 + is_pair
    return joined
