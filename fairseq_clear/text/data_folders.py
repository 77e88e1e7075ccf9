"""Data folders as users name them: one, several joined by ``:``, or one that holds shards."""

import os
from pathlib import Path

from fairseq_clear.errors import UserError
from fairseq_clear.text.tokenizers import CLEAR_JSON, read_clear_json

__all__ = ["DICTIONARY", "data_folders"]

DICTIONARY = "dict.txt"


def data_folders(data_bin: str | Path, *, flag: str = "--data-bin") -> list[Path]:
    """The folders with a ``dict.txt`` that ``data_bin`` names, in the order in which epochs read them.

    Args:
        data_bin: a folder, ``FOLDER1:FOLDER2`` as fairseq-train takes it, or what ``prepare --shards`` made.
        flag: named in the message.

    Raises:
        UserError: a folder that is missing or has no ``dict.txt``.
    """
    named = [Path(data_bin)] if Path(data_bin).is_dir() else [Path(part) for part in str(data_bin).split(os.pathsep)]
    folders = [shard for folder in named for shard in _shards(folder)]
    for folder in folders:
        if not (folder / DICTIONARY).is_file():
            what = f"{folder} has no {DICTIONARY}" if folder.is_dir() else f"there is no folder {folder}"
            raise UserError(f"{flag} {data_bin}: {what}; make a data folder with fairseq-clear prepare")
    return folders


def _shards(folder: Path) -> list[Path]:
    shards = read_clear_json(folder).get("shards") if (folder / CLEAR_JSON).is_file() else None
    return [folder / str(name) for name in shards] if shards else [folder]
