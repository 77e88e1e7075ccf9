"""Tokenizers of a data folder: text to the symbols of its ``dict.txt`` and back, without importing fairseq.

Symbols, not ids, cross this border: fairseq's ``Dictionary`` turns a symbol into its id, so one interface serves all.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from fairseq_clear import patches
from fairseq_clear.errors import UserError

__all__ = [
    "SILENT_SYMBOLS",
    "VISIBLE_SYMBOLS",
    "Gpt2Tokenizer",
    "SentencePieceTokenizer",
    "Tokenizer",
    "WhitespaceTokenizer",
    "decode_runs",
]

SILENT_SYMBOLS = frozenset({"<s>", "</s>", "<pad>"})
VISIBLE_SYMBOLS = frozenset({"<unk>", "<mask>", "<del>"})
GPT2_CACHE_WORDS = 500_000


class Tokenizer(Protocol):
    """What the task, ``views`` and the sentence encoder need of a tokenizer; picklable, for data workers."""

    def encode(self, text: str) -> list[str]:
        """Return the dictionary symbols of one line of text, without ``<s>`` and ``</s>``."""
        ...

    def decode(self, symbols: list[str]) -> str:
        """Return the text of symbols; ``<s>``, ``</s>``, ``<pad>`` vanish, ``<unk>``, ``<mask>``, ``<del>`` stay."""
        ...

    def is_word_start(self, symbol: str) -> bool:
        """Whether a symbol begins a word; special symbols are words of their own."""
        ...


class SentencePieceTokenizer:
    """Pieces of a sentencepiece model, such as ``prepare`` trains.

    Args:
        model_path: a ``.model`` file of sentencepiece.

    Raises:
        UserError: the file is missing or no sentencepiece model, or sentencepiece is not installed.
    """

    def __init__(self, model_path: str | Path) -> None:
        self.model_path = str(model_path)
        self._load(_read_bytes(self.model_path, "sentencepiece model"))

    def _load(self, model: bytes) -> None:
        try:
            from sentencepiece import SentencePieceProcessor
        except ImportError:
            raise UserError("sentencepiece is not installed; pip install sentencepiece") from None
        self._model = model
        self._processor: Any = SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(model)
        except (RuntimeError, ValueError):
            raise UserError(f"{self.model_path}: not a sentencepiece model; give the .model file") from None

    def __getstate__(self) -> tuple[str, bytes]:
        return self.model_path, self._model

    def __setstate__(self, state: tuple[str, bytes]) -> None:
        self.model_path, model = state
        self._load(model)

    def all_pieces(self) -> list[str]:
        """Return every piece in the order of sentencepiece's ids, special ones too."""
        return [str(self._processor.IdToPiece(index)) for index in range(self._processor.GetPieceSize())]

    def pieces(self) -> list[str]:
        """Return the pieces that text can become, without the unknown and the control ones (``<s>``, ``</s>``)."""
        special = (self._processor.IsUnknown, self._processor.IsControl)
        return [piece for index, piece in enumerate(self.all_pieces()) if not any(test(index) for test in special)]

    def encode(self, text: str) -> list[str]:
        """Return the pieces of ``text``; a character outside the model is a piece that ``dict.txt`` lacks."""
        return [str(piece) for piece in self._processor.EncodeAsPieces(text)]

    def decode(self, symbols: list[str]) -> str:
        """Return the text of pieces, as sentencepiece normalises it (NFKC, single spaces, by its default)."""
        return decode_runs(symbols, lambda run: str(self._processor.DecodePieces(run)))

    def is_word_start(self, symbol: str) -> bool:
        """Whether the piece carries the word-initial mark U+2581; special symbols do count."""
        return symbol.startswith("\u2581") or symbol in SILENT_SYMBOLS or symbol in VISIBLE_SYMBOLS


class Gpt2Tokenizer:
    """GPT-2's byte-level BPE as fairseq's RoBERTa uses it: symbols are the decimal ids of ``encoder.json``.

    Args:
        encoder_json: GPT-2's ``encoder.json``.
        vocab_bpe: GPT-2's ``vocab.bpe``.

    Raises:
        UserError: a file is missing or not what it should be.
    """

    def __init__(self, encoder_json: str | Path, vocab_bpe: str | Path) -> None:
        self.encoder_json, self.vocab_bpe = str(encoder_json), str(vocab_bpe)
        for path, what in ((self.encoder_json, "GPT-2 encoder.json"), (self.vocab_bpe, "GPT-2 vocab.bpe")):
            _read_bytes(path, what)
        # fairseq's own implementation, so that ids are those of roberta.base; imported here to keep this file light
        from fairseq.data.encoders.gpt2_bpe_utils import get_encoder

        patches.apply()
        try:
            self._encoder: Any = get_encoder(self.encoder_json, self.vocab_bpe)
            self._encoder.encode("a b")
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            what = f"{self.encoder_json}, {self.vocab_bpe}: not GPT-2's encoder.json and vocab.bpe"
            raise UserError(f"{what} ({type(error).__name__}: {error})") from None

    def __getstate__(self) -> tuple[str, str]:
        return self.encoder_json, self.vocab_bpe

    def __setstate__(self, state: tuple[str, str]) -> None:
        self.__init__(*state)  # type: ignore[misc]  # the encoder holds a module, which pickle refuses

    def ids(self) -> list[int]:
        """Return all ids of ``encoder.json`` in ascending order."""
        return sorted(self._encoder.encoder.values())

    def encode(self, text: str) -> list[str]:
        """Return the symbols of ``text``; every byte has one, so nothing is unknown to GPT-2 itself."""
        if len(self._encoder.cache) > GPT2_CACHE_WORDS:  # it has no bound of its own and would grow with the corpus
            self._encoder.cache.clear()
        return [str(index) for index in self._encoder.encode(text)]

    def decode(self, symbols: list[str]) -> str:
        """Return the exact text of symbols; names that are no GPT-2 ids (``madeupword0000``) stay as they are."""
        return decode_runs(symbols, self._decode_run)

    def _decode_run(self, run: list[str]) -> str:
        return str(self._encoder.decode([int(symbol) if symbol.isdecimal() else symbol for symbol in run]))

    def is_word_start(self, symbol: str) -> bool:
        """Whether the symbol's text begins with a space; the first word of a line has none."""
        if not symbol.isdecimal():
            return True
        return str(self._encoder.decoder.get(int(symbol), "\u0120")).startswith("\u0120")


class WhitespaceTokenizer:
    """Text that is tokenized already: symbols are what stands between white space, as in fairseq-preprocess."""

    def encode(self, text: str) -> list[str]:
        """Return the words of ``text``."""
        return text.split()

    def decode(self, symbols: list[str]) -> str:
        """Return the words joined by single spaces."""
        return decode_runs(symbols, " ".join)

    def is_word_start(self, symbol: str) -> bool:
        """Every symbol is a word."""
        return True


def _read_bytes(path: str, what: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot read this {what} ({error.strerror})") from None


def decode_runs(symbols: Sequence[str], decode: Callable[[list[str]], str]) -> str:
    """Decode what stands between special symbols run by run; a tokenizer alone would turn those into noise."""
    texts: list[str] = []
    run: list[str] = []
    for symbol in [*symbols, "</s>"]:
        if symbol not in SILENT_SYMBOLS and symbol not in VISIBLE_SYMBOLS:
            run.append(symbol)
            continue
        if run:
            texts.append(decode(run))
            run = []
        if symbol in VISIBLE_SYMBOLS:
            texts.append(symbol)
    return texts[0] if len(texts) == 1 else " ".join(text.strip() for text in texts)
