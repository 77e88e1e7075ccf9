"""Builds synonym tables for ``--augment subs`` from a JSON file or WordNet, for the vocabulary of a data folder."""

import hashlib
import json
from collections.abc import Callable, Mapping
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_clear.augmentations.synonym_table import SynonymTable
from fairseq_clear.errors import UserError
from fairseq_clear.files import hash_file, read_json
from fairseq_clear.text.synonym_files import UNKNOWN, find_word_starts
from fairseq_clear.text.tokenizers import Tokenizer

Word = tuple[int, ...]
WORDNET = "wordnet"


class SynonymSource(NamedTuple):
    """A list of synonyms: its name, the SHA-256 of its content, and the alternatives of each word, best first."""

    name: str
    content_hash: str
    synonyms: Mapping[str, list[str]]


def read_synonyms(path: Path) -> SynonymSource:
    """Read ``{word: [alternative, ...]}``, such as the neighbours of Jia et al. 2019 that CLEAR uses.

    Raises:
        UserError: the file is missing or has another content.
    """
    wanted = 'a JSON object of word -> list of words, such as {"film": ["movie"]}'
    synonyms = read_json(path, f"give --source {wanted}")
    if not isinstance(synonyms, dict):
        raise UserError(f"--source {path}: holds a {type(synonyms).__name__}; give {wanted}")
    for word, others in synonyms.items():
        if not isinstance(others, list) or not all(isinstance(other, str) for other in others):
            raise UserError(f"--source {path}: {word!r} has {others!r:.60}, not a list of words; give {wanted}")
    return SynonymSource(path.name, hash_file(path), synonyms)


def read_wordnet() -> SynonymSource:
    """Read WordNet through nltk: for each lemma of one word, the other lemmas of its synsets, most frequent senses first.

    Lemmas of several words, such as ``take place`` for ``happen``, are alternatives, but are not replaced themselves.

    Raises:
        UserError: the WordNet folder is missing, incomplete or damaged.
    """
    from nltk.corpus import wordnet

    try:
        version = wordnet.get_version()
        synonyms = {lemma: _wordnet_alternatives(wordnet, lemma) for lemma in sorted(set(wordnet.all_lemma_names()))}
    except Exception as error:  # nltk raises errors of any type for missing or damaged files
        raise UserError(
            f"--source {WORDNET}: nltk cannot read WordNet ({type(error).__name__}); delete its folder if there is one, and "
            "get it with `python -m nltk.downloader --force wordnet`"
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


def build_table(synonyms: Mapping[str, list[str]], tokenizer: Tokenizer, symbols: list[str]) -> SynonymTable:
    """Build a table from ``{word: [alternative, ...]}`` over ``symbols`` (by id).

    A lower-case word also gets rows for its Capitalised and UPPER-CASE forms, with alternatives in the same case. Words
    that the tokenizer splits into several words are left out, since only whole words are replaced; alternatives may be
    several words. Words and alternatives with an unknown symbol are left out.
    """
    is_word_start = find_word_starts(symbols, tokenizer)
    index = {symbol: number for number, symbol in enumerate(symbols)}
    rows: dict[Word, list[Word]] = {}

    @cache  # most words are alternatives of several others
    def encode(text: str) -> Word | None:
        """The ids of a text; None if there are none, or the vocabulary lacks one."""
        ids = tuple(index.get(piece, UNKNOWN) for piece in tokenizer.encode(text))
        return ids if ids and min(ids) > UNKNOWN else None

    def is_one_word(ids: Word | None) -> bool:
        return ids is not None and not is_word_start[list(ids[1:])].any()

    words = {word: others for word, others in synonyms.items() if is_one_word(encode(word))}
    # The listed words come before the other forms, whose rows they may be. Byte-level tokenizers encode a word after a space
    # and at the start of a text differently, so a word has two rows.
    forms: tuple[Callable[[str], str], ...] = (str, _capitalised, str.upper)
    for change, (word, alternatives), space in product(forms, words.items(), ("", " ")):
        key = encode(space + change(word))
        if key is None or key in rows or not is_one_word(key) or (change is not str and word != word.lower()):
            continue
        others = (change(other) for other in alternatives if other.strip() and other != word)
        known = dict.fromkeys(encode(space + other) for other in others)
        if kept := [pieces for pieces in known if pieces not in (None, key)]:
            rows[key] = kept
    return SynonymTable.build(rows, is_word_start)


def _capitalised(word: str) -> str:
    return word[:1].upper() + word[1:]
