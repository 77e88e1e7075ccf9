"""Tokenizers: text to symbols and back, loading from a data folder, pickling."""

import json
import os
import pickle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_clear.errors import UserError
from fairseq_clear.text.data_folders import data_folders, load_tokenizer
from fairseq_clear.text.synonym_files import find_word_starts
from fairseq_clear.text.tokenizers import (
    Gpt2Tokenizer,
    HfTokenizer,
    SentencePieceTokenizer,
    WhitespaceTokenizer,
)
from tests.interop.folders import byte_level, needs, unigram, wordpiece, write_tokenizer
from tests.preparation.corpora import gpt2_files, sentencepiece_model

TEXTS = ["the cat sat on the mat .", "Ｆｕｌｌ width, caf\u00e9  and \U0001f600", "a\u00a0b", "<s> <mask> </s>", "x"]


@pytest.fixture(scope="module")
def spm_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sentencepiece_model(tmp_path_factory.mktemp("spm") / "m.model")


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Gpt2Tokenizer:
    return Gpt2Tokenizer(*gpt2_files(tmp_path_factory.mktemp("gpt2")))


@pytest.mark.parametrize("text", TEXTS)
def test_sentencepiece_round_trip_is_its_normalisation(spm_file: Path, text: str) -> None:
    from sentencepiece import SentencePieceProcessor

    tokenizer = SentencePieceTokenizer(spm_file)
    normal = SentencePieceProcessor(model_file=str(spm_file)).Normalize(text)
    assert tokenizer.decode(tokenizer.encode(text)) == normal.replace("\u2581", " ").strip(" ")


@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=30) | st.just(" the "))
def test_gpt2_round_trip_is_exact(gpt2: Gpt2Tokenizer, text: str) -> None:
    assert gpt2.decode(gpt2.encode(text)) == text


def test_gpt2_merges_are_applied_and_its_cache_is_bounded(gpt2: Gpt2Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(gpt2.encode("the the")) == 2  # "the" and " the" are merges of the fixture
    assert len(gpt2.encode("xqz")) == 3
    monkeypatch.setattr("fairseq_clear.text.tokenizers.GPT2_CACHE_WORDS", 3)
    for word in range(50):
        gpt2.encode(f"word{word}")
    assert len(gpt2._encoder.cache) <= 6


def test_special_symbols_word_starts_and_pickles(spm_file: Path, gpt2: Gpt2Tokenizer) -> None:
    tokenizer = SentencePieceTokenizer(spm_file)
    for one in (tokenizer, gpt2, WhitespaceTokenizer()):
        symbols = ["<s>", *one.encode("the cat"), "<del>", *one.encode("the mat"), "<mask>", "<unk>", "</s>", "<pad>"]
        assert one.decode(symbols) == "the cat <del> the mat <mask> <unk>" and one.decode([]) == ""
        starts = list(map(one.is_word_start, one.encode(" the unseenword mat")))
        assert starts[0] and sum(starts) == 3 <= len(starts)
        assert one.is_word_start("<mask>") and one.is_word_start("<unk>")
        assert pickle.loads(pickle.dumps(one)).encode("the cat") == one.encode("the cat") != []
    assert not tokenizer.is_word_start("<0x41>")
    assert not gpt2.is_word_start(gpt2.encode("the")[0])


def describe(folder: Path, **tokenizer: object) -> Path:
    (folder / "clear.json").write_text(json.dumps({"format": 1, "tokenizer": tokenizer}))
    return folder


def test_load_tokenizer_by_kind(tmp_path: Path, spm_file: Path) -> None:
    (tmp_path / "a.model").write_bytes(spm_file.read_bytes())
    loaded = load_tokenizer(describe(tmp_path, kind="sentencepiece", files=["a.model"]))
    assert isinstance(loaded, SentencePieceTokenizer)
    gpt2_files(tmp_path)
    names = ["encoder.json", "vocab.bpe"]
    assert isinstance(load_tokenizer(describe(tmp_path, kind="gpt2", files=names)), Gpt2Tokenizer)
    assert isinstance(load_tokenizer(describe(tmp_path, kind="none", files=[])), WhitespaceTokenizer)
    assert isinstance(load_tokenizer(f"{tmp_path}:/nowhere"), WhitespaceTokenizer)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not valid JSON"),
        ("[]", "holds a list, not a dict"),
        ('{"format": 2}', "format 2"),
        ('{"format": 1}', "kind None is unknown"),
        ('{"format": 1, "tokenizer": {"kind": "magic"}}', "known: sentencepiece, gpt2, hf, none"),
        ('{"format": 1, "tokenizer": {"kind": "sentencepiece", "files": ["gone"]}}', "gone: cannot read"),
        ('{"format": 1, "tokenizer": {"kind": "gpt2", "files": ["encoder.json"]}}', "are not the files of a tokenizer"),
        ('{"format": 1, "tokenizer": {"kind": "sentencepiece", "files": "a"}}', "are not the files of a tokenizer"),
        ('{"format": 1, "tokenizer": {"kind": "sentencepiece", "files": null}}', "are not the files of a tokenizer"),
        ('{"format": 1, "shards": 3, "tokenizer": {"kind": ["gpt2"], "files": []}}', "kind .* is unknown"),
    ],
)
def test_broken_clear_json(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "clear.json").write_text(content)
    with pytest.raises(UserError, match=message):
        load_tokenizer(tmp_path)


