"""Translates with a model in the format of CTranslate2, such as a converted OPUS-MT, NLLB or M2M100."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from fairseq_clear.errors import UserError, one_line
from fairseq_clear.files import read_json
from fairseq_clear.libraries import import_library
from fairseq_clear.preparation.back_translation.translation_settings import Model
from fairseq_clear.preparation.back_translation.translator import (
    Tokens,
    Translation,
    Translator,
    clean_line,
    language_tokens,
)
from fairseq_clear.text.tokenizers import SentencePieceTokenizer

CONFIG = "config.json"
VOCABULARIES = ("shared_vocabulary.json", "source_vocabulary.json")
END, UNKNOWN = "</s>", "<unk>"
# sentencepiece models to split texts and to join translations
PAIR = ("source.spm", "target.spm")
SINGLE = ("sentencepiece.bpe.model", "sentencepiece.model", "spm.model", "spm128.model", "tokenizer.model")


class CTranslate2Translator(Translator):
    """A CTranslate2 model with its tokenizer.

    With samples, the model is loaded again for each batch: a seed is used only by the threads that start after it is set.
    """

    max_source = 512  # positions of OPUS-MT; NLLB and M2M100 have more, and the library does not tell
    unknown = UNKNOWN

    def __init__(self, model: Model, device: torch.device) -> None:
        super().__init__(model, device)
        folder = Path(model.path)
        self._library = import_library("ctranslate2", "translate")
        names = [name for name in VOCABULARIES if (folder / name).is_file()] or VOCABULARIES
        remedy = f"{model.where}: convert it again"
        self._vocabulary = frozenset(map(str, read_json(folder / names[0], remedy, list)))
        config = read_json(folder / CONFIG, remedy, dict)
        self._split_text, self._join_pieces = read_subwords(model)
        self._source_marks, self._target_marks = language_tokens(self._vocabulary, model)
        self._adds_end = bool(config.get("add_source_eos"))
        self._model = self._load()

    def _load(self) -> Any:
        options = {"device": self.device.type, "device_index": self.device.index or 0}
        options["compute_type"] = "float16" if self.settings.fp16 else "default"
        try:
            return self._library.Translator(self.model.path, **options)
        except (RuntimeError, ValueError) as error:
            raise UserError(f"{self.model.where}: CTranslate2 cannot load it ({one_line(error)})") from None

    def encode(self, text: str) -> Tokens:
        """Split text into subwords, after the token of its language."""
        pieces = (piece if piece in self._vocabulary else UNKNOWN for piece in self._split_text(text))
        return [*self._source_marks, *pieces, END]

    def search(self, batch: Sequence[Tokens], seed: int) -> list[Translation]:
        """Translate texts; see ``Translator``."""
        marks = self._target_marks
        how: dict[str, Any] = {}
        if self.draws:
            self._library.set_random_seed(seed % 2**32)
            self._model = self._load()
            how = {"sampling_topk": self.settings.sampling}
        found = self._model.translate_batch(
            [tokens[:-1] for tokens in batch] if self._adds_end else list(batch),
            target_prefix=[marks] * len(batch) if marks else None,
            beam_size=self.settings.beam_width,
            max_decoding_length=min(self.longest(batch), self.max_source - 2) + 1 + len(marks),
            max_input_length=0,
            return_end_token=True,
            disable_unk=True,
            **how,
        )
        return [self._translation(result.hypotheses[0]) for result in found]

    def _translation(self, pieces: list[str]) -> Translation:
        ended = bool(pieces) and pieces[-1] == END
        words = pieces[len(self._target_marks) : len(pieces) - ended]
        return Translation(clean_line(self._join_pieces(words)), not ended)


def read_subwords(model: Model) -> tuple[Callable[[str], list[str]], Callable[[list[str]], str]]:
    """Read the sentencepiece models of a folder; return functions that split text into subwords, and that join subwords.

    Raises:
        UserError: the folder has no such model, or it cannot be read.
    """
    for names in (PAIR, *((name, name) for name in SINGLE)):
        first, last = (Path(model.path) / name for name in names)
        if first.is_file() and last.is_file():
            return SentencePieceTokenizer(first).encode, SentencePieceTokenizer(last).decode
    raise UserError(
        f"{model.where}: no tokenizer; copy {' and '.join(PAIR)}, or {SINGLE[0]}, from the model that was converted"
    )
