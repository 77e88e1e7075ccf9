"""Hugging Face tokenizers behind the project's interface: symbols, words, text; the traps of real folders."""

import json
import pickle
from pathlib import Path

import pytest

pytest.importorskip("tokenizers", reason="optional, extra hf")

from fairseq_clear.errors import UserError  # noqa: E402
from fairseq_clear.text.synonym_files import find_word_starts  # noqa: E402
from fairseq_clear.text.tokenizers import HfTokenizer, read_special_tokens  # noqa: E402
from tests.interop.folders import byte_level, unigram, wordpiece, write_tokenizer  # noqa: E402

MAKERS = {"bert": wordpiece, "roberta": byte_level, "xlm-roberta": unigram}
TEXT = "bada kefe linu, moba"


@pytest.fixture(scope="module", params=list(MAKERS))
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> HfTokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(MAKERS[request.param](), folder, request.param)
    return HfTokenizer.from_folder(folder)


def symbols_of(tokenizer: HfTokenizer) -> list[str]:
    return ["<s>", "<pad>", "</s>", "<unk>", *tokenizer.symbols(), "<mask>", "<del>"]


def test_long_texts_are_neither_cut_nor_padded(tokenizer: HfTokenizer) -> None:
    # the files in these folders cut at 12 tokens and pad to as many, as those of sentence-transformers do
    assert len(tokenizer.encode(TEXT * 20)) > 12
    assert tokenizer.encode("") == []
    assert "<pad>" not in tokenizer.encode("ba")


def test_text_comes_back(tokenizer: HfTokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode(TEXT)).strip() == TEXT
    masked = ["<s>", *tokenizer.encode("bada"), "<mask>", *tokenizer.encode("linu"), "<del>", "</s>", "<pad>"]
    assert tokenizer.decode(masked).split() == ["bada", "<mask>", "linu", "<del>"]
    assert tokenizer.decode(["madeupword0000"]) == "madeupword0000"


def test_words_begin_where_spaces_are(tokenizer: HfTokenizer) -> None:
    symbols = symbols_of(tokenizer)
    is_start = dict(zip(symbols, find_word_starts(symbols[:-2], tokenizer), strict=False))
    words: list[list[str]] = []
    for symbol in tokenizer.encode(TEXT):
        if is_start[symbol] or not words:
            words.append([])
        words[-1].append(symbol)
    assert [tokenizer.decode(word).strip() for word in words] == ["bada", "kefe", "linu", ",", "moba"]


def test_special_tokens_have_fairseqs_names(tokenizer: HfTokenizer) -> None:
    ids = tokenizer.ids()
    assert {"<s>", "<pad>", "</s>", "<unk>", "<mask>"} <= set(ids)
    assert not set(tokenizer.symbols()) & {"<s>", "<pad>", "</s>", "<unk>", "<mask>", "[CLS]", "[MASK]"}
    assert [ids[symbol] for symbol in tokenizer.symbols()] == sorted(ids[symbol] for symbol in tokenizer.symbols())


def test_it_travels_to_data_workers(tokenizer: HfTokenizer) -> None:
    copy = pickle.loads(pickle.dumps(tokenizer))
    text = TEXT * 9 + tokenizer.special["mask_token"]
    assert copy.encode(text) == tokenizer.encode(text)
    assert "<mask>" not in copy.encode(text)


def test_files_that_are_wrong_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"missing, or without cls_token"):
        HfTokenizer.from_folder(_with_tokenizer(tmp_path / "none"))
    folder = _with_tokenizer(tmp_path / "part")
    (folder / "tokenizer_config.json").write_text(json.dumps({"cls_token": "[CLS]", "pad_token": {"content": "[PAD]"}}))
    with pytest.raises(UserError, match="without mask_token, sep_token, unk_token"):
        HfTokenizer.from_folder(folder)
    roles = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": {"content": "[PAD]"}, "unk_token": "[UNK]"}
    (folder / "special_tokens_map.json").write_text(json.dumps({**roles, "mask_token": "[NONE]"}))
    with pytest.raises(UserError, match=r"has no token '\[NONE\]', which the folder names as its mask_token"):
        HfTokenizer.from_folder(folder)
    (folder / "special_tokens_map.json").write_text("[1]")
    with pytest.raises(UserError, match=r"not a special_tokens_map.json"):
        read_special_tokens([folder / "special_tokens_map.json"])
    (folder / "tokenizer.json").write_text("{}")
    (folder / "special_tokens_map.json").write_text(json.dumps({**roles, "mask_token": "[MASK]"}))
    with pytest.raises(UserError, match=r"not a tokenizer.json"):
        HfTokenizer.from_folder(folder)


def _with_tokenizer(folder: Path) -> Path:
    folder.mkdir()
    wordpiece().save(str(folder / "tokenizer.json"))
    return folder
