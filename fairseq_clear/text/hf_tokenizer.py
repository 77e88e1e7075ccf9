"""Tokenizers of Hugging Face folders (WordPiece, byte-level BPE, unigram) behind the interface ``Tokenizer``."""

import json
from pathlib import Path
from typing import Any

from fairseq_clear.errors import UserError
from fairseq_clear.text.tokenizers import SILENT_SYMBOLS, VISIBLE_SYMBOLS, decode_runs

__all__ = ["HF_NAMES", "ROLES", "HfTokenizer", "read_special_tokens"]

HF_NAMES = ("tokenizer.json", "special_tokens_map.json")
# What Hugging Face calls them -> fairseq's symbols.
ROLES = {"cls_token": "<s>", "pad_token": "<pad>", "sep_token": "</s>", "unk_token": "<unk>", "mask_token": "<mask>"}
BYTE_LEVEL_SPACE, SENTENCEPIECE_SPACE = "\u0120", "\u2581"


class HfTokenizer:
    """A ``tokenizer.json`` as Hugging Face reads it; symbols are its tokens, special ones under the names that fairseq has.

    A text in which ``[CLS]``, ``[SEP]`` or ``[PAD]`` is written out gets ``<unk>`` there, as with every other tokenizer.

    Args:
        tokenizer_json: of the ``tokenizers`` library.
        special_tokens: files that may name the tokens of ROLES; the first that names them all counts.

    Raises:
        UserError: a file is missing or not what it should be, or ``tokenizers`` is not installed.
    """

    def __init__(self, tokenizer_json: str | Path, *special_tokens: str | Path) -> None:
        self.path = str(tokenizer_json)
        self._load(_read_text(Path(tokenizer_json)), read_special_tokens([Path(path) for path in special_tokens]))

    @classmethod
    def from_folder(cls, folder: Path) -> "HfTokenizer":
        """The tokenizer of a Hugging Face folder."""
        return cls(folder / HF_NAMES[0], folder / HF_NAMES[1], folder / "tokenizer_config.json")

    def _load(self, content: str, special: dict[str, str]) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise UserError("tokenizers is not installed; pip install 'fairseq_clear[hf]' or tokenizers") from None
        self.content, self.special = content, special
        try:
            self._tokenizer: Any = Tokenizer.from_str(content)
        except Exception as error:  # tokenizers raises bare Exception
            raise UserError(f"{self.path}: not a tokenizer.json ({error})") from None
        # Folders of sentence-transformers hold one that cuts every text at 128 tokens and pads it to as many.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._ids: dict[str, int] = dict(self._tokenizer.get_vocab(with_added_tokens=True))
        self._roles = {token: ROLES[role] for role, token in special.items()}
        absent = [token for token in self._roles if token not in self._ids]
        if absent:
            raise UserError(
                f"{self.path}: has no token {absent[0]!r}, which is said to be its {_role(special, absent[0])}"
            )
        self._by_id = {index: self._roles.get(token, token) for token, index in self._ids.items()}
        self._word_mark, self._marks_start = _word_mark(json.loads(content))

    def __getstate__(self) -> tuple[str, str, dict[str, str]]:
        return self.path, self.content, self.special

    def __setstate__(self, state: tuple[str, str, dict[str, str]]) -> None:
        self.path, content, special = state
        self._load(content, special)

    def symbols(self) -> list[str]:
        """Return the tokens in the order of their ids, without the special ones of ROLES."""
        return [token for token in sorted(self._ids, key=self._ids.__getitem__) if token not in self._roles]

    def ids(self) -> dict[str, int]:
        """Return symbol -> Hugging Face's id, special ones under fairseq's names."""
        return {symbol: index for index, symbol in self._by_id.items()}

    def encode(self, text: str) -> list[str]:
        """Return the symbols of ``text``, without ``<s>`` and ``</s>``."""
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        symbols = [self._by_id[index] for index in ids]
        return ["<unk>" if symbol in SILENT_SYMBOLS else symbol for symbol in symbols]

    def decode(self, symbols: list[str]) -> str:
        """Return the text of symbols, as the tokenizer's own decoder writes it (WordPiece: lower-cased if it is)."""
        return decode_runs(symbols, self._decode_run)

    def _decode_run(self, run: list[str]) -> str:
        if any(symbol not in self._ids for symbol in run):
            return " ".join(run)
        return str(self._tokenizer.decode([self._ids[symbol] for symbol in run], skip_special_tokens=False))

    def is_word_start(self, symbol: str) -> bool:
        """Whether a word begins here: no ``##`` in WordPiece, a leading space mark elsewhere; special symbols do count."""
        if symbol in SILENT_SYMBOLS or symbol in VISIBLE_SYMBOLS:
            return True
        return symbol.startswith(self._word_mark) == self._marks_start


def read_special_tokens(candidates: list[Path]) -> dict[str, str]:
    """The tokens of ROLES that the first file which names them all has.

    Raises:
        UserError: none of the files does.
    """
    missing = set(ROLES)
    for path in candidates:
        if not path.is_file():
            continue
        try:
            content = json.loads(_read_text(path))
            found = {role: _token(content[role]) for role in ROLES if content.get(role)}
        except (ValueError, TypeError, AttributeError, KeyError):
            raise UserError(f"{path}: not a special_tokens_map.json or tokenizer_config.json") from None
        if len(found) == len(ROLES):
            return found
        missing = set(ROLES) - set(found)
    names = " or ".join(str(path) for path in candidates)
    raise UserError(f"{names}: missing, or without {', '.join(sorted(missing))}, which fairseq's vocabulary needs")


def _token(value: Any) -> str:
    return str(value["content"] if isinstance(value, dict) else value)


def _role(special: dict[str, str], token: str) -> str:
    return next(role for role, name in special.items() if name == token)


def _word_mark(description: dict[str, Any]) -> tuple[str, bool]:
    """What tells words apart, and whether it marks their first piece (else all others)."""
    model = description.get("model") or {}
    if model.get("type") == "WordPiece":
        return str(model.get("continuing_subword_prefix", "##")), False
    if '"ByteLevel"' in json.dumps([description.get("pre_tokenizer"), description.get("decoder")]):
        return BYTE_LEVEL_SPACE, True
    return SENTENCEPIECE_SPACE, True


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise UserError(f"{path}: cannot read this part of a Hugging Face tokenizer ({reason})") from None
