"""Settings of ``prepare``, split by what they determine: plain data, importable without fairseq."""

import os
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fairseq_clear.errors import UserError

SPM_MODEL_TYPES = ("unigram", "bpe")
SPLIT_MODES = ("lines", "paragraphs")
TOKENIZER_KINDS = ("sentencepiece", "gpt2", "hf")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # a name that --views accepts
ORIGINAL = "original"  # the name of the text itself in --views


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, kw_only=True)
class TextSettings:
    """How input files become sentences and documents."""

    text_field: str = "text"
    document_start: str | None = None
    split_sentences: str | None = None
    language: str = "en"

    def _check_text(self) -> None:
        if self.split_sentences not in (None, *SPLIT_MODES):
            raise UserError(f"--split-sentences {self.split_sentences}: choose from {', '.join(SPLIT_MODES)}")


@dataclass(frozen=True, kw_only=True)
class TokenizerSettings:
    """Which tokenizer to train or to reuse, and its dictionary."""

    vocab_size: int = 32000
    spm_model_type: str = "unigram"
    byte_fallback: bool = True
    spm_sample_mb: float = 50.0
    spm_model: Path | None = None
    gpt2_encoder_json: Path | None = None
    gpt2_vocab_bpe: Path | None = None
    tokenizer: str | None = None
    tokenizer_dir: Path | None = None
    dictionary: Path | None = None

    @property
    def kind(self) -> str:
        """The kind of tokenizer, of TOKENIZER_KINDS."""
        if self.tokenizer_dir is not None:
            return "hf"
        return "sentencepiece" if self.gpt2_encoder_json is None else "gpt2"

    @property
    def trains_tokenizer(self) -> bool:
        """Whether a sentencepiece model is trained."""
        return self.kind == "sentencepiece" and self.spm_model is None

    @property
    def given_dictionary(self) -> Path | None:
        """The ``dict.txt`` to copy: the one named, or the one next to an imported tokenizer."""
        imported = None if self.tokenizer_dir is None else self.tokenizer_dir / "dict.txt"
        return self.dictionary or (imported if imported is not None and imported.is_file() else None)

    def _check_tokenizer(self) -> None:
        if self.vocab_size < 1:
            raise UserError(f"--vocab-size {self.vocab_size}: must be 1 or more")
        if self.spm_sample_mb <= 0:
            raise UserError(f"--spm-sample-mb {self.spm_sample_mb}: must be above 0")
        if self.spm_model_type not in SPM_MODEL_TYPES:
            raise UserError(f"--spm-model-type {self.spm_model_type}: choose from {', '.join(SPM_MODEL_TYPES)}")
        if (self.gpt2_encoder_json is None) != (self.gpt2_vocab_bpe is None):
            raise UserError("--gpt2-encoder-json and --gpt2-vocab-bpe belong together: give both")
        if self.spm_model is not None and self.gpt2_encoder_json is not None:
            raise UserError("--spm-model and --gpt2-encoder-json exclude each other: a folder has one tokenizer")
        if self.dictionary is not None and self.trains_tokenizer:
            raise UserError("--dict belongs to a tokenizer that exists: give --spm-model or the GPT-2 files with it")
        if self.tokenizer not in (None, *TOKENIZER_KINDS):
            raise UserError(f"--tokenizer {self.tokenizer}: choose from {', '.join(TOKENIZER_KINDS)}")
        if self.tokenizer == "hf" and self.tokenizer_dir is None:
            raise UserError("--tokenizer hf: give its folder with --tokenizer-dir")
        if self.tokenizer == "gpt2" and self.gpt2_encoder_json is None:
            raise UserError("--tokenizer gpt2: give --gpt2-encoder-json and --gpt2-vocab-bpe")
        if self.tokenizer is not None and self.tokenizer != self.kind:
            raise UserError(
                f"--tokenizer {self.tokenizer}: but the other flags name a {self.kind} tokenizer; leave one out"
            )
        if self.tokenizer_dir is not None and (self.spm_model is not None or self.gpt2_encoder_json is not None):
            raise UserError("--tokenizer-dir excludes --spm-model and the GPT-2 files: a folder has one tokenizer")


@dataclass(frozen=True, kw_only=True)
class PrepareSettings(TextSettings, TokenizerSettings):
    """Everything that determines what ``prepare`` writes.

    The fields are the flags of the same names in ``fairseq-clear prepare --help``.
    """

    inputs: tuple[Path, ...]
    dest: Path
    valid: tuple[Path, ...] = ()
    valid_share: float = 0.01
    shards: int = 1
    paraphrase: tuple[tuple[str, Path], ...] = ()
    valid_paraphrase: tuple[tuple[str, Path], ...] = ()
    sample: int | None = None
    text_only: bool = False
    workers: int = field(default_factory=available_cores)
    seed: int = 1
    overwrite: bool = False

    def check(self) -> None:
        """Raise UserError for values that are out of range or contradict each other; no file is read."""
        if not 0 < self.valid_share < 1:
            raise UserError(f"--valid-share {self.valid_share}: a share of the documents, above 0 and below 1")
        for flag, value in (("--shards", self.shards), ("--workers", self.workers)):
            if value < 1:
                raise UserError(f"{flag} {value}: must be 1 or more")
        if self.seed < 0:
            raise UserError(f"--seed {self.seed}: must be 0 or more")
        if self.sample is not None and self.sample < 1:
            raise UserError(f"--sample {self.sample}: must be 1 or more")
        self._check_text()
        self._check_tokenizer()
        self._check_paraphrases()

    def _check_paraphrases(self) -> None:
        names, valid_names = ({name for name, _ in pairs} for pairs in (self.paraphrase, self.valid_paraphrase))
        for name in names | valid_names:
            if not NAME.fullmatch(name) or name == ORIGINAL:
                raise UserError(
                    f"--paraphrase {name}=...: a name has letters, digits and . _ -, and is not '{ORIGINAL}', which --views "
                    "calls the text itself"
                )
        if names and self.split_sentences is not None:
            raise UserError(
                "--split-sentences and --paraphrase: sentences would no longer be aligned; split before translating"
            )
        if names and self.text_only:
            raise UserError(
                "--text-only and --paraphrase: write the text first, translate it, then give both to prepare"
            )
        if valid_names and not self.valid:
            raise UserError("--valid-paraphrase: there is no --valid that it is aligned to")
        if self.valid and names != valid_names:
            missing, flag = names - valid_names, "--valid-paraphrase"
            if not missing:
                missing, flag = valid_names - names, "--paraphrase"
            raise UserError(
                f"--valid: there is no {flag} {min(missing)}=FILE; give it, or leave --valid out and hold out documents"
            )

    def as_json(self) -> dict[str, Any]:
        """Return the settings for ``clear.json``, paths as text."""
        return {name: _plain(value) for name, value in asdict(self).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return [_plain(item) for item in value] if isinstance(value, tuple) else value
