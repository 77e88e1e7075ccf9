"""The vocabulary of a Hugging Face folder as fairseq's: its tokenizer, its dict.txt, and which row is which."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fairseq_clear.errors import UserError
from fairseq_clear.interop.reading import quiet_transformers
from fairseq_clear.text.data_folders import DICTIONARY
from fairseq_clear.text.hf_tokenizer import HF_NAMES, ROLES, HfTokenizer
from fairseq_clear.text.vocabulary import build_dictionary, install_hf_tokenizer, load_dictionary

if TYPE_CHECKING:
    from fairseq.data import Dictionary

__all__ = ["vocabulary_rows", "write_vocabulary"]


def write_vocabulary(source: Path, folder: Path) -> tuple[HfTokenizer, "Dictionary"]:
    """Put the tokenizer's files and ``dict.txt`` into ``folder``.

    Returns:
        The tokenizer, and the dictionary with ``<mask>``, which fairseq's tasks add to what the file holds.

    Raises:
        UserError: no tokenizer, or one with tokens that a dict.txt cannot hold.
    """
    with _complete(source) as complete:
        install_hf_tokenizer(complete, folder)
    tokenizer = HfTokenizer.from_folder(folder)
    dictionary = build_dictionary(tokenizer)
    dictionary.save(str(folder / DICTIONARY))
    if load_dictionary(folder / DICTIONARY).symbols != dictionary.symbols:
        raise UserError(f"{source}: its vocabulary has tokens that a dict.txt cannot hold")
    dictionary.add_symbol("<mask>")
    return tokenizer, dictionary


def vocabulary_rows(dictionary: "Dictionary", tokenizer: HfTokenizer, embedding: Tensor, source: Path) -> Tensor:
    """(V,) int64: for each of fairseq's ids the row of Hugging Face's embedding.

    Raises:
        UserError: the tokenizer has tokens for which there is no row.
    """
    ids = tokenizer.ids()
    rows = torch.tensor([ids[symbol] for symbol in dictionary.symbols], dtype=torch.int64)
    if int(rows.max()) >= len(embedding):
        token = dictionary.symbols[int(rows.argmax())]
        raise UserError(
            f"{source}: its tokenizer numbers {token!r} {int(rows.max())}, but its embedding has {len(embedding)} rows; "
            "tokenizer and weights are not of the same model"
        )
    return rows


@contextmanager
def _complete(source: Path) -> Iterator[Path]:
    """A folder with tokenizer.json and the names of the special tokens: ``source``, or transformers' translation of the
    files that older folders have.
    """
    if (source / HF_NAMES[0]).is_file():
        yield source
        return
    with quiet_transformers() as transformers, tempfile.TemporaryDirectory(prefix="fairseq-clear-") as made:
        try:
            # told no, it does not ask on the terminal whether to run a folder's own code
            options = {"local_files_only": True, "use_fast": True, "trust_remote_code": False}
            tokenizer = transformers.AutoTokenizer.from_pretrained(str(source), **options)
            content = tokenizer.backend_tokenizer.to_str()
        except Exception as error:  # of several libraries
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise UserError(f"{source}: transformers cannot load a tokenizer from it ({reason})") from None
        (Path(made) / HF_NAMES[0]).write_text(content, encoding="utf-8")
        roles = {role: str(getattr(tokenizer, role)) for role in ROLES}
        (Path(made) / HF_NAMES[1]).write_text(json.dumps(roles), encoding="utf-8")
        yield Path(made)
