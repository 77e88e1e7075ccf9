"""Translates with a model in the format of CTranslate2, such as a converted OPUS-MT, NLLB or M2M100."""

import json
import logging
import mmap
import re
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from fairseq_clear.errors import UserError, one_line
from fairseq_clear.libraries import import_library
from fairseq_clear.preparation.back_translation.language_tokens import LanguageTokens, language_tokens
from fairseq_clear.preparation.back_translation.segmentation import clean_line
from fairseq_clear.preparation.back_translation.subword_files import Subwords, read_subwords
from fairseq_clear.preparation.back_translation.translation_settings import BackTranslateSettings, ModelSource, Search
from fairseq_clear.preparation.back_translation.translator import Tokens, Translation, hash_files

logger = logging.getLogger(__name__)

TITLE = "a CTranslate2 model"
MODEL, CONFIG = "model.bin", "config.json"
LOOKED_FOR = f"{MODEL} (CTranslate2)"
FLAGS = frozenset({"languages", "search", "fp16"})
VOCABULARIES = ("shared_vocabulary", "source_vocabulary")
POSITIONS = re.compile(
    rb"coder/position_encodings/encodings\0"
)  # a variable in model.bin, of the encoder or the decoder
MAX_SOURCE = 512  # for a model without this variable
END = "</s>"


def matches(path: str) -> bool:
    """Whether this is a folder of CTranslate2."""
    return (Path(path) / MODEL).is_file()


class CTranslate2Translator:
    """A CTranslate2 model with its tokenizer.

    With samples, the model is loaded again for each batch: a seed is used only by the threads that start after it is set.

    Args:
        which: ``forward`` or ``backward``.
        folder: the model.
        settings: settings of the search, of threads and precision.
        device: ``cpu``, or a GPU.

    Raises:
        UserError: ctranslate2 is not installed, or the folder is not a complete model.
    """

    has_alternatives = True

    def __init__(self, which: str, folder: Path, settings: BackTranslateSettings, device: torch.device) -> None:
        self.which, self.folder, self.device = which, folder, device
        self.languages = getattr(settings, which).languages
        self.search: Search = settings.search
        self.draws = self.search.samples_in(which)
        self.max_source = read_positions(folder / MODEL)
        self._library = import_library("ctranslate2", "translate")
        self._options = {
            "device": device.type,
            "device_index": device.index or 0,
            "compute_type": "float16" if settings.fp16 else "default",
            "intra_threads": settings.threads_each,
        }
        self._vocabulary = _read_vocabulary(folder, which)
        self._subwords: Subwords = read_subwords(folder, which)
        self._marks: LanguageTokens = language_tokens(self._vocabulary, self.languages, which, str(folder))
        self._adds_end = bool(_read_json(folder / CONFIG, {}).get("add_source_eos"))
        self._model = self._load()

    def _load(self) -> Any:
        try:
            return self._library.Translator(str(self.folder), **self._options)
        except (RuntimeError, ValueError) as error:
            raise UserError(f"--{self.which} {self.folder}: CTranslate2 cannot load it ({one_line(error)})") from None

    def encode(self, text: str) -> Tokens:
        """Split text into subwords, after the token of its language."""
        return [*self._marks.source, *self._subwords.encode(text), END]

    def count_unknown(self, tokens: Tokens) -> int:
        """Number of tokens that are not in the vocabulary."""
        return sum(token not in self._vocabulary for token in tokens[:-1])

    def translate_batch(self, batch: Sequence[Tokens], seed: int, count: int = 1) -> list[list[Translation]]:
        """Translate texts; see ``Translator``."""
        if self.draws:
            self._library.set_random_seed(seed % 2**32)
            self._model = self._load()
        limit = int(self.search.max_len_a * max(map(len, batch)) + self.search.max_len_b)
        found = self._model.translate_batch(
            [tokens[:-1] for tokens in batch] if self._adds_end else list(batch),
            target_prefix=[list(self._marks.target)] * len(batch) if self._marks.target else None,
            num_hypotheses=count,
            max_decoding_length=min(limit, self.max_source - 2) + 1 + len(self._marks.target),
            max_input_length=0,
            return_end_token=True,
            disable_unk=True,
            **self._search(),
        )
        return [[self._translation(pieces) for pieces in result.hypotheses] for result in found]

    def _search(self) -> dict[str, Any]:
        search = self.search
        if not self.draws:
            return {"beam_size": search.beam_in(self.which), "length_penalty": search.lenpen}
        return {
            "beam_size": 1,
            "sampling_topk": search.sampling_topk or 0,
            "sampling_topp": search.sampling_topp or 1.0,
            "sampling_temperature": search.temperature,
        }

    def _translation(self, pieces: list[str]) -> Translation:
        ended = bool(pieces) and pieces[-1] == END
        words = pieces[len(self._marks.target) : len(pieces) - ended]
        return Translation(clean_line(self._subwords.decode(words)), not ended)


def identity(settings: BackTranslateSettings, which: str) -> dict[str, str]:
    """Hash the files of the folder (SHA-256, by name)."""
    source: ModelSource = getattr(settings, which)
    return hash_files(Path(source.path))


def load_translator(settings: BackTranslateSettings, which: str, device: torch.device) -> CTranslate2Translator:
    """Load the model of ``--forward`` or ``--backward`` on the device.

    Raises:
        UserError: as for ``CTranslate2Translator``.
    """
    source: ModelSource = getattr(settings, which)
    translator = CTranslate2Translator(which, Path(source.path), settings, device)
    logger.info("%s: CTranslate2 model %s", which, source.path)
    return translator


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
