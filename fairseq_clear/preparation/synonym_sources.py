"""Lists of synonyms: a JSON file of neighbours (Jia et al. 2019, which CLEAR takes), or WordNet."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_clear.errors import UserError, one_line
from fairseq_clear.files import check_is_text, hash_file

WORDNET = "wordnet"


class SynonymSource(NamedTuple):
    """A list of synonyms: its name, the sha256 of its content, and for each word its alternatives, the best first."""

    name: str
    content_hash: str
    synonyms: Mapping[str, list[str]]


def read_source(source: str) -> SynonymSource:
    """The source that ``--source`` names: ``wordnet``, or the path of a JSON file. UserErrors as the two readers."""
    return read_wordnet() if source == WORDNET else read_json(Path(source))


def read_json(path: Path) -> SynonymSource:
    """Read ``{word: [alternative, ...]}``; words may have none.

    UserError naming the file, and where in it, unless it is such a file.
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
    """WordNet through nltk: for each one-word lemma the other lemmas of its synsets, those of frequent senses first.

    Lemmas of several words become alternatives with spaces, as ``take place`` for ``happen``; they are no words to
    replace themselves. UserError where nltk or its WordNet data is missing, saying how to get it.
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
    except Exception as error:  # nltk raises whatever a missing or damaged file leads to
        raise UserError(
            f"--source {WORDNET}: the WordNet folder is incomplete or damaged ({one_line(error)}); delete the folder and get "
            "it again with `python -m nltk.downloader --force wordnet`"
        ) from None
    synonyms = {lemma: alternatives for lemma, alternatives in synonyms.items() if "_" not in lemma}
    content = json.dumps(synonyms, sort_keys=True).encode()
    return SynonymSource(f"{WORDNET} {version}", hashlib.sha256(content).hexdigest(), synonyms)


def _wordnet_alternatives(wordnet: Any, lemma: str) -> list[str]:
    alternatives: dict[str, None] = {}
    # synsets() also answers for the base form of what looks inflected, hence the test that the lemma is in the synset
    for synset in wordnet.synsets(lemma):
        names = synset.lemma_names()
        if lemma.lower() in (name.lower() for name in names):
            alternatives.update((name.replace("_", " "), None) for name in names if name.lower() != lemma.lower())
    return list(alternatives)
