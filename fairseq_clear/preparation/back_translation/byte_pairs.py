"""Byte pair encoding with the codes of fastBPE and subword-nmt. Replaces the package fastBPE, which needs a compiler."""

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from fairseq_clear.errors import UserError
from fairseq_clear.files import read_text_lines

WORD_END, JOINER = "</w>", "@@"
VERSION = "#version: 0.2"  # first line of subword-nmt's files
MERGE = re.compile(r"([^ ]+) ([^ ]+)( \d+)?")
CACHE_WORDS = 200_000


class BytePairs:
    """Byte pair encoding (Sennrich et al. 2016, arXiv:1508.07909, algorithm 1).

    All pieces of a word except the last end in ``@@``. A line of the file is ``left right count`` (fastBPE), or ``left right``
    below the first line ``#version: 0.2`` (subword-nmt).
    """

    def __init__(self, path: Path) -> None:
        self._ranks: dict[tuple[str, str], int] = {}
        for number, line in enumerate(read_text_lines(path), 1):
            if number == 1 and line == VERSION:
                continue
            if not (found := MERGE.fullmatch(line)):
                raise UserError(
                    f"{path}:{number}: {line[:60]!r} is not a merge; write 'left right' or 'left right count'"
                )
            self._ranks.setdefault((found[1], found[2]), len(self._ranks))  # the first of equal merges counts
        if not self._ranks:
            raise UserError(f"{path}: holds no merge; give the codes that the model was trained with")
        self._pieces = lru_cache(CACHE_WORDS)(self._merge)

    def encode(self, text: str) -> list[str]:
        """Split the words of a text, separated by spaces, into pieces."""
        return [piece for word in text.split(" ") if word for piece in self._pieces(word)]

    def decode(self, pieces: Sequence[str]) -> str:
        """Join pieces into words."""
        return (" ".join(pieces) + " ").replace(JOINER + " ", "").rstrip()

    def _merge(self, word: str) -> list[str]:
        """Return the pieces of a word: merge the pair with the lowest rank everywhere, until no pair has a rank."""
        symbols = [*word[:-1], word[-1] + WORD_END]
        while pairs := [pair for pair in zip(symbols, symbols[1:], strict=False) if pair in self._ranks]:
            best = min(pairs, key=self._ranks.__getitem__)
            joined: list[str] = []
            for symbol in symbols:
                if joined and (joined[-1], symbol) == best:
                    joined[-1] += symbol
                else:
                    joined.append(symbol)
            symbols = joined
        return [*(symbol + JOINER for symbol in symbols[:-1]), symbols[-1].removesuffix(WORD_END)]
