"""The tokenizer of a data folder and its dictionary, in sentencepiece's order.

fairseq puts ``<s> <pad> </s> <unk>`` before ``dict.txt``, sentencepiece ``<unk> <s> </s>`` before its pieces; so a
piece's fairseq id is its sentencepiece id + 1, the mapping of XLM-R (Conneau et al. 2019, arXiv:1911.02116).
"""

import io
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fairseq.data import Dictionary

from fairseq_clear import register
from fairseq_clear.errors import UserError
from fairseq_clear.preparation.settings import PrepareSettings
from fairseq_clear.preparation.workers import run_in_process
from fairseq_clear.text.hf_tokenizer import HF_NAMES, HfTokenizer
from fairseq_clear.text.tokenizers import Gpt2Tokenizer, SentencePieceTokenizer, Tokenizer

register()

SPM_NAME = "sentencepiece.bpe.model"  # the name under which fairseq's hub interface finds it
GPT2_NAMES = ("encoder.json", "vocab.bpe")
SPM_SPECIALS = ["<unk>", "<s>", "</s>"]
TASK_SYMBOLS = frozenset({"<pad>", "<mask>", "<del>"})  # fairseq and the task add these themselves
# Unigram models differ in the last digits with the number of threads: a constant, not this machine's number of cores
TRAINER_THREADS = 8
TRAINER_LINE_CHARACTERS = 1000  # of at most 4 bytes: sentencepiece skips lines above 4,192 bytes without a word


def train_sentencepiece(sample: Path, model: Path, settings: PrepareSettings) -> None:
    """Train a model on the lines of ``sample`` and write it; the same sample gives the same bytes.

    Raises:
        UserError: the vocabulary is larger than the text supports or too small for its characters; says the bound.
    """
    # the sample was drawn by our seed; sentencepiece sees all of it and draws nothing
    options: dict[str, Any] = {
        "vocab_size": settings.vocab_size,
        "model_type": settings.spm_model_type,
        "byte_fallback": settings.byte_fallback,
        "character_coverage": 0.9995 if settings.byte_fallback else 1.0,
        "num_threads": TRAINER_THREADS,
        "unk_id": 0,
        "bos_id": 1,
        "eos_id": 2,
        "pad_id": -1,
        "minloglevel": 2,
    }
    model.write_bytes(run_in_process(_train, str(sample), options))


def _train(sample: str, options: dict[str, Any]) -> bytes:
    from sentencepiece import SentencePieceTrainer

    written = io.BytesIO()
    with open(sample, encoding="utf-8", newline="\n") as stream:
        lines = (portion for line in stream for portion in cut_line(line.rstrip("\n")))
        try:
            SentencePieceTrainer.train(sentence_iterator=lines, model_writer=written, **options)
        except RuntimeError as error:
            raise UserError(explain_trainer(str(error), int(options["vocab_size"]))) from None
    return written.getvalue()


def cut_line(line: str) -> Iterator[str]:
    """Yield a line in portions of at most 1,000 characters, cut at a space where there is one."""
    while len(line) > TRAINER_LINE_CHARACTERS:
        cut = line.rfind(" ", 1, TRAINER_LINE_CHARACTERS + 1)
        cut = TRAINER_LINE_CHARACTERS if cut < 0 else cut
        yield line[:cut]
        line = line[cut:].lstrip(" ")
    if line:
        yield line


def explain_trainer(message: str, vocab_size: int) -> str:
    """Translate what sentencepiece's trainer complains of into flag, value and remedy."""
    if match := re.search(r"too high \(\d+\)\. Please set it to a value <= (\d+)", message):
        return (
            f"--vocab-size {vocab_size}: larger than the corpus supports; it yields at most {match[1]} pieces: "
            f"use --vocab-size {match[1]} or less, or more text"
        )
    if match := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        return (
            f"--vocab-size {vocab_size}: too small for the characters (and 256 bytes of the byte fallback) of the "
            f"corpus; use {match[1]} or more"
        )
    return f"--vocab-size {vocab_size}: sentencepiece cannot train on this corpus: {message}"


