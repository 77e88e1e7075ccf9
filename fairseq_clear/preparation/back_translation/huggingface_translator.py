"""Translates with a local Hugging Face folder: Marian (OPUS-MT), NLLB or M2M100, run by transformers."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from fairseq_clear.errors import UserError, one_line
from fairseq_clear.libraries import import_library, quiet_transformers
from fairseq_clear.preparation.back_translation.language_tokens import LanguageTokens, language_tokens
from fairseq_clear.preparation.back_translation.segmentation import clean_line
from fairseq_clear.preparation.back_translation.translation_settings import BackTranslateSettings, ModelSource, Search
from fairseq_clear.preparation.back_translation.translator import Tokens, Translation, hash_files

logger = logging.getLogger(__name__)

TITLE = "a Hugging Face model"
CONFIG = "config.json"
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
LOOKED_FOR = f"{CONFIG} with {WEIGHTS[0]} or {WEIGHTS[2]} (Hugging Face)"
FLAGS = frozenset({"languages", "search", "fp16"})
TYPES = {"marian": "Marian", "m2m_100": "NLLB and M2M100"}  # model_type in config.json


def matches(path: str) -> bool:
    """Whether this is a folder of Hugging Face with weights."""
    folder = Path(path)
    return (folder / CONFIG).is_file() and any((folder / name).is_file() for name in WEIGHTS)


class HuggingFaceTranslator:
    """A model of transformers with its tokenizer.

    Args:
        which: ``forward`` or ``backward``.
        folder: path of the model, for messages.
        tokenizer: tokenizer of transformers.
        model: model with ``generate``, in evaluation mode.
        source: path and languages of the direction.
        search: settings of the search.

    Raises:
        UserError: the model needs languages, or does not know those that are given.
    """

    has_alternatives = True

    def __init__(self, which: str, tokenizer: Any, model: Any, source: ModelSource, search: Search) -> None:
        self.which, self.search, self.device = which, search, model.device
        self.draws = search.samples_in(which)
        self.max_source = int(model.config.max_position_embeddings)
        self._tokenizer, self._model = tokenizer, model
        self.languages = source.languages
        # get_vocab of M2M100 can lack the languages
        vocabulary = tokenizer.get_vocab() | getattr(tokenizer, "lang_token_to_id", {})
        marks: LanguageTokens = language_tokens(vocabulary, source.languages, which, source.path)
        self._source_marks = [vocabulary[token] for token in marks.source]
        self._target_marks = [vocabulary[token] for token in marks.target]
        model.generation_config = self._generation(model)

    def encode(self, text: str) -> Tokens:
        """Convert text to token ids, after the id of its language."""
        ids = self._tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        return [*self._source_marks, *ids, self._tokenizer.eos_token_id]

    def count_unknown(self, tokens: Tokens) -> int:
        """Number of unknown tokens."""
        return tokens.count(self._tokenizer.unk_token_id)

    @torch.inference_mode()
    def translate_batch(self, batch: Sequence[Tokens], seed: int, count: int = 1) -> list[list[Translation]]:
        """Translate texts; see ``Translator``."""
        longest = max(map(len, batch))
        pad = self._tokenizer.pad_token_id
        tokens = torch.tensor([[*ids, *[pad] * (longest - len(ids))] for ids in batch])  # (B, L)
        lengths = torch.tensor([len(ids) for ids in batch])
        mask = (torch.arange(longest) < lengths[:, None]).long()  # (B, L)
        limit = min(int(self.search.max_len_a * longest + self.search.max_len_b), self.max_source - 2)
        if self.draws:
            torch.manual_seed(seed)
        found = self._model.generate(
            input_ids=tokens.to(self.device),
            attention_mask=mask.to(self.device),
            min_new_tokens=1 + len(self._target_marks),  # no empty translation, as in fairseq and CTranslate2
            max_new_tokens=limit + 1 + len(self._target_marks),
            num_return_sequences=count,
        )  # (B * count, L)
        texts = [self._translation(ids) for ids in found.tolist()]
        return [texts[first : first + count] for first in range(0, len(texts), count)]

    def _generation(self, model: Any) -> Any:
        """Settings of ``generate``; they replace those of the folder."""
        library = import_library("transformers")
        search, draws, tokenizer = self.search, self.draws, self._tokenizer
        drawing = {
            "do_sample": True,
            "top_k": search.sampling_topk or 0,
            "top_p": search.sampling_topp or 1.0,
            "temperature": search.temperature,
        }
        searching = {
            "num_beams": search.beam_in(self.which),
            "length_penalty": search.lenpen,
            "early_stopping": search.beam_in(self.which) > 1,  # as in fairseq and CTranslate2
        }
        return library.GenerationConfig(
            decoder_start_token_id=model.generation_config.decoder_start_token_id,
            forced_bos_token_id=self._target_marks[0] if self._target_marks else None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            # training would take <unk> for a word of the text
            suppress_tokens=[tokenizer.unk_token_id, tokenizer.pad_token_id],
            **(drawing if draws else searching),
        )

    def _translation(self, ids: list[int]) -> Translation:
        words = ids[1 + len(self._target_marks) :]  # after the start symbol
        end = self._tokenizer.eos_token_id
        ended = end in words
        kept = words[: words.index(end)] if ended else words
        return Translation(clean_line(self._tokenizer.decode(kept, skip_special_tokens=True)), not ended)


def identity(settings: BackTranslateSettings, which: str) -> dict[str, str]:
    """Hash the files of the folder (SHA-256, by name).

    Raises:
        UserError: the folder has a model of another kind.
    """
    source: ModelSource = getattr(settings, which)
    folder = Path(source.path)
    try:
        kind = json.loads((folder / CONFIG).read_bytes()).get("model_type")
    except (ValueError, AttributeError):
        raise UserError(f"{folder / CONFIG}: not a JSON object; download the model again") from None
    if kind not in TYPES:
        raise UserError(
            f"--{which} {folder}: is a model of type {kind}; give one of type {' or '.join(TYPES)} "
            f"({', '.join(TYPES.values())})"
        )
    return hash_files(folder)


def load_translator(settings: BackTranslateSettings, which: str, device: torch.device) -> HuggingFaceTranslator:
    """Load the model of ``--forward`` or ``--backward`` on the device, in evaluation mode.

    Raises:
        UserError: transformers is not installed, or the folder is not a complete model.
    """
    source: ModelSource = getattr(settings, which)
    with quiet_transformers() as transformers:
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(source.path, local_files_only=True)
            model = transformers.AutoModelForSeq2SeqLM.from_pretrained(
                source.path, local_files_only=True, dtype=torch.float16 if settings.fp16 else torch.float32
            )
        except Exception as error:  # transformers raises exceptions of many types for incomplete folders
            raise UserError(
                f"--{which} {source.path}: transformers cannot load it ({one_line(error)}); download all of its files"
            ) from None
    model = model.to(device).eval()
    logger.info("%s: %s %s", which, TYPES.get(model.config.model_type), source.path)
    return HuggingFaceTranslator(which, tokenizer, model, source, settings.search)
