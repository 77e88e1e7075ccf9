"""Tokenizers: text to symbols and back, loading from a data folder, pickling."""

import io
import json
import os
import pickle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_clear.errors import UserError
from fairseq_clear.text.data_folders import data_folders, load_tokenizer
from fairseq_clear.text.tokenizers import Gpt2Tokenizer, SentencePieceTokenizer, WhitespaceTokenizer
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
    assert tokenizer.decode(tokenizer.encode(text)) == SentencePieceProcessor(model_file=str(spm_file)).Normalize(
        text
    ).replace("\u2581", " ").strip(" ")


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


@pytest.mark.parametrize("kind", ["sentencepiece", "gpt2", "whitespace"])
def test_special_symbols_in_decoded_text(kind: str, spm_file: Path, gpt2: Gpt2Tokenizer) -> None:
    tokenizer = {"sentencepiece": SentencePieceTokenizer(spm_file), "gpt2": gpt2, "whitespace": WhitespaceTokenizer()}
    chosen = tokenizer[kind]
    symbols = ["<s>", *chosen.encode("the cat"), "<del>", *chosen.encode("the mat"), "<mask>", "<unk>", "</s>", "<pad>"]
    assert chosen.decode(symbols) == "the cat <del> the mat <mask> <unk>"
    assert chosen.decode([]) == ""


def test_word_starts(spm_file: Path, gpt2: Gpt2Tokenizer) -> None:
    tokenizer = SentencePieceTokenizer(spm_file)
    for chosen in (tokenizer, gpt2, WhitespaceTokenizer()):
        symbols = chosen.encode(" the unseenword mat")
        starts = [chosen.is_word_start(symbol) for symbol in symbols]
        assert starts[0]
        assert sum(starts) == 3 and len(symbols) >= 3
        assert chosen.is_word_start("<mask>") and chosen.is_word_start("<unk>")
    assert not tokenizer.is_word_start("<0x41>")
    assert not gpt2.is_word_start(gpt2.encode("the")[0])


def test_all_are_picklable(spm_file: Path, gpt2: Gpt2Tokenizer) -> None:
    for tokenizer in (SentencePieceTokenizer(spm_file), gpt2, WhitespaceTokenizer()):
        copy = pickle.loads(pickle.dumps(tokenizer))
        assert copy.encode("the cat") == tokenizer.encode("the cat") != []


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
    ],
)
def test_broken_clear_json(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "clear.json").write_text(content)
    with pytest.raises(UserError, match=message):
        load_tokenizer(tmp_path)


def test_missing_folder_and_wrong_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such folder"):
        load_tokenizer(tmp_path / "none")
    (tmp_path / "junk").write_bytes(io.BytesIO(b"junk" * 9).getvalue())
    with pytest.raises(UserError, match="not a sentencepiece model"):
        SentencePieceTokenizer(tmp_path / "junk")
    with pytest.raises(UserError, match="not GPT-2's encoder.json"):
        Gpt2Tokenizer(tmp_path / "junk", tmp_path / "junk")
    with pytest.raises(UserError, match="gone, .*: not GPT-2's .*FileNotFoundError"):
        Gpt2Tokenizer(tmp_path / "gone", tmp_path / "junk")


@pytest.fixture
def root(tmp_path):
    for name in ("a", "b", "both/shard0", "both/shard1", "empty"):
        (tmp_path / name).mkdir(parents=True)
        if name != "empty":
            (tmp_path / name / "dict.txt").write_text("word 1\n")
    (tmp_path / "both" / "clear.json").write_text(json.dumps({"format": 1, "shards": ["shard0", "shard1"]}))
    return tmp_path


def test_one_several_and_shards(root):
    shards = [root / "both" / "shard0", root / "both" / "shard1"]
    assert data_folders(root / "a") == data_folders(str(root / "a")) == [root / "a"]
    assert data_folders(f"{root}/b{os.pathsep}{root}/a") == [root / "b", root / "a"]
    assert data_folders(root / "both") == shards
    assert data_folders(f"{root}/both{os.pathsep}{root}/a") == [*shards, root / "a"]


@pytest.mark.parametrize(("name", "message"), [("absent", "there is no folder"), ("empty", "has no dict.txt")])
def test_folders_that_are_none(root, name, message):
    for data in (root / name, f"{root}/a{os.pathsep}{root}/{name}"):
        with pytest.raises(UserError, match=f"--data-bin .*{message}.*fairseq-clear prepare"):
            data_folders(data)