def install_tokenizer(settings: PrepareSettings, folder: Path, sample: Path | None) -> tuple[str, list[str]]:
    """Put the tokenizer's files into ``folder``; return its kind and their names, as ``clear.json`` has them."""
    if settings.tokenizer_dir is not None:
        return "hf", install_hf_tokenizer(settings.tokenizer_dir, folder)
    if settings.gpt2_encoder_json is not None and settings.gpt2_vocab_bpe is not None:
        for source, name in zip((settings.gpt2_encoder_json, settings.gpt2_vocab_bpe), GPT2_NAMES, strict=True):
            shutil.copyfile(source, folder / name)
        return "gpt2", list(GPT2_NAMES)
    if settings.spm_model is not None:
        shutil.copyfile(settings.spm_model, folder / SPM_NAME)
    else:
        assert sample is not None
        train_sentencepiece(sample, folder / SPM_NAME, settings)
    return "sentencepiece", [SPM_NAME]


def install_hf_tokenizer(source: Path, folder: Path) -> list[str]:
    """Put a Hugging Face tokenizer's files into ``folder``; return their names."""
    tokenizer_json, special_tokens = HF_NAMES
    special = HfTokenizer.from_folder(source).special
    shutil.copyfile(source / tokenizer_json, folder / tokenizer_json)
    (folder / special_tokens).write_text(json.dumps(special, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    return list(HF_NAMES)


def check_tokenizer_files(settings: PrepareSettings) -> None:
    """Read the files that the user named before any work is done; UserError if one is missing or wrong."""
    tokenizer: Tokenizer | None = None
    if settings.spm_model is not None:
        tokenizer = SentencePieceTokenizer(settings.spm_model)
    elif settings.gpt2_encoder_json is not None and settings.gpt2_vocab_bpe is not None:
        tokenizer = Gpt2Tokenizer(settings.gpt2_encoder_json, settings.gpt2_vocab_bpe)
    elif settings.tokenizer_dir is not None:
        tokenizer = HfTokenizer.from_folder(settings.tokenizer_dir)
    given = settings.given_dictionary
    if given is not None:
        dictionary = load_dictionary(given)
        if isinstance(tokenizer, HfTokenizer) and not tokenizer.ids().keys() >= set(dictionary.symbols):
            raise UserError(f"{given}: has symbols that {tokenizer.path} lacks; give the --dict that belongs to it")
    elif tokenizer is not None:
        build_dictionary(tokenizer)


def load_dictionary(path: Path) -> Dictionary:
    """Return fairseq's reading of a ``dict.txt``; UserError if it is none."""
    try:
        return Dictionary.load(str(path))
    except OSError as error:
        raise UserError(f"{path}: cannot read this dictionary ({error.strerror})") from None
    except Exception as error:  # fairseq raises ValueError, RuntimeError and bare Exception here
        raise UserError(f"{path}: not a dict.txt of fairseq's: {error}") from None


def build_dictionary(tokenizer: Tokenizer) -> Dictionary:
    """Return a dictionary of all the tokenizer's symbols in its own order, each counted 0 (1 where nothing counts them)."""
    dictionary = Dictionary()
    for symbol in tokenizer_symbols(tokenizer):
        dictionary.add_symbol(symbol, n=int(isinstance(tokenizer, HfTokenizer)))
    return dictionary


def tokenizer_symbols(tokenizer: Tokenizer) -> list[str]:
    """Return a tokenizer's symbols in the order of its ids, without the special ones.

    Raises:
        UserError: a tokenizer has a piece that ``dict.txt`` cannot hold or that the task claims.
    """
    if isinstance(tokenizer, Gpt2Tokenizer):
        return [str(index) for index in tokenizer.ids()]
    assert isinstance(tokenizer, SentencePieceTokenizer | HfTokenizer)
    is_hf = isinstance(tokenizer, HfTokenizer)
    path = tokenizer.path if is_hf else tokenizer.model_path
    symbols = tokenizer.symbols() if is_hf else tokenizer.pieces()
    for symbol in symbols:
        if "\n" in symbol or "\r" in symbol:
            raise UserError(f"{path}: piece {symbol!r} holds a line break; dict.txt cannot hold it")
        if symbol in TASK_SYMBOLS or symbol in SPM_SPECIALS:
            raise UserError(
                f"{path}: piece {symbol!r} is a symbol that the task adds itself; "
                "use a model without it, or the --dict that belongs to this model"
            )
    return symbols


def keeps_mapping(tokenizer: Tokenizer, dictionary: Dictionary) -> bool:
    """Whether every piece's fairseq id is its sentencepiece id + 1."""
    if not isinstance(tokenizer, SentencePieceTokenizer):
        return False
    pieces = tokenizer.all_pieces()
    return pieces[:3] == SPM_SPECIALS and pieces[3:] == dictionary.symbols[4 : len(pieces) + 1]
