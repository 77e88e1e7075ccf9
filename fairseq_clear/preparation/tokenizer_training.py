"""The tokenizer of a new data folder: trained on its text, or copied from the files that the user names."""

import io
import re
import shutil
from pathlib import Path

from fairseq_clear.errors import UserError
from fairseq_clear.preparation.prepare_settings import TokenizerSettings
from fairseq_clear.preparation.staging import Staged
from fairseq_clear.processes import worker_pool
from fairseq_clear.text.tokenizers import Gpt2Tokenizer, HfTokenizer, SentencePieceTokenizer
from fairseq_clear.text.vocabulary import (
    GPT2_NAMES,
    SPM_NAME,
    build_dictionary,
    install_hf_tokenizer,
    load_dictionary,
    read_hf_tokenizer,
)

# A constant, because the last digits of unigram models depend on the number of threads.
TRAINER_THREADS = 8
TRAINER_LINE_CHARACTERS = 1000  # of at most 4 bytes: sentencepiece silently skips lines above 4,192 bytes
# ends at a space or at the end of the line, if one is near enough
PORTION = re.compile(rf"(?s).{{1,{TRAINER_LINE_CHARACTERS}}}(?!\S)|.{{1,{TRAINER_LINE_CHARACTERS}}}")


def train_sentencepiece(staged: Staged, settings: TokenizerSettings) -> bytes:
    """Train a unigram model on a sample of the staged lines; the same lines give the same bytes.

    Raises:
        UserError: the vocabulary is larger than the text supports, or too small for its characters.
    """
    from sentencepiece import SentencePieceTrainer

    written = io.BytesIO()
    # The sample is drawn with our seed; sentencepiece uses the whole sample.
    lines = (portion for line in staged.training_lines(settings.spm_sample_mb * 1e6) for portion in cut_line(line))
    try:
        SentencePieceTrainer.train(
            sentence_iterator=lines,
            model_writer=written,
            vocab_size=settings.vocab_size,
            byte_fallback=True,
            num_threads=TRAINER_THREADS,
            unk_id=0,
            bos_id=1,
            eos_id=2,
            pad_id=-1,
            minloglevel=2,
        )
    except (RuntimeError, ValueError, SyntaxError) as error:  # the last two: more than an int of C++ holds
        reason = str(error).rpartition("] ")[2].partition(" Increase")[0]  # without place in the source, and its flags
        what = f"--vocab-size {settings.vocab_size}: sentencepiece cannot train on this text"
        raise UserError(f"{what}: {reason}") from None
    return written.getvalue()


def cut_line(line: str) -> list[str]:
    """Cut a line into portions of at most 1,000 characters, at a space where there is one."""
    if 0 < len(line) <= TRAINER_LINE_CHARACTERS:
        return [line]
    return list(filter(None, map(str.strip, PORTION.findall(line))))


def install_tokenizer(settings: TokenizerSettings, folder: Path, staged: Staged) -> tuple[str, list[str]]:
    """Write the files of the tokenizer to ``folder``; return its kind and the file names, for ``clear.json``."""
    if settings.tokenizer_dir is not None:
        return "hf", install_hf_tokenizer(settings.tokenizer_dir, folder)
    if settings.gpt2_encoder_json is not None and settings.gpt2_vocab_bpe is not None:
        for source, name in zip((settings.gpt2_encoder_json, settings.gpt2_vocab_bpe), GPT2_NAMES, strict=True):
            shutil.copyfile(source, folder / name)
        return "gpt2", list(GPT2_NAMES)
    if settings.spm_model is not None:
        shutil.copyfile(settings.spm_model, folder / SPM_NAME)
    else:
        with worker_pool(1) as pool:  # the native code would block signals here and leave its memory allocated
            (folder / SPM_NAME).write_bytes(pool.submit(train_sentencepiece, staged, settings).result())
    return "sentencepiece", [SPM_NAME]


def check_tokenizer_files(settings: TokenizerSettings) -> None:
    """Read the tokenizer files that the user names; raise UserError if one is missing or wrong."""
    tokenizer: SentencePieceTokenizer | Gpt2Tokenizer | HfTokenizer | None = None
    if settings.spm_model is not None:
        tokenizer = SentencePieceTokenizer(settings.spm_model)
    elif settings.gpt2_encoder_json is not None and settings.gpt2_vocab_bpe is not None:
        tokenizer = Gpt2Tokenizer(settings.gpt2_encoder_json, settings.gpt2_vocab_bpe)
    elif settings.tokenizer_dir is not None:
        tokenizer = read_hf_tokenizer(settings.tokenizer_dir)
    given = settings.given_dictionary
    if given is not None:
        dictionary = load_dictionary(given)
        if isinstance(tokenizer, HfTokenizer) and not tokenizer.ids().keys() >= set(dictionary.symbols):
            raise UserError(
                f"{given}: has symbols that {tokenizer.path} does not have; give the --dict that belongs to it"
            )
    elif tokenizer is not None:
        build_dictionary(tokenizer)