def test_missing_folder_and_wrong_files(tmp_path: Path) -> None:
    junk, nested, gone = (tmp_path / name for name in ("junk", "nested", "gone"))
    junk.write_bytes(b"junk" * 9)
    nested.write_text("[" * 100_000)
    for kind, files, said in (
        (load_tokenizer, [gone], "no such folder"),
        (SentencePieceTokenizer, [junk], "not a sentencepiece model"),
        (Gpt2Tokenizer, [junk, junk], "not GPT-2's encoder.json"),
        (Gpt2Tokenizer, [nested, junk], "not GPT-2's encoder.json"),
        (Gpt2Tokenizer, [gone, junk], "gone, .*: not GPT-2's .*FileNotFoundError"),
    ):
        with pytest.raises(UserError, match=said):
            kind(*files)  # type: ignore[operator]


def test_one_several_and_shards(tmp_path: Path) -> None:
    for name in ("a", "b", "both/shard0", "both/shard1", "empty"):
        (tmp_path / name).mkdir(parents=True)
        if name != "empty":
            (tmp_path / name / "dict.txt").write_text("word 1\n")
    a, b, both = (tmp_path / name for name in ("a", "b", "both"))
    (both / "clear.json").write_text(json.dumps({"format": 1, "shards": ["shard0", "shard1"]}))
    shards = [both / "shard0", both / "shard1"]
    assert data_folders(a) == data_folders(str(a)) == [a]
    assert data_folders(f"{b}{os.pathsep}{a}") == [b, a]
    assert data_folders(both) == shards
    assert data_folders(f"{both}{os.pathsep}{a}") == [*shards, a]
    for name, said in (("absent", "there is no folder"), ("empty", "has no dict.txt")):
        for data in (tmp_path / name, f"{a}{os.pathsep}{tmp_path}/{name}"):
            with pytest.raises(UserError, match=f"--data-bin .*{said}.*fairseq-clear prepare"):
                data_folders(data)


# Hugging Face: symbols, words, text; the traps of real folders

MAKERS = {"bert": wordpiece, "roberta": byte_level, "xlm-roberta": unigram}
LINE = "bada kefe linu, moba"


