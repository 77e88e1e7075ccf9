"""Builds fairseq's dictionary from a tokenizer, in the order of the tokenizer's ids.

fairseq puts ``<s> <pad> </s> <unk>`` before the lines of ``dict.txt``, sentencepiece puts ``<unk> <s> </s>`` before its
pieces. With the pieces in the same order, a fairseq id is the sentencepiece id + 1.
"""

import shutil
from pathlib import Path

from fairseq.data import Dictionary

from fairseq_clear import patches
from fairseq_clear.errors import UserError, one_line
from fairseq_clear.files import write_json
from fairseq_clear.libraries import quiet_transformers
from fairseq_clear.output_folder import scratch_folder
from fairseq_clear.text.sentence_folders import lower_cases
from fairseq_clear.text.tokenizers import (
    HF_NAMES,
    ROLES,
    Gpt2Tokenizer,
    HfTokenizer,
    SentencePieceTokenizer,
    read_special_tokens,
    special_token_files,
)

patches.apply()

SPM_NAME = "sentencepiece.bpe.model"  # fairseq's hub interface looks for this name
GPT2_NAMES = ("encoder.json", "vocab.bpe")
SPM_SPECIALS = ["<unk>", "<s>", "</s>"]
TASK_SYMBOLS = frozenset({"<pad>", "<mask>", "<del>"})  # fairseq and the task add these themselves


def install_hf_tokenizer(source: Path, folder: Path) -> list[str]:
    """Write a Hugging Face tokenizer's files into ``folder`` and return their names.

    transformers converts the files of a folder without tokenizer.json, such as DeBERTa's, or without the names of the special
    tokens.

    Raises:
        UserError: there is no tokenizer, or it has no token for a role that fairseq's vocabulary needs; or
            sentence-transformers puts texts into lower case and the tokenizer does not.
    """
    tokenizer_json, special_tokens = HF_NAMES
    if _is_complete(source):
        special = HfTokenizer.from_folder(source).special
        shutil.copyfile(source / tokenizer_json, folder / tokenizer_json)
    else:
        with quiet_transformers() as transformers:
            try:
                # With trust_remote_code False, transformers does not ask on the terminal whether to run a folder's code.
                options = {"local_files_only": True, "use_fast": True, "trust_remote_code": False}
                tokenizer = transformers.AutoTokenizer.from_pretrained(str(source), **options)
                content = tokenizer.backend_tokenizer.to_str()
            except Exception as error:  # of several libraries
                raise UserError(f"{source}: transformers cannot load a tokenizer from it ({one_line(error)})") from None
        special = {role: str(getattr(tokenizer, role)) for role in ROLES if getattr(tokenizer, role, None)}
        if missing := sorted(set(ROLES) - set(special)):
            raise UserError(f"{source}: its tokenizer has no {', '.join(missing)}, which fairseq's vocabulary needs")
        (folder / tokenizer_json).write_text(content, encoding="utf-8")
    write_json(folder / special_tokens, special)
    tokenizer = HfTokenizer.from_folder(folder)
    if lower_cases(source) and tokenizer.encode("A B") != tokenizer.encode("a b"):
        raise UserError(
            f"{source}: do_lower_case is true, but its tokenizer keeps capital letters; set it to false in "
            "sentence_bert_config.json, and put your texts into lower case yourself"
        )
    return list(HF_NAMES)


def read_hf_tokenizer(source: Path) -> HfTokenizer:
    """Read the tokenizer of a Hugging Face folder, see ``install_hf_tokenizer``."""
    if not source.is_dir():
        raise UserError(f"{source}: no such folder; give the folder with the tokenizer")
    if _is_complete(source):
        return HfTokenizer.from_folder(source)
    with scratch_folder() as made:
        install_hf_tokenizer(source, made)
        return HfTokenizer.from_folder(made)


def _is_complete(source: Path) -> bool:
    """Whether a folder has a tokenizer.json, and a file that names all special tokens."""
    return (source / HF_NAMES[0]).is_file() and bool(read_special_tokens(special_token_files(source), needed=False))


def load_dictionary(path: Path) -> Dictionary:
    """Load a ``dict.txt``; UserError if fairseq cannot read it."""
    try:
        return Dictionary.load(str(path))
    except Exception as error:  # fairseq raises OSError, ValueError, RuntimeError and bare Exception here
        raise UserError(f"{path}: not a dict.txt of fairseq: {' '.join(str(error).split())}") from None


def build_dictionary(tokenizer: SentencePieceTokenizer | Gpt2Tokenizer | HfTokenizer) -> Dictionary:
    """Return a dictionary of all symbols of a tokenizer, in the order of its ids, without special symbols.

    Counts are 0, but 1 for Hugging Face's symbols, because they are not counted later.

    Raises:
        UserError: a piece cannot be written to ``dict.txt`` or is a symbol of the task.
    """
    dictionary = Dictionary()
    for symbol in tokenizer.symbols():
        if "\n" in symbol or "\r" in symbol:
            raise UserError(f"{tokenizer.path}: piece {symbol!r} contains a line break, which dict.txt cannot store")
        if symbol in TASK_SYMBOLS or symbol in SPM_SPECIALS:
            raise UserError(
                f"{tokenizer.path}: piece {symbol!r} is a symbol that the task adds itself; use a model without it, or the "
                "--dict that belongs to this model"
            )
        dictionary.add_symbol(symbol, n=int(isinstance(tokenizer, HfTokenizer)))
    return dictionary
