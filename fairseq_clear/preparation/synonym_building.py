"""Builds synonym tables for ``--augment subs`` from a JSON file or WordNet, for the vocabulary of a data folder."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fairseq_clear import patches
from fairseq_clear.augmentations.synonym_table import SynonymTable
from fairseq_clear.errors import UserError, one_line
from fairseq_clear.files import check_is_text, hash_file
from fairseq_clear.text.synonym_files import UNKNOWN, find_word_starts
from fairseq_clear.text.tokenizers import Tokenizer

Word = tuple[int, ...]
WORDNET = "wordnet"


class SynonymSource(NamedTuple):
    """A list of synonyms: its name, the SHA-256 of its content, and the alternatives of each word, best first."""

    name: str
    content_hash: str
    synonyms: Mapping[str, list[str]]


def read_source(source: str) -> SynonymSource:
    """Read ``--source``: ``wordnet``, or a JSON file such as the neighbours of Jia et al. 2019 that CLEAR uses."""
    return read_wordnet() if source == WORDNET else read_json(Path(source))


def read_json(path: Path) -> SynonymSource:
    """Read ``{word: [alternative, ...]}``; a word may have no alternatives.

    Raises:
        UserError: the file is missing or has another content.
    """
    wanted = 'a JSON object of word -> list of words, such as {"film": ["movie"]}'
    try:
        content = path.read_bytes()
        check_is_text(path, content)
        synonyms = json.loads(content.decode("utf-8"))
    except UserError as error:
        raise UserError(f"--source {error}; give {wanted}") from None
    except OSError as error:
        hint = f"; give {wanted}, or `{WORDNET}`"
        raise UserError(f"--source {path}: cannot read it ({error.strerror}){hint}") from None
    except ValueError as error:
        raise UserError(f"--source {path}: not UTF-8 JSON ({error}); give {wanted}") from None
    if not isinstance(synonyms, dict):
        raise UserError(f"--source {path}: holds a {type(synonyms).__name__}; give {wanted}")
    for word, alternatives in synonyms.items():
        if not isinstance(alternatives, list) or not all(isinstance(alternative, str) for alternative in alternatives):
            raise UserError(f"--source {path}: {word!r} has {alternatives!r:.60}, not a list of words; give {wanted}")
    return SynonymSource(path.name, hash_file(path), synonyms)


def read_wordnet() -> SynonymSource:
    """Read WordNet through nltk: for each lemma of one word, the other lemmas of its synsets, most frequent senses first.

    Lemmas of several words, such as ``take place`` for ``happen``, are alternatives, but are not replaced themselves.

    Raises:
        UserError: nltk is not installed, or its WordNet folder is missing, incomplete or damaged.
    """
    try:
        from nltk.corpus import wordnet
    except ImportError:
        raise UserError(f"--source {WORDNET}: nltk is not installed; pip install nltk") from None
    try:
        version = wordnet.get_version()
        synonyms = {lemma: _wordnet_alternatives(wordnet, lemma) for lemma in sorted(set(wordnet.all_lemma_names()))}
    except LookupError:
        raise UserError(
            f"--source {WORDNET}: nltk has no WordNet data here; get it with `python -m nltk.downloader wordnet`"
        ) from None
    except Exception as error:  # nltk raises errors of any type for missing or damaged files
        raise UserError(
            f"--source {WORDNET}: the WordNet folder is incomplete or damaged ({one_line(error)}); delete the folder and get "
            "it again with `python -m nltk.downloader --force wordnet`"
        ) from None
    synonyms = {lemma: alternatives for lemma, alternatives in synonyms.items() if "_" not in lemma}
    content = json.dumps(synonyms, sort_keys=True).encode()
    return SynonymSource(f"{WORDNET} {version}", hashlib.sha256(content).hexdigest(), synonyms)


def _wordnet_alternatives(wordnet: Any, lemma: str) -> list[str]:
    alternatives: dict[str, None] = {}
    # synsets() also finds the base forms of words that look inflected, so check that the lemma is in the synset
    for synset in wordnet.synsets(lemma):
        names = synset.lemma_names()
        if lemma.lower() in (name.lower() for name in names):
            alternatives.update((name.replace("_", " "), None) for name in names if name.lower() != lemma.lower())
    return list(alternatives)


@dataclass
class BuildReport:
    """Counts of the words of a source. Each word counts once; ``rows`` counts its capitalised forms too."""

    words: int = 0
    without_alternatives: int = 0
    unknown_words: int = 0
    several_words: int = 0
    unknown_alternatives: int = 0
    rows: int = 0
    alternatives: int = 0


@dataclass(frozen=True)
class Coverage:
    """Number of words and tokens of a sample of text, and how many of them have an alternative."""

    words: int
    covered_words: int
    tokens: int
    covered_tokens: int


def build_table(
    synonyms: Mapping[str, list[str]], tokenizer: Tokenizer, symbols: list[str], max_alternatives: int | None = None
) -> tuple[SynonymTable, BuildReport]:
    """Build a table from ``{word: [alternative, ...]}`` over ``symbols`` (by id), and count its words.

    A lower-case word also gets rows for its Capitalised and UPPER-CASE forms, with alternatives in the same case. Words
    that the tokenizer splits into several words are left out, since only whole words are replaced; alternatives may be
    several words. Words and alternatives with an unknown symbol are left out and counted. The first
    ``max_alternatives`` known alternatives of each word are kept.
    """
    is_word_start = find_word_starts(symbols, tokenizer)
    index = {symbol: number for number, symbol in enumerate(symbols)}
    report = BuildReport()
    rows: dict[Word, list[Word]] = {}

    @cache  # most words are alternatives of several others
    def encode(text: str) -> Word | None:
        """The ids of a text; None if there are none, or the vocabulary lacks one."""
        ids = tuple(index.get(piece, UNKNOWN) for piece in tokenizer.encode(text))
        return ids if ids and min(ids) > UNKNOWN else None

    for word, alternatives in synonyms.items():
        report.words += 1
        others = [alternative for alternative in alternatives if alternative.strip() and alternative != word]
        if not word.strip() or not others:
            report.without_alternatives += 1
            continue
        ids = encode(word)
        if ids is None:
            report.unknown_words += 1
            continue
        if is_word_start[list(ids[1:])].any():
            report.several_words += 1
            continue
        report.unknown_alternatives += sum(encode(other) is None for other in others)
        # Byte-level tokenizers encode a word after a space and at the start of a text differently, so a word has two rows.
        for (form, form_others), space in product(_forms(word, others), ("", " ")):
            key = encode(space + form)
            if key is None or key in rows or is_word_start[list(key[1:])].any():
                continue
            known = dict.fromkeys(encode(space + other) for other in form_others)
            if kept := [pieces for pieces in known if pieces not in (None, key)]:
                rows[key] = kept[:max_alternatives]
    table = SynonymTable.build(rows, is_word_start)
    report.rows, report.alternatives = len(table), int(table.row_offsets[-1])
    return table, report


def measure_coverage(table: SynonymTable, texts: Iterable[npt.NDArray[np.int64]]) -> Coverage:
    """Measure the share of ``texts``, (n,) ids each, that the table covers; ``<s>``, ``<pad>`` and ``</s>`` are not counted."""
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
    """Yield lines of a binarized split in random order, up to about ``max_tokens`` tokens; none without such a split."""
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


def _forms(word: str, alternatives: list[str]) -> Iterator[tuple[str, list[str]]]:
    yield word, alternatives
    if word == word.lower():
        yield _capitalise(word), [_capitalise(alternative) for alternative in alternatives]
        yield word.upper(), [alternative.upper() for alternative in alternatives]


def _capitalise(text: str) -> str:
    return text[:1].upper() + text[1:]