@pytest.fixture(scope="module", params=list(MAKERS))
def hf(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> HfTokenizer:
    pytest.importorskip("tokenizers", reason="optional, extra hf")
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(MAKERS[request.param](), folder, request.param)
    return HfTokenizer.from_folder(folder)


def test_text_comes_back_and_long_ones_are_neither_cut_nor_padded(hf: HfTokenizer) -> None:
    # the files in these folders cut at 12 tokens and pad to as many, as those of sentence-transformers do
    assert len(hf.encode(LINE * 20)) > 12 and hf.encode("") == [] and "<pad>" not in hf.encode("ba")
    assert hf.decode(hf.encode(LINE)).strip() == LINE
    masked = ["<s>", *hf.encode("bada"), "<mask>", *hf.encode("linu"), "<del>", "</s>", "<pad>"]
    assert hf.decode(masked).split() == ["bada", "<mask>", "linu", "<del>"]
    assert hf.decode(["madeupword0000"]) == "madeupword0000"


def test_words_begin_where_spaces_are(hf: HfTokenizer) -> None:
    symbols = ["<s>", "<pad>", "</s>", "<unk>", *hf.symbols()]
    is_start = dict(zip(symbols, find_word_starts(symbols, hf), strict=True))
    words: list[list[str]] = []
    for symbol in hf.encode(LINE):
        if is_start[symbol] or not words:
            words.append([])
        words[-1].append(symbol)
    assert [hf.decode(word).strip() for word in words] == ["bada", "kefe", "linu", ",", "moba"]


def test_symbols_that_say_where_words_end(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="optional, extra hf")
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    made = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=60, special_tokens=special, end_of_word_suffix="</w>", show_progress=False
    )
    made.train_from_iterator([LINE] * 9, trainer)
    write_tokenizer(made, tmp_path, "roberta")
    hf = HfTokenizer.from_folder(tmp_path)
    assert hf.encode("bada") == ["bada</w>"]
    with pytest.raises(UserError, match="say where words end"):
        find_word_starts(["<s>", "<pad>", "</s>", "<unk>", *hf.symbols()], hf)


def test_special_tokens_have_fairseqs_names(hf: HfTokenizer) -> None:
    ids = hf.ids()
    assert {"<s>", "<pad>", "</s>", "<unk>", "<mask>"} <= set(ids)
    assert not set(hf.symbols()) & {"<s>", "<pad>", "</s>", "<unk>", "<mask>", "[CLS]", "[MASK]"}
    assert [ids[symbol] for symbol in hf.symbols()] == sorted(ids[symbol] for symbol in hf.symbols())


def test_all_texts_at_once_and_in_data_workers_are_the_same(hf: HfTokenizer) -> None:
    texts = ["", LINE * 20, "ba", *LINE.split(), hf.special["mask_token"], "\u2028 \ud7ff\U0001f600"]
    alone = [hf.encode(text) for text in texts]
    assert hf.encode_all(texts * 200) == alone * 200 and hf.encode_all([]) == []
    assert list(map(pickle.loads(pickle.dumps(hf)).encode, texts)) == alone
    assert "<mask>" not in hf.encode(LINE + hf.special["mask_token"])


@needs("tokenizers")
def test_files_that_are_wrong_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"missing, or without cls_token"):
        HfTokenizer.from_folder(_with_tokenizer(tmp_path / "none"))
    folder = _with_tokenizer(tmp_path / "part")
    (folder / "tokenizer_config.json").write_text(json.dumps({"cls_token": "[CLS]", "pad_token": {"content": "[PAD]"}}))
    names = folder / "special_tokens_map.json"
    roles = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": {"content": "[PAD]"}, "unk_token": "[UNK]"}
    for content, said in (
        ("{}", "without mask_token, sep_token, unk_token"),
        (
            json.dumps({**roles, "mask_token": "[NONE]"}),
            r"has no token '\[NONE\]', which the folder names as its mask_",
        ),
        *((broken, "not a special_tokens_map.json") for broken in ("[1]", "[" * 100_000)),
    ):
        names.write_text(content)
        with pytest.raises(UserError, match=said):
            HfTokenizer.from_folder(folder)
    (folder / "tokenizer.json").write_text("{}")
    names.write_text(json.dumps({**roles, "mask_token": "[MASK]"}))
    with pytest.raises(UserError, match=r"not a tokenizer.json"):
        HfTokenizer.from_folder(folder)


def _with_tokenizer(folder: Path) -> Path:
    folder.mkdir()
    wordpiece().save(str(folder / "tokenizer.json"))
    return folder
