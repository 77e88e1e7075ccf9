"""A list of synonyms, turned into a table over the pieces of a data folder's vocabulary."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fairseq_clear import patches
from fairseq_clear.augmentations.synonym_table import SynonymTable
from fairseq_clear.text.synonym_files import UNKNOWN, find_word_starts
from fairseq_clear.text.tokenizers import Tokenizer

Word = tuple[int, ...]


@dataclass
class BuildReport:
    """What became of a source's words. A word counts once, whatever its forms; ``rows`` counts forms."""

    words: int = 0
    without_alternatives: int = 0
    unknown_words: int = 0
    several_words: int = 0
    unknown_alternatives: int = 0
    rows: int = 0
    alternatives: int = 0


@dataclass(frozen=True)
class Coverage:
    """Words and tokens of a sample of text, and how many of them are in words that have an alternative."""

    words: int
    covered_words: int
    tokens: int
    covered_tokens: int


def build_table(
    synonyms: Mapping[str, list[str]], tokenizer: Tokenizer, symbols: list[str], max_alternatives: int | None = None
) -> tuple[SynonymTable, BuildReport]:
    """The table of ``{word: [alternative, ...]}`` over ``symbols`` (by id), and what became of its words.

    A lower-case word also has a row Capitalised and one in UPPER CASE, whose alternatives are in that case too. Words
    that the tokenizer cuts into several are left out, since only whole words are replaced; alternatives may be
    several words. Words and alternatives with an unknown symbol are left out and counted. The first
    ``max_alternatives`` known ones of each word are kept.
    """
    is_word_start = find_word_starts(symbols, tokenizer)
    encoder = _Encoder(tokenizer, symbols, is_word_start)
    report = BuildReport()
    rows: dict[Word, list[Word]] = {}
    for word, alternatives in synonyms.items():
        report.words += 1
        others = [alternative for alternative in alternatives if alternative.strip() and alternative != word]
        if not word.strip() or not others:
            report.without_alternatives += 1
            continue
        pieces = encoder.encode(word)
        if not encoder.is_known(pieces):
            report.unknown_words += 1
            continue
        if not encoder.is_one_word(pieces):
            report.several_words += 1
            continue
        report.unknown_alternatives += sum(not encoder.is_known(encoder.encode(other)) for other in others)
        for form, form_others in _forms(word, others):
            for spaced in (False, True):
                _add_row(rows, encoder, form, form_others, spaced, max_alternatives)
    table = SynonymTable.build(rows, is_word_start)
    report.rows, report.alternatives = len(table), int(table.row_offsets[-1])
    return table, report


def measure_coverage(table: SynonymTable, texts: Iterable[npt.NDArray[np.int64]]) -> Coverage:
    """The share of ``texts`` ((n,) ids each) that the table covers; ``<s>``, ``<pad>`` and ``</s>`` are not counted."""
    words = covered_words = tokens = covered_tokens = 0
    for text in texts:
        is_special = (text < UNKNOWN) | (text >= len(table.is_word_start))
        starts = table.word_starts(text, is_special)
        lengths = np.diff(starts, append=len(text))
        is_covered = table.find(text, starts) >= 0
        words += int((~is_special[starts]).sum())
        tokens += int((~is_special).sum())
        covered_words += int(is_covered.sum())
        covered_tokens += int(lengths[is_covered].sum())
    return Coverage(words, covered_words, tokens, covered_tokens)


def sample_texts(folder: Path, split: str, max_tokens: int, seed: int) -> Iterator[npt.NDArray[np.int64]]:
    """Lines of a binarized split in random order until ``max_tokens`` tokens are out; nothing where there is no such
    split.
    """
    from fairseq.data.data_utils import load_indexed_dataset

    patches.apply()
    dataset = load_indexed_dataset(str(folder / split))
    if dataset is None:
        return
    for index in np.random.default_rng(seed).permutation(len(dataset)):
        if max_tokens <= 0:
            return
        text = dataset[int(index)].numpy().astype(np.int64)
        max_tokens -= len(text)
        yield text


class _Encoder:
    """Texts to ids, remembered, as most words are alternatives of several others."""

    def __init__(self, tokenizer: Tokenizer, symbols: list[str], is_word_start: npt.NDArray[np.bool_]) -> None:
        self._tokenizer = tokenizer
        self._index = {symbol: index for index, symbol in enumerate(symbols)}
        self._is_word_start = is_word_start
        self._known: dict[str, Word] = {}

    def encode(self, text: str) -> Word:
        """The ids of ``text``."""
        if text not in self._known:
            self._known[text] = tuple(self._index.get(piece, UNKNOWN) for piece in self._tokenizer.encode(text))
        return self._known[text]

    def is_known(self, pieces: Word) -> bool:
        """Whether there are pieces, all of the vocabulary."""
        return bool(pieces) and min(pieces) > UNKNOWN

    def is_one_word(self, pieces: Word) -> bool:
        """Whether no word begins after the first piece."""
        return not self._is_word_start[list(pieces[1:])].any()


def _forms(word: str, alternatives: list[str]) -> Iterator[tuple[str, list[str]]]:
    yield word, alternatives
    if word == word.lower():
        yield _capitalise(word), [_capitalise(alternative) for alternative in alternatives]
        yield word.upper(), [alternative.upper() for alternative in alternatives]


def _capitalise(text: str) -> str:
    return text[:1].upper() + text[1:]


def _add_row(
    rows: dict[Word, list[Word]],
    encoder: _Encoder,
    word: str,
    alternatives: list[str],
    is_spaced: bool,
    max_alternatives: int | None,
) -> None:
    """Add a row unless there is one. Byte-level tokenizers write a word after a space otherwise than at a text's
    start: two rows.
    """
    space = " " if is_spaced else ""
    key = encoder.encode(space + word)
    if key in rows or not (encoder.is_known(key) and encoder.is_one_word(key)):
        return
    encoded = dict.fromkeys(encoder.encode(space + alternative) for alternative in alternatives)
    kept = [pieces for pieces in encoded if encoder.is_known(pieces) and pieces != key]
    if kept:
        rows[key] = kept[:max_alternatives]
