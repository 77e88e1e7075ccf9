"""Reads the tokenizer files of a CTranslate2 folder: sentencepiece models, or a ``tokenizer.json`` of Hugging Face."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from sentencepiece import SentencePieceProcessor

from fairseq_clear.errors import UserError, one_line
from fairseq_clear.libraries import import_library

PAIR = ("source.spm", "target.spm")
SINGLE = ("sentencepiece.bpe.model", "sentencepiece.model", "spm.model", "spm128.model", "tokenizer.model")
TOKENIZER_JSON = "tokenizer.json"


class Subwords(Protocol):
    """Converts text to subwords and back; none of them is a special token."""

    def encode(self, text: str) -> list[str]:
        """Split text into subwords."""

    def decode(self, pieces: Sequence[str]) -> str:
        """Join subwords to text."""


class SentencePieces:
    """Subwords of sentencepiece.

    Args:
        source: model that splits text.
        target: model that joins translations.

    Raises:
        UserError: a file is not a sentencepiece model.
    """

    def __init__(self, source: Path, target: Path) -> None:
        self._source, self._target = _sentencepiece(source), _sentencepiece(target)

    def encode(self, text: str) -> list[str]:
        """Split text into subwords."""
        pieces: list[str] = self._source.encode(text, out_type=str)
        return pieces

    def decode(self, pieces: Sequence[str]) -> str:
        """Join subwords to text."""
        return str(self._target.decode(list(pieces)))


class JsonSubwords:
    """Subwords of a ``tokenizer.json``.

    Args:
        path: the file.

    Raises:
        UserError: the library tokenizers is missing, or cannot read the file.
    """

    def __init__(self, path: Path) -> None:
        library = import_library("tokenizers")
        try:
            self._tokenizer = library.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain Exception
            raise UserError(f"{path}: not a tokenizer ({one_line(error)})") from None
        self._tokenizer.encode_special_tokens = True  # a special token that occurs in the text is split
        self._tokenizer.no_truncation()

    def encode(self, text: str) -> list[str]:
        """Split text into subwords."""
        pieces: list[str] = self._tokenizer.encode(text, add_special_tokens=False).tokens
        return pieces

    def decode(self, pieces: Sequence[str]) -> str:
        """Join subwords to text."""
        ids = [self._tokenizer.token_to_id(piece) for piece in pieces]
        return str(self._tokenizer.decode([index for index in ids if index is not None]))


def read_subwords(folder: Path, which: str) -> Subwords:
    """Read the tokenizer of a CTranslate2 folder.

    Raises:
        UserError: the folder has no tokenizer, or the tokenizer cannot be read.
    """
    if all((folder / name).is_file() for name in PAIR):
        return SentencePieces(folder / PAIR[0], folder / PAIR[1])
    for name in SINGLE:
        if (folder / name).is_file():
            return SentencePieces(folder / name, folder / name)
    if (folder / TOKENIZER_JSON).is_file():
        return JsonSubwords(folder / TOKENIZER_JSON)
    raise UserError(
        f"--{which} {folder}: no tokenizer; copy {' and '.join(PAIR)}, {SINGLE[0]} or {TOKENIZER_JSON} from the model that "
        "was converted"
    )


def _sentencepiece(path: Path) -> SentencePieceProcessor:
    try:
        return SentencePieceProcessor(model_file=str(path))
    except (OSError, RuntimeError) as error:
        raise UserError(f"{path}: not a sentencepiece model ({one_line(error)})") from None
