"""Tokenizers: split text into the symbols of a ``dict.txt``, and join them again. fairseq's ``Dictionary`` maps symbols to ids.

Importing this module does not import fairseq.
"""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

from fairseq_clear import patches
from fairseq_clear.errors import UserError, one_line
from fairseq_clear.libraries import import_library

SILENT_SYMBOLS = frozenset({"<s>", "</s>", "<pad>"})
VISIBLE_SYMBOLS = frozenset({"<unk>", "<mask>", "<del>"})
SPECIAL_SYMBOLS = SILENT_SYMBOLS | VISIBLE_SYMBOLS
GPT2_CACHE_WORDS = 500_000
HF_PART = "part of a Hugging Face tokenizer"
HF_TEXTS = 1_000  # texts that are encoded at once: what tokenizers returns takes a hundred bytes a token
HF_NAMES = ("tokenizer.json", "special_tokens_map.json")
# Hugging Face's name of a special token -> fairseq's symbol.
ROLES = {"cls_token": "<s>", "pad_token": "<pad>", "sep_token": "</s>", "unk_token": "<unk>", "mask_token": "<mask>"}
BYTE_LEVEL_SPACE, SENTENCEPIECE_SPACE = "\u0120", "\u2581"


class Tokenizer(Protocol):
    """Interface of all tokenizers. Tokenizers are picklable, for loader processes."""

    def encode(self, text: str) -> list[str]:
        """Return the dictionary symbols of one line of text, without ``<s>`` and ``</s>``.

        The name of a special symbol in the text, such as ``<mask>``, is plain text and never becomes that symbol.
        """

    def decode(self, symbols: list[str]) -> str:
        """Return the text of symbols, without ``<s>``, ``</s>`` and ``<pad>`` but with ``<unk>``, ``<mask>`` and ``<del>``."""

    def is_word_start(self, symbol: str) -> bool:
        """Whether a word begins at a symbol; always True for a special symbol."""


class SentencePieceTokenizer:
    """A sentencepiece model (``.model``), such as ``fairseq-clear prepare`` trains; symbols are its pieces.

    Raises:
        UserError: the file is missing or is not a sentencepiece model.
    """

    def __init__(self, model_path: str | Path) -> None:
        self.path = str(model_path)
        model = _read_bytes(self.path, "sentencepiece model")
        self._processor: Any = import_library("sentencepiece").SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(model)
        except (RuntimeError, ValueError):
            raise UserError(f"{self.path}: not a sentencepiece model; give the .model file") from None

    def symbols(self) -> list[str]:
        """Return the pieces that occur in text, without the unknown piece and control pieces (``<s>``, ``</s>``)."""
        known = self._processor
        ids = (index for index in range(len(known)) if not known.IsUnknown(index) and not known.IsControl(index))
        return [str(known.IdToPiece(index)) for index in ids]

    def encode(self, text: str) -> list[str]:
        """Return the pieces of ``text``; an unknown character becomes a piece that is not in ``dict.txt``."""
        return _known([str(piece) for piece in self._processor.EncodeAsPieces(text)])

    def decode(self, symbols: list[str]) -> str:
        """Return the text of pieces, as normalised by sentencepiece (by default NFKC, single spaces)."""
        return decode_runs(symbols, lambda run: str(self._processor.DecodePieces(run)))

    def is_word_start(self, symbol: str) -> bool:
        """Whether the piece starts with the mark U+2581 or is a special symbol."""
        return symbol.startswith(SENTENCEPIECE_SPACE) or symbol in SPECIAL_SYMBOLS


class Gpt2Tokenizer:
    """GPT-2's byte-level BPE as fairseq's RoBERTa uses it: symbols are the decimal ids of ``encoder.json``.

    Raises:
        UserError: ``encoder.json`` or ``vocab.bpe`` is missing or has another format.
    """

    def __init__(self, encoder_json: str | Path, vocab_bpe: str | Path) -> None:
        self.path, self.vocab_bpe = str(encoder_json), str(vocab_bpe)
        # fairseq's own implementation gives the ids of roberta.base; imported here because the import is slow
        from fairseq.data.encoders.gpt2_bpe_utils import get_encoder

        patches.apply()
        try:
            self._encoder: Any = get_encoder(self.path, self.vocab_bpe)
            self._encoder.encode("a b")
        except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
            what = f"{self.path}, {self.vocab_bpe}: not GPT-2's encoder.json and vocab.bpe"
            raise UserError(f"{what} ({one_line(error)})") from None

    def __reduce__(self) -> Any:
        return Gpt2Tokenizer, (self.path, self.vocab_bpe)  # the encoder holds a module, which cannot be pickled

    def symbols(self) -> list[str]:
        """Return all ids of ``encoder.json``, in their order."""
        return [str(index) for index in sorted(self._encoder.encoder.values())]

    def encode(self, text: str) -> list[str]:
        """Return the symbols of ``text``; every byte has one, so no text is unknown."""
        if len(self._encoder.cache) > GPT2_CACHE_WORDS:  # the cache is unbounded and would grow with the corpus
            self._encoder.cache.clear()
        return [str(index) for index in self._encoder.encode(text)]

    def decode(self, symbols: list[str]) -> str:
        """Return the exact text of symbols; symbols that are not GPT-2 ids (``madeupword0000``) are kept unchanged."""
        return decode_runs(symbols, self._decode_run)

    def _decode_run(self, run: list[str]) -> str:
        return str(self._encoder.decode([int(symbol) if symbol.isdecimal() else symbol for symbol in run]))

    def is_word_start(self, symbol: str) -> bool:
        """Whether the symbol's text begins with a space. (The first word of a line has no space.)"""
        if not symbol.isdecimal():
            return True
        return str(self._encoder.decoder.get(int(symbol), BYTE_LEVEL_SPACE)).startswith(BYTE_LEVEL_SPACE)


