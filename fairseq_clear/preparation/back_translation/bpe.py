"""Byte pair encoding of words by codes of fastBPE or subword-nmt (Sennrich et al. 2016, arXiv:1508.07909, algorithm 1).

fastBPE's own package needs a compiler; applying codes is a few lines, and both tools do the same with them.
"""

from pathlib import Path

from fairseq_clear.errors import UserError
from fairseq_clear.files import read_text_lines

__all__ = ["BytePairs", "read_codes"]

END = "</w>"
JOINER = "@@"
CACHE_WORDS = 200_000

Merges = dict[tuple[str, str], int]


def read_codes(path: Path) -> tuple[Merges, bool]:
    """Merges with their rank, and whether the end of a word is part of its last character (else a symbol of its own).

    fastBPE writes ``left right count`` a line, subword-nmt ``#version: 0.2`` and ``left right``; in its version 0.1,
    which has no such line, ``</w>`` is a symbol of its own.

    Raises:
        UserError: a line that is no merge, naming it.
    """
    lines = read_text_lines(path)
    number_from = 1
    joined = True
    if lines and lines[0].startswith("#version:"):
        joined = lines[0].split(":", 1)[1].strip() != "0.1"
        lines, number_from = lines[1:], 2
    elif lines and len(lines[0].split(" ")) == 2:
        joined = False
    merges: Merges = {}
    for number, line in enumerate(lines, number_from):
        parts = line.split(" ")
        if len(parts) not in (2, 3) or not all(parts) or (len(parts) == 3 and not parts[2].isdecimal()):
            raise UserError(
                f"{path}:{number}: {line[:60]!r} is no merge; BPE codes hold 'left right' or 'left right count' a line"
            )
        merges.setdefault((parts[0], parts[1]), len(merges))  # of equal merges the first counts
    if not merges:
        raise UserError(f"{path}: holds no merge; give the codes that the model was trained with")
    return merges, joined


class BytePairs:
    """Text of words to text of pieces and back; a piece that goes on ends in ``@@``.

    Args:
        path: the codes.
    """

    def __init__(self, path: Path) -> None:
        self._merges, self._joined = read_codes(path)
        self._known: dict[str, str] = {}

    def encode(self, text: str) -> str:
        """The words, separated by spaces, as pieces separated by spaces."""
        return " ".join(self._pieces(word) for word in text.split(" ") if word)

    def decode(self, text: str) -> str:
        """The words of pieces."""
        return (text + " ").replace(JOINER + " ", "").rstrip()

    def _pieces(self, word: str) -> str:
        if word not in self._known:
            if len(self._known) >= CACHE_WORDS:
                self._known.clear()
            self._known[word] = f"{JOINER} ".join(self._merge(word))
        return self._known[word]

    def _merge(self, word: str) -> list[str]:
        """Join the earliest learned pair, wherever it is, until none is left."""
        symbols = [*word[:-1], word[-1] + END] if self._joined else [*word, END]
        while len(symbols) > 1:
            pairs = zip(symbols, symbols[1:], strict=False)
            best = min((pair for pair in pairs if pair in self._merges), key=self._merges.__getitem__, default=None)
            if best is None:
                break
            symbols = _join(symbols, best)
        if symbols[-1] == END:
            symbols.pop()
        else:
            symbols[-1] = symbols[-1].removesuffix(END)
        return symbols


def _join(symbols: list[str], pair: tuple[str, str]) -> list[str]:
    joined: list[str] = []
    index = 0
    while index < len(symbols):
        if tuple(symbols[index : index + 2]) == pair:
            joined.append(pair[0] + pair[1])
            index += 2
        else:
            joined.append(symbols[index])
            index += 1
    return joined
