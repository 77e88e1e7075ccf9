"""Translates with a local Hugging Face folder: Marian (OPUS-MT), NLLB or M2M100, run by transformers."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from fairseq_clear.errors import UserError, one_line
from fairseq_clear.libraries import quiet_transformers
from fairseq_clear.preparation.back_translation.translation_settings import BackTranslateSettings
from fairseq_clear.preparation.back_translation.translator import (
    Tokens,
    Translation,
    Translator,
    clean_line,
    language_tokens,
)

logger = logging.getLogger(__name__)

CONFIG = "config.json"
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
TYPES = {"marian": "Marian", "m2m_100": "NLLB and M2M100"}  # model_type in config.json


class HuggingFaceTranslator(Translator):
    """A model of transformers with its tokenizer."""

    TITLE = "a Hugging Face model"
    LOOKED_FOR = f"{CONFIG} with {WEIGHTS[0]} or {WEIGHTS[2]} (Hugging Face)"

    def __init__(self, settings: BackTranslateSettings, which: str, device: torch.device) -> None:
        super().__init__(settings, which, device)
        path = self.source.path
        with quiet_transformers() as transformers:
            try:
                tokenizer = transformers.AutoTokenizer.from_pretrained(path, local_files_only=True)
                model = transformers.AutoModelForSeq2SeqLM.from_pretrained(
                    path, local_files_only=True, dtype=torch.float16 if settings.fp16 else torch.float32
                )
            except Exception as error:  # transformers raises exceptions of many types for incomplete folders
                raise UserError(
                    f"{self.where}: transformers cannot load it ({one_line(error)}); download all of its files"
                ) from None
        self._tokenizer, self._model = tokenizer, model.to(device).eval()
        self.max_source = int(model.config.max_position_embeddings)
        # get_vocab of M2M100 can lack the languages
        vocabulary = tokenizer.get_vocab() | getattr(tokenizer, "lang_token_to_id", {})
        self._source_marks, self._target_marks = (
            [vocabulary[token] for token in tokens]
            for tokens in language_tokens(vocabulary, self.languages, which, path)
        )
        drawing = {
            "do_sample": True,
            "top_k": self.search.sampling_topk or 0,
            "top_p": self.search.sampling_topp or 1.0,
            "temperature": self.search.temperature,
        }
        beam = self.search.beam_in(which)
        # early_stopping as in fairseq and CTranslate2
        searching = {"num_beams": beam, "length_penalty": self.search.lenpen, "early_stopping": beam > 1}
        # These settings replace those of the folder.
        model.generation_config = transformers.GenerationConfig(
            decoder_start_token_id=model.generation_config.decoder_start_token_id,
            forced_bos_token_id=self._target_marks[0] if self._target_marks else None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            # training would take <unk> for a word of the text
            suppress_tokens=[tokenizer.unk_token_id, tokenizer.pad_token_id],
            **(drawing if self.draws else searching),
        )
        logger.info("%s: %s %s", which, TYPES.get(model.config.model_type), path)

    @staticmethod
    def matches(path: str) -> bool:
        """Whether this is a folder of Hugging Face with weights."""
        return (Path(path) / CONFIG).is_file() and any((Path(path) / name).is_file() for name in WEIGHTS)

    @staticmethod
    def identity(settings: BackTranslateSettings, which: str) -> dict[str, str]:
        """Hash the files of the folder (SHA-256, by name); UserError for a model of another kind."""
        folder = Path(settings.source(which).path)
        try:
            kind = json.loads((folder / CONFIG).read_bytes()).get("model_type")
        except (ValueError, AttributeError):
            raise UserError(f"{folder / CONFIG}: not a JSON object; download the model again") from None
        if kind not in TYPES:
            raise UserError(
                f"--{which} {folder}: is a model of type {kind}; give one of type {' or '.join(TYPES)} "
                f"({', '.join(TYPES.values())})"
            )
        return Translator.identity(settings, which)

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
        pad = self._tokenizer.pad_token_id
        tokens = pad_sequence([torch.tensor(ids) for ids in batch], batch_first=True, padding_value=pad)  # (B, L)
        mask = pad_sequence([torch.ones(len(ids), dtype=torch.long) for ids in batch], batch_first=True)  # (B, L)
        longest = tokens.shape[1]
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

    def _translation(self, ids: list[Any]) -> Translation:
        words = ids[1 + len(self._target_marks) :]  # after the start symbol
        end = self._tokenizer.eos_token_id
        kept = words[: words.index(end)] if end in words else words
        return Translation(clean_line(self._tokenizer.decode(kept, skip_special_tokens=True)), end not in words)