class WhitespaceTokenizer:
    """Splits text that is already tokenized at white space, as fairseq-preprocess does."""

    def encode(self, text: str) -> list[str]:
        """Return the words of ``text``; the name of a special symbol is an unknown word."""
        return _known(text.split())

    def decode(self, symbols: list[str]) -> str:
        """Return the words joined by single spaces."""
        return decode_runs(symbols, " ".join)

    def is_word_start(self, symbol: str) -> bool:
        """True: every symbol is a word."""
        return True


class HfTokenizer:
    """A ``tokenizer.json`` of Hugging Face (WordPiece, byte-level BPE, unigram); special tokens have fairseq's names.

    The names come from the first file of ``special_tokens`` that names all tokens of ROLES.

    Attributes:
        content: the ``tokenizer.json``, changed by ``split_names``.
        marks_ends: whether symbols say where words end, not where they begin.

    Raises:
        UserError: a file is missing or has another format, or ``tokenizers`` is not installed.
    """

    def __init__(self, tokenizer_json: str | Path, *special_tokens: str | Path) -> None:
        self.path = str(tokenizer_json)
        content = _read_bytes(self.path, HF_PART).decode(errors="replace")
        self.special = read_special_tokens([Path(path) for path in special_tokens])
        tokenizers = import_library("tokenizers")
        try:
            self.content = split_names(content, self.special)
            self._tokenizer: Any = tokenizers.Tokenizer.from_str(self.content)
        except Exception as error:  # tokenizers raises bare Exception
            raise UserError(f"{self.path}: not a tokenizer.json ({error})") from None
        # Tokenizer files of sentence-transformers truncate or pad every text to 128 tokens.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True
        known: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        for role, token in self.special.items():
            if token not in known:
                raise UserError(f"{self.path}: has no token {token!r}, which the folder names as its {role}")
        roles = {token: ROLES[role] for role, token in self.special.items()}
        # MPNet has an <unk> besides its unknown token [UNK]; a dict.txt has one meaning for each of fairseq's names
        self._ids = {roles.get(token) or _unlike_specials(token, known): index for token, index in known.items()}
        self._by_id = {index: symbol for symbol, index in self._ids.items()}
        self._word_mark, self._marks_start = _word_mark(json.loads(self.content))
        self.marks_ends = bool(json.loads(self.content)["model"].get("end_of_word_suffix"))

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._tokenizer.encode_special_tokens = True  # a pickle does not store this setting

    @classmethod
    def from_folder(cls, folder: Path) -> "HfTokenizer":
        """Load the tokenizer of a Hugging Face folder."""
        return cls(folder / HF_NAMES[0], *special_token_files(folder))

    def symbols(self) -> list[str]:
        """Return the tokens in the order of their ids, without the special tokens of ROLES."""
        return [symbol for symbol in sorted(self._ids, key=self._ids.__getitem__) if symbol not in ROLES.values()]

    def ids(self) -> dict[str, int]:
        """Return symbol -> Hugging Face's id; special tokens have fairseq's names."""
        return self._ids

    def encode(self, text: str) -> list[str]:
        """Return the symbols of ``text``, without ``<s>`` and ``</s>``."""
        return self._symbols_of(self._tokenizer.encode(text, add_special_tokens=False))

    def encode_all(self, texts: Sequence[str]) -> list[list[str]]:
        """Return the symbols of each text, as ``encode`` does, with a thread on each core."""
        portions = (list(texts[begin : begin + HF_TEXTS]) for begin in range(0, len(texts), HF_TEXTS))
        encode = self._tokenizer.encode_batch_fast
        return [self._symbols_of(of_text) for part in portions for of_text in encode(part, add_special_tokens=False)]

    def _symbols_of(self, encoded: Any) -> list[str]:
        return [self._by_id[index] for index in encoded.ids]

    def decode(self, symbols: list[str]) -> str:
        """Return the text of symbols, using the tokenizer's own decoder."""
        return decode_runs(symbols, self._decode_run)

    def _decode_run(self, run: list[str]) -> str:
        if any(symbol not in self._ids for symbol in run):
            return " ".join(run)
        return str(self._tokenizer.decode([self._ids[symbol] for symbol in run], skip_special_tokens=False))

    def is_word_start(self, symbol: str) -> bool:
        """Whether a word begins at a symbol: it has no ``##`` (WordPiece), begins with a space mark (others), or is special."""
        return symbol in SPECIAL_SYMBOLS or symbol.startswith(self._word_mark) == self._marks_start


