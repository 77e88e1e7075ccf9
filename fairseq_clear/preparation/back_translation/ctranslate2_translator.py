"""Translates with a model in the format of CTranslate2, such as a converted OPUS-MT, NLLB or M2M100."""

import json
import logging
import mmap
import re
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from fairseq_clear.errors import UserError, one_line
from fairseq_clear.libraries import import_library
from fairseq_clear.preparation.back_translation.translation_settings import BackTranslateSettings
from fairseq_clear.preparation.back_translation.translator import (
    Tokens,
    Translation,
    Translator,
    clean_line,
    language_tokens,
)
from fairseq_clear.text.tokenizers import SentencePieceTokenizer

logger = logging.getLogger(__name__)

MODEL, CONFIG = "model.bin", "config.json"
VOCABULARIES = ("shared_vocabulary", "source_vocabulary")
# A variable in model.bin, of the encoder or the decoder.
POSITIONS = re.compile(rb"coder/position_encodings/encodings\0")
MAX_SOURCE = 512  # for a model without this variable
END = "</s>"
# sentencepiece models to split texts and to join translations
PAIR = ("source.spm", "target.spm")
SINGLE = ("sentencepiece.bpe.model", "sentencepiece.model", "spm.model", "spm128.model", "tokenizer.model")
TOKENIZER_JSON = "tokenizer.json"


class CTranslate2Translator(Translator):
    """A CTranslate2 model with its tokenizer.

    With samples, the model is loaded again for each batch: a seed is used only by the threads that start after it is set.
    """

    TITLE = "a CTranslate2 model"
    LOOKED_FOR = f"{MODEL} (CTranslate2)"

    def __init__(self, settings: BackTranslateSettings, which: str, device: torch.device) -> None:
        super().__init__(settings, which, device)
        folder = Path(self.source.path)
        self.max_source = read_positions(folder / MODEL)
        self._library = import_library("ctranslate2", "translate")
        self._options = {
            "device": device.type,
            "device_index": device.index or 0,
            "compute_type": "float16" if settings.fp16 else "default",
            "intra_threads": settings.threads_each,
        }
        self._vocabulary = _read_vocabulary(folder, which)
        self._split, self._join = read_subwords(folder, which)
        self._source_marks, self._target_marks = language_tokens(
            self._vocabulary, self.languages, which, self.source.path
        )
        self._adds_end = bool(_read_json(folder / CONFIG, {}).get("add_source_eos"))
        self._model = self._load()
        logger.info("%s: CTranslate2 model %s", which, folder)

    @staticmethod
    def matches(path: str) -> bool:
        """Whether this is a folder of CTranslate2."""
        return (Path(path) / MODEL).is_file()

    def _load(self) -> Any:
        try:
            return self._library.Translator(self.source.path, **self._options)
        except (RuntimeError, ValueError) as error:
            raise UserError(f"{self.where}: CTranslate2 cannot load it ({one_line(error)})") from None

    def encode(self, text: str) -> Tokens:
        """Split text into subwords, after the token of its language."""
        return [*self._source_marks, *self._split(text), END]

    def count_unknown(self, tokens: Tokens) -> int:
        """Number of tokens that are not in the vocabulary."""
        return sum(token not in self._vocabulary for token in tokens[:-1])

    def translate_batch(self, batch: Sequence[Tokens], seed: int, count: int = 1) -> list[list[Translation]]:
        """Translate texts; see ``Translator``."""
        search, marks = self.search, self._target_marks
        if self.draws:
            self._library.set_random_seed(seed % 2**32)
            self._model = self._load()
            how: dict[str, Any] = {
                "beam_size": 1,
                "sampling_topk": search.sampling_topk or 0,
                "sampling_topp": search.sampling_topp or 1.0,
                "sampling_temperature": search.temperature,
            }
        else:
            how = {"beam_size": search.beam_in(self.which), "length_penalty": search.lenpen}
        limit = int(search.max_len_a * max(map(len, batch)) + search.max_len_b)
        found = self._model.translate_batch(
            [tokens[:-1] for tokens in batch] if self._adds_end else list(batch),
            target_prefix=[marks] * len(batch) if marks else None,
            num_hypotheses=count,
            max_decoding_length=min(limit, self.max_source - 2) + 1 + len(marks),
            max_input_length=0,
            return_end_token=True,
            disable_unk=True,
            **how,
        )
        return [[self._translation(pieces) for pieces in result.hypotheses] for result in found]

    def _translation(self, pieces: list[str]) -> Translation:
        ended = bool(pieces) and pieces[-1] == END
        words = pieces[len(self._target_marks) : len(pieces) - ended]
        return Translation(clean_line(self._join(words)), not ended)


def read_positions(path: Path) -> int:
    """Read the number of positions of a model from its ``model.bin``; the library does not tell.

    Each variable is written as its name, a zero byte, its rank in one byte, and its dimensions in four bytes each. At the end
    stand names of variables that share the content of another.
    """
    try:
        with open(path, "rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            ends = [found.end() for found in POSITIONS.finditer(content)]
            sizes = [struct.unpack_from("<I", content, end + 1)[0] for end in ends if content[end : end + 1] == b"\2"]
    except (OSError, ValueError, struct.error) as error:
        raise UserError(f"{path}: not a complete model ({one_line(error)}); convert it again") from None
    return min(sizes, default=MAX_SOURCE)


def read_subwords(folder: Path, which: str) -> tuple[Callable[[str], list[str]], Callable[[list[str]], str]]:
    """Read the tokenizer of a folder: sentencepiece models, or a ``tokenizer.json`` of Hugging Face.

    Returns:
        Functions that split text into subwords, none of which is a special token, and that join subwords.

    Raises:
        UserError: the folder has no tokenizer, or the tokenizer cannot be read.
    """
    for names in (PAIR, *((name, name) for name in SINGLE)):
        if all((folder / name).is_file() for name in names):
            first, last = (SentencePieceTokenizer(folder / name) for name in names)
            return first.encode, last.decode
    path = folder / TOKENIZER_JSON
    if not path.is_file():
        raise UserError(
            f"--{which} {folder}: no tokenizer; copy {' and '.join(PAIR)}, {SINGLE[0]} or {TOKENIZER_JSON} from the model "
            "that was converted"
        )
    library = import_library("tokenizers")
    try:
        tokenizer = library.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise UserError(f"{path}: not a tokenizer ({one_line(error)})") from None
    tokenizer.encode_special_tokens = True  # a special token that occurs in the text is split
    tokenizer.no_truncation()

    def join(pieces: list[str]) -> str:
        ids = [tokenizer.token_to_id(piece) for piece in pieces]
        return str(tokenizer.decode([index for index in ids if index is not None]))

    return lambda text: tokenizer.encode(text, add_special_tokens=False).tokens, join


def _read_json(path: Path, default: Any = None) -> Any:
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return default
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({one_line(error)}); copy the model again") from None


def _read_vocabulary(folder: Path, which: str) -> frozenset[str]:
    """Read the source vocabulary: a list in JSON, or in old models one token per line."""
    for name in VOCABULARIES:
        tokens = _read_json(folder / f"{name}.json")
        if tokens is not None:
            return frozenset(map(str, tokens))
        if (text := folder / f"{name}.txt").is_file():
            return frozenset(text.read_text("utf-8").split("\n"))
    raise UserError(f"--{which} {folder}: no {VOCABULARIES[0]}.json; convert the model again")
