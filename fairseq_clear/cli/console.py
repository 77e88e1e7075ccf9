"""Helpers of commands: silencing fairseq's log, and the tokenizer that ``--tokenizer`` names."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fairseq_clear.errors import UserError
from fairseq_clear.text.data_folders import CLEAR_JSON, load_tokenizer
from fairseq_clear.text.tokenizers import Gpt2Tokenizer, SentencePieceTokenizer, Tokenizer, WhitespaceTokenizer

TOKENIZER_HELP = (
    "tokenizer of a folder written by plain fairseq-preprocess, which does not record it: 'whitespace', a sentencepiece "
    "FILE.model, or GPT-2's encoder.json,vocab.bpe"
)


@contextmanager
def quiet_logs() -> Iterator[None]:
    """Show only warnings inside the block. fairseq otherwise logs every step of a command."""
    loggers = [logging.getLogger(name) for name in ("fairseq", "fairseq_clear")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def choose_tokenizer(name: str | None, folder: Path, fallback: Callable[[], Tokenizer] | None = None) -> Tokenizer:
    """The tokenizer that ``--tokenizer`` names, else the folder's own, else the fallback.

    Args:
        name: as TOKENIZER_HELP says; None if the flag was not given.
        folder: a data folder.
        fallback: makes a tokenizer for a folder that does not record one.

    Raises:
        UserError: the file is missing, or no tokenizer is known.
    """
    if name == "whitespace":
        return WhitespaceTokenizer()
    if name is not None and name.count(",") == 1:
        return Gpt2Tokenizer(*name.split(","))
    if name is not None:
        return SentencePieceTokenizer(name)
    if (folder / CLEAR_JSON).is_file():
        return load_tokenizer(folder)
    if fallback is not None:
        return fallback()
    raise UserError(
        f"--data-bin {folder}: has no {CLEAR_JSON}, so its tokenizer is not known; add --tokenizer whitespace, "
        "--tokenizer FILE.model or --tokenizer encoder.json,vocab.bpe"
    )