def word_starts(tokenizer: Tokenizer, symbols: Iterable[str]) -> list[bool]:
    """Whether a word begins at each symbol; UserError for a tokenizer whose symbols do not say so."""
    if getattr(tokenizer, "marks_ends", False):
        raise UserError(
            f"{getattr(tokenizer, 'path', 'the tokenizer')}: its symbols say where words end; masks and augmentations of whole "
            "words need to know where they begin"
        )
    return [tokenizer.is_word_start(symbol) for symbol in symbols]


def _unlike_specials(token: str, known: dict[str, int]) -> str:
    """Return a token, with marks before it if it has the name of a special symbol of fairseq's."""
    name = token
    while name in SPECIAL_SYMBOLS or (name != token and name in known):
        name = f"\\{name}"
    return name


def split_names(content: str, special: dict[str, str]) -> str:
    """Return a ``tokenizer.json`` that splits the name of a special token in a text into pieces, as sentencepiece does.

    A unigram model has these names as pieces, and would choose them. The changed file cuts each name before the model sees it,
    between two characters that no other piece contains together, so other text is split as before. A file that already splits
    the names is returned unchanged. ``special`` maps roles to names.
    """
    names = set(special.values())
    made = import_library("tokenizers").Tokenizer.from_str(content)
    made.encode_special_tokens = True
    if not any(name in made.encode(name, add_special_tokens=False).tokens for name in names - {special["unk_token"]}):
        return content
    pieces = made.get_vocab().keys() - names
    joined = "\n".join(pieces)

    def halves(name: str) -> str:
        cuts = [cut for cut in range(1, len(name)) if name[cut - 1 : cut + 1] not in joined]
        # A cut between two unknown characters would turn one <unk> into two.
        cut = next((cut for cut in cuts if not pieces.isdisjoint(name[cut - 1 : cut + 1])), 1)
        return f"{re.escape(name[:cut])}(?={re.escape(name[cut:])})"

    pattern = {"Regex": "|".join(map(halves, sorted(names)))}
    split = {"type": "Split", "pattern": pattern, "behavior": "MergedWithPrevious", "invert": False}
    changed = json.loads(content)
    step = changed.get("pre_tokenizer") or {"type": "Sequence", "pretokenizers": []}
    steps = step["pretokenizers"] if step["type"] == "Sequence" else [step]
    steps = steps if split in steps else [*steps, split]
    return json.dumps(changed | {"pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}})


def special_token_files(folder: Path) -> list[Path]:
    """The files that may name the special tokens of a Hugging Face folder."""
    return [folder / HF_NAMES[1], folder / "tokenizer_config.json"]


def read_special_tokens(candidates: list[Path], *, needed: bool = True) -> dict[str, str]:
    """Read the tokens of ROLES from the first file that names all of them.

    Raises:
        UserError: a file is damaged, or no file names all tokens of ROLES; unless ``needed``, the result is then empty.
    """
    missing = set(ROLES)
    for path in candidates:
        if not path.is_file():
            continue
        try:
            content = json.loads(_read_bytes(str(path), HF_PART))
            named = {role: content[role] for role in ROLES if content.get(role)}
            found = {role: str(name["content"] if isinstance(name, dict) else name) for role, name in named.items()}
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
            raise UserError(f"{path}: not a special_tokens_map.json or tokenizer_config.json") from None
        if len(found) == len(ROLES):
            return found
        missing = set(ROLES) - set(found)
    if not needed:
        return {}
    names = " or ".join(str(path) for path in candidates)
    raise UserError(f"{names}: missing, or without {', '.join(sorted(missing))}, which fairseq's vocabulary needs")


def _known(symbols: list[str]) -> list[str]:
    """Replace pieces of a text that look like special symbols by ``<unk>``."""
    return ["<unk>" if symbol in SPECIAL_SYMBOLS else symbol for symbol in symbols]


def _word_mark(description: dict[str, Any]) -> tuple[str, bool]:
    """Return the mark of word boundaries, and whether the first piece of a word has it (True) or all other pieces (False)."""
    model = description.get("model") or {}
    if model.get("type") == "WordPiece":
        return str(model.get("continuing_subword_prefix", "##")), False
    if '"ByteLevel"' in json.dumps([description.get("pre_tokenizer"), description.get("decoder")]):
        return BYTE_LEVEL_SPACE, True
    return SENTENCEPIECE_SPACE, True


def _read_bytes(path: str, what: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot read this {what} ({error.strerror})") from None


def decode_runs(symbols: Sequence[str], decode: Callable[[list[str]], str]) -> str:
    """Decode the runs of symbols between special symbols: the tokenizer itself cannot decode special symbols."""
    texts: list[str] = []
    for is_special, group in groupby(symbols, key=SPECIAL_SYMBOLS.__contains__):
        run = list(group)
        texts += [symbol for symbol in run if symbol in VISIBLE_SYMBOLS] if is_special else [decode(run)]
    return texts[0] if len(texts) == 1 else " ".join(text.strip() for text in texts)
