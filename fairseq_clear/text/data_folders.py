"""Data folders: finding the folders that a path names, and reading their ``clear.json``, dictionary and tokenizer."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fairseq_clear.errors import UserError
from fairseq_clear.files import DATA_FOLDER_FILE, hash_file, read_json, read_text_lines
from fairseq_clear.text.tokenizers import (
    Gpt2Tokenizer,
    HfTokenizer,
    SentencePieceTokenizer,
    Tokenizer,
    WhitespaceTokenizer,
)

CLEAR_JSON = DATA_FOLDER_FILE
CLEAR_FORMAT = 1
RECORD = '{"format": 1, "tokenizer": {"kind": "sentencepiece", "files": ["FILE.model"]}}'  # the minimal content
DICTIONARY = "dict.txt"
# fairseq's Dictionary puts these before the lines of dict.txt
FAIRSEQ_SPECIALS = ("<s>", "<pad>", "</s>", "<unk>")
# Tokenizer kind in clear.json -> makes the tokenizer of its files.
TOKENIZERS: dict[str, Callable[..., Tokenizer]] = {
    "sentencepiece": SentencePieceTokenizer,
    "gpt2": Gpt2Tokenizer,
    "hf": HfTokenizer,
    "none": WhitespaceTokenizer,
}


def data_folders(data_bin: str | Path, *, flag: str = "--data-bin") -> list[Path]:
    """Return the folders of ``epoch_folders``, each with a ``dict.txt``.

    Raises:
        UserError: a folder is missing or has no ``dict.txt``.
    """
    folders = epoch_folders(data_bin)
    for folder in folders:
        if not (folder / DICTIONARY).is_file():
            what = f"{folder} has no {DICTIONARY}" if folder.is_dir() else f"there is no folder {folder}"
            raise UserError(f"{flag} {data_bin}: {what}; make a data folder with fairseq-clear prepare")
    return folders


def epoch_folders(data_bin: str | Path) -> list[Path]:
    """Return the data folders that ``data_bin`` names, in the order in which epochs read them.

    It is a folder, ``FOLDER1:FOLDER2`` as fairseq-train takes it, or the output folder of ``prepare --shards``.
    """
    named = [Path(data_bin)] if Path(data_bin).is_dir() else [Path(part) for part in str(data_bin).split(os.pathsep)]
    return [shard for folder in named for shard in _shards(folder)]


def _shards(folder: Path) -> list[Path]:
    shards = read_clear_json(folder).get("shards") if (folder / CLEAR_JSON).is_file() else None
    return [folder / str(name) for name in shards] if isinstance(shards, list) and shards else [folder]


def load_tokenizer(data_bin: str | Path) -> Tokenizer:
    """Load the tokenizer that ``fairseq-clear prepare`` stored in a data folder; in the first one of ``FOLDER1:FOLDER2``.

    Raises:
        UserError: the folder is missing, or its ``clear.json`` is missing or broken (fairseq-preprocess writes none).
    """
    folder = epoch_folders(data_bin)[0]
    kind, files = recorded_tokenizer(folder)
    if not isinstance(kind, str) or kind not in TOKENIZERS:
        known = ", ".join(TOKENIZERS)
        raise UserError(f"{folder / CLEAR_JSON}: tokenizer kind {kind!r} is unknown to this version; known: {known}")
    try:
        return TOKENIZERS[kind](*(folder / name for name in files))
    except TypeError:
        raise UserError(
            f"{folder / CLEAR_JSON}: {files} are not the files of a tokenizer {kind}; write {RECORD}"
        ) from None


def recorded_tokenizer(folder: Path) -> tuple[Any, list[str]]:
    """Return kind and files of the tokenizer that ``clear.json`` records; (None, []) if it records none."""
    described: Any = read_clear_json(folder).get("tokenizer")
    described = described if isinstance(described, dict) else {}
    files = described.get("files")
    return described.get("kind"), list(map(str, files)) if isinstance(files, list) else []


def has_tokenizer(folder: Path) -> bool:
    """Whether ``prepare --tokenizer-dir`` can use the tokenizer that a data folder records."""
    return (folder / CLEAR_JSON).is_file() and recorded_tokenizer(folder)[0] not in (None, "none")


def read_clear_json(folder: Path) -> dict[str, Any]:
    """Return a data folder's ``clear.json``.

    Raises:
        UserError: the folder or the file is missing, is not a JSON object, or has another format number.
    """
    path = folder / CLEAR_JSON
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; make one with `fairseq-clear prepare`")
    if not path.is_file():
        raise UserError(
            f"{path} is missing: fairseq-preprocess does not record the tokenizer; write {RECORD} there, with the files "
            "next to it (kinds: sentencepiece, gpt2, none), or in Python pass a tokenizer, as SentencePieceTokenizer(model)"
        )
    clear: dict[str, Any] = read_json(path, "prepare the folder again", dict)
    if (found := clear.get("format")) != CLEAR_FORMAT:
        raise UserError(f"{path}: format {found!r}, but this version reads {CLEAR_FORMAT}; prepare the folder again")
    return clear


def read_dictionary(path: Path) -> list[str]:
    """Read the symbols of a ``dict.txt`` by id, starting with fairseq's four special symbols.

    Raises:
        UserError: the file is unreadable, or a line is not ``symbol count``.
    """
    symbols = list(FAIRSEQ_SPECIALS)
    for number, line in enumerate(read_text_lines(path), 1):
        symbol, _, count = line.rstrip().removesuffix(" #fairseq:overwrite").rpartition(" ")
        if not symbol or not count.isdecimal():
            raise UserError(f"{path}, line {number}: not 'symbol count'; prepare the folder again")
        symbols.append(symbol)
    return symbols


def check_vocabulary(folder: Path) -> None:
    """Check the hash of ``dict.txt`` against ``clear.json``, if there is one.

    Raises:
        UserError: the hashes differ.
    """
    if not all((folder / name).is_file() for name in (CLEAR_JSON, DICTIONARY)):
        return
    stated, found = read_clear_json(folder).get("vocabulary_hash"), hash_file(folder / DICTIONARY)
    if stated not in (None, found):
        raise UserError(
            f"{folder / DICTIONARY}: differs from the file that {CLEAR_JSON} describes (hash {found[:12]}, not "
            f"{str(stated)[:12]}): cut off or changed; make the data folder again"
        )
