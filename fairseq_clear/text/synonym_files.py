"""Reads and writes synonym tables (``synonyms.npz``), and finds which symbols of a vocabulary begin a word.

The file lies next to ``dict.txt`` and stores that file's hash, so it cannot be used with another vocabulary.
"""

from pathlib import Path

import numpy as np

from fairseq_clear.augmentations.synonym_table import SynonymTable
from fairseq_clear.errors import UserError, one_line
from fairseq_clear.files import hash_file, write_errors, write_whole
from fairseq_clear.text.data_folders import FAIRSEQ_SPECIALS, load_tokenizer, read_dictionary
from fairseq_clear.text.tokenizers import Tokenizer, word_starts
from fairseq_clear.tokens import Bools

SYNONYMS_NPZ = "synonyms.npz"
SYNONYMS_FORMAT = 1
UNKNOWN = FAIRSEQ_SPECIALS.index("<unk>")
# Punctuation that ends the word before it; apostrophes and hyphens belong to words (don't, self-made).
CLOSING = frozenset('.,;:!?)]}\u2026\u201d\u00bb"')

_ROWS = ("word_pieces", "word_offsets", "row_offsets", "alternative_pieces", "alternative_offsets")


def save_synonyms(
    path: str | Path, table: SynonymTable, *, vocabulary_hash: str, source: str, source_hash: str
) -> None:
    """Write a table and its origin to a file, atomically; UserError if that fails."""
    arrays = {name: getattr(table, name).astype(np.int32) for name in _ROWS}
    described = {"vocabulary_hash": vocabulary_hash, "source": source, "source_hash": source_hash}
    with write_errors(path), write_whole(path) as file:
        np.savez_compressed(
            file,
            format=np.array(SYNONYMS_FORMAT),
            is_word_start=table.is_word_start,
            **arrays,
            **{name: np.array(text) for name, text in described.items()},  # type: ignore[arg-type]
        )


def load_synonyms(path: str | Path, dictionary: str | Path) -> SynonymTable:
    """Read the table at ``path`` for the vocabulary of the ``dict.txt`` at ``dictionary``.

    Raises:
        UserError: the file is missing, damaged, has another format or belongs to another vocabulary.
    """
    command = f"fairseq-clear synonyms --data-bin {Path(dictionary).parent} --source FILE.json --output {path}"
    if not Path(path).is_file():
        raise UserError(f"{path}: no synonym table here; make it with `{command}`")
    remedy = f"remake it with `{command} --overwrite`"
    try:
        with np.load(path, allow_pickle=False) as npz:  # loading a pickle can run code
            stored = {name: npz[name] for name in npz.files}
        found = int(stored["format"])
        if found != SYNONYMS_FORMAT:
            raise UserError(f"{path}: format {found}, but this version reads {SYNONYMS_FORMAT}; {remedy}")
        made_for, expected = str(stored["vocabulary_hash"]), hash_file(dictionary)
        if made_for != expected:
            hashes = f"({made_for[:12]}) than {dictionary} ({expected[:12]})"
            raise UserError(f"{path}: made for another vocabulary {hashes}; {remedy}")
        rows = {name: stored[name].astype(np.int64) for name in _ROWS}
        return SynonymTable(is_word_start=stored["is_word_start"].astype(np.bool_), **rows)
    except UserError:
        raise
    except Exception as error:  # of numpy, zipfile and zlib, for files that are cut off, altered, or of another format
        raise UserError(f"{path}: not a complete synonym table ({one_line(error)}); {remedy}") from None


def load_word_starts(folder: str | Path) -> SynonymTable:
    """Make a table without synonyms for a data folder; UserError if it has no tokenizer or no readable ``dict.txt``."""
    return SynonymTable.build({}, find_word_starts(read_dictionary(Path(folder) / "dict.txt"), load_tokenizer(folder)))


def find_word_starts(symbols: list[str], tokenizer: Tokenizer) -> Bools:
    """Determine for each symbol whether a word begins at it: (vocabulary,) bool.

    A word begins where the tokenizer says so, and at closing punctuation: in ``a film, and`` the word is ``film``, although no
    space follows it. ``<unk>`` belongs to the word around it, unless every symbol is a word.
    """
    own = symbols[len(FAIRSEQ_SPECIALS) :]
    starts = [
        is_start or _closes_word(symbol, tokenizer)
        for is_start, symbol in zip(word_starts(tokenizer, own), own, strict=True)
    ]
    specials = [True, True, True, all(starts)]
    return np.array(specials + starts, np.bool_)


def _closes_word(symbol: str, tokenizer: Tokenizer) -> bool:
    text = tokenizer.decode([symbol]).strip()
    return bool(text) and set(text) <= CLOSING
