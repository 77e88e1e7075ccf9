"""The dictionary of a tokenizer, in the tokenizer's own order.

fairseq puts ``<s> <pad> </s> <unk>`` before ``dict.txt``, sentencepiece puts ``<unk> <s> </s>`` before its pieces.
With the pieces in the same order, a fairseq id is the sentencepiece id + 1.
"""

import json
import shutil
from pathlib import Path

from fairseq.data import Dictionary

from fairseq_clear import patches
from fairseq_clear.errors import UserError
from fairseq_clear.text.hf_tokenizer import HF_NAMES, HfTokenizer
from fairseq_clear.text.tokenizers import Gpt2Tokenizer, SentencePieceTokenizer, Tokenizer

patches.apply()

__all__ = ["GPT2_NAMES", "SPM_NAME", "build_dictionary", "install_hf_tokenizer", "keeps_mapping", "load_dictionary"]

SPM_NAME = "sentencepiece.bpe.model"  # the name under which fairseq's hub interface finds it
GPT2_NAMES = ("encoder.json", "vocab.bpe")
SPM_SPECIALS = ["<unk>", "<s>", "</s>"]
TASK_SYMBOLS = frozenset({"<pad>", "<mask>", "<del>"})  # fairseq and the task add these themselves


def install_hf_tokenizer(source: Path, folder: Path) -> list[str]:
    """Put a Hugging Face tokenizer's files into ``folder``; return their names."""
    tokenizer_json, special_tokens = HF_NAMES
    special = HfTokenizer.from_folder(source).special
    shutil.copyfile(source / tokenizer_json, folder / tokenizer_json)
    (folder / special_tokens).write_text(json.dumps(special, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    return list(HF_NAMES)


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
    if isinstance(tokenizer, HfTokenizer):
        path, symbols = tokenizer.path, tokenizer.symbols()
    else:
        path, symbols = tokenizer.model_path, tokenizer.pieces()
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
