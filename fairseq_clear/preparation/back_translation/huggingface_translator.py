"""Translates with a local Hugging Face folder: Marian (OPUS-MT), NLLB or M2M100, run by transformers."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from fairseq_clear.errors import UserError, one_line
from fairseq_clear.libraries import quiet_transformers
from fairseq_clear.preparation.back_translation.translation_settings import Model
from fairseq_clear.preparation.back_translation.translator import (
    Tokens,
    Translation,
    Translator,
    clean_line,
    language_tokens,
)

TYPES = ("marian", "m2m_100")  # model_type in config.json: OPUS-MT, NLLB and M2M100


class HuggingFaceTranslator(Translator):
    """A model of transformers with its tokenizer."""

    def __init__(self, model: Model, device: torch.device) -> None:
        super().__init__(model, device)
        settings, dtype = self.settings, torch.float16 if self.settings.fp16 else torch.float32
        with quiet_transformers() as transformers:
            try:
                tokenizer = transformers.AutoTokenizer.from_pretrained(model.path, local_files_only=True)
                loaded = transformers.AutoModelForSeq2SeqLM.from_pretrained(
                    model.path, local_files_only=True, dtype=dtype
                )
            except Exception as error:  # transformers raises exceptions of many types for incomplete folders
                raise UserError(
                    f"{model.where}: transformers cannot load it ({one_line(error)}); download all of its files"
                ) from None
        if (kind := loaded.config.model_type) not in TYPES:
            raise UserError(f"{model.where}: is a model of type {kind}; give one of type {' or '.join(TYPES)}")
        self._tokenizer, self._model = tokenizer, loaded.to(device).eval()
        self.unknown = tokenizer.unk_token_id
        self.max_source = int(loaded.config.max_position_embeddings)
        # get_vocab of M2M100 can lack the languages
        vocabulary = tokenizer.get_vocab() | getattr(tokenizer, "lang_token_to_id", {})
        marks = language_tokens(vocabulary, model)
        self._source_marks, self._target_marks = ([vocabulary[token] for token in tokens] for tokens in marks)
        how: dict[str, Any] = {"do_sample": True, "top_k": settings.sampling}
        if not self.draws:  # early_stopping as in fairseq and CTranslate2
            how = {"num_beams": settings.beam_width, "early_stopping": settings.beam_width > 1}
        # These settings replace the folder's.
        loaded.generation_config = transformers.GenerationConfig(
            decoder_start_token_id=loaded.generation_config.decoder_start_token_id,
            forced_bos_token_id=self._target_marks[0] if self._target_marks else None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            suppress_tokens=[tokenizer.unk_token_id, tokenizer.pad_token_id],  # training would take <unk> for a word
            **how,
        )

    def encode(self, text: str) -> Tokens:
        """Convert text to token ids, after the id of its language."""
        # Marian takes all from ">>" to "<<" at the start of a text as a language; sentencepiece leaves out the space
        text = f" {text}" if text.startswith(">>") else text
        ids = self._tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        return [*self._source_marks, *ids, self._tokenizer.eos_token_id]

    @torch.inference_mode()
    def search(self, batch: Sequence[Tokens], seed: int) -> list[Translation]:
        """Translate texts; see ``Translator``."""
        pad, marks = self._tokenizer.pad_token_id, len(self._target_marks)
        tokens = pad_sequence([torch.tensor(ids) for ids in batch], batch_first=True, padding_value=pad)  # (B, L)
        mask = pad_sequence([torch.ones(len(ids), dtype=torch.long) for ids in batch], batch_first=True)  # (B, L)
        if self.draws:
            torch.manual_seed(seed)
        found = self._model.generate(
            input_ids=tokens.to(self.device),
            attention_mask=mask.to(self.device),
            min_new_tokens=1 + marks,  # no empty translation, as in fairseq and CTranslate2
            max_new_tokens=min(self.longest(batch), self.max_source - 2) + 1 + marks,
        )  # (B, L)
        return [self._translation(ids) for ids in found.tolist()]

    def _translation(self, ids: list[int]) -> Translation:
        words = ids[1 + len(self._target_marks) :]  # after the start symbol
        end = self._tokenizer.eos_token_id
        kept = words[: words.index(end)] if end in words else words
        return Translation(clean_line(self._tokenizer.decode(kept, skip_special_tokens=True)), end not in words)
