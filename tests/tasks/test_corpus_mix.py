"""``--mix`` is parsed exactly; folders that do not match are a one-line error that says how to prepare them."""

import json
import shutil
from fractions import Fraction
from pathlib import Path

import pytest

from fairseq_clear.errors import UserError
from fairseq_clear.tasks.corpus_mix import Corpus, check_corpora, parse_mix


def test_corpora_and_weights_are_read_exactly() -> None:
    found = parse_mix("general:.1, news/2020:2. ,own:0.7", "own")
    assert found == [("own", Fraction(7, 10)), ("general", Fraction(1, 10)), ("news/2020", 2)]
    assert parse_mix("a:b:3,own:1", "own/")[1] == Corpus("a:b", Fraction(3))
    assert parse_mix("", "own") == []


@pytest.mark.parametrize(
    ("mix", "data", "said"),
    [
        ("general:0.2", "own", "does not name the data folder own; .* as in own:1,general:0.2$"),
        ("own:1", "own", "name two corpora or more"),
        ("own:1,general:1,./own:2", "own", "name two corpora or more, each once"),
        ("own:1,general:1", "own:shard1", "own:shard1 names several data folders; give one"),
        *(
            (f"own:1,{part}", "own", f"cannot read '{part}'; write FOLDER:WEIGHT")
            for part in ("general", "general:", ":1", "general:0", "general:0.0", "general:-1", "general:nan", "")
        ),
    ],
)
def test_what_cannot_be_read_is_one_line(mix: str, data: str, said: str) -> None:
    with pytest.raises(UserError, match=f"^--mix {mix}: {said}"):
        parse_mix(mix, data)


WORDS = [f"word{number} {number}" for number in range(9)]
FILES = {"sentencepiece": ["sentencepiece.bpe.model"], "gpt2": ["encoder.json", "vocab.bpe"], "hf": ["tokenizer.json"]}


def write_folder(folder: Path, kind: str | None, words: list[str] = WORDS, model: str = "model") -> Path:
    files = FILES.get(kind or "", [])
    folder.mkdir()
    (folder / "dict.txt").write_text("\n".join(words) + "\n")
    for name in files:
        (folder / name).write_text(model)
    if kind is not None:
        (folder / "clear.json").write_text(json.dumps({"format": 1, "tokenizer": {"kind": kind, "files": files}}))
    return folder


def checked(*folders: Path) -> None:
    check_corpora([Corpus(str(folder), Fraction(1)) for folder in folders])


CURES = {
    **dict.fromkeys(("sentencepiece", "gpt2", "hf"), "fairseq-clear prepare --tokenizer-dir {own}"),
    None: "fairseq-preprocess --srcdict {own}/dict.txt",
}


@pytest.mark.parametrize("kind", CURES)
def test_folders_of_another_vocabulary(kind: str | None, tmp_path: Path) -> None:
    own = write_folder(tmp_path / "own", kind)
    counts = write_folder(tmp_path / "counts", kind, [word.replace(" ", " 1") for word in WORDS])
    checked(own, own, counts)
    cure = CURES[kind].format(own=own)
    for name, words in (("short", WORDS[:-1]), ("swapped", [*WORDS[:4], WORDS[5], WORDS[4], *WORDS[6:]])):
        other = write_folder(tmp_path / name, kind, words)
        with pytest.raises(UserError) as error:
            checked(own, counts, other)
        told = f"--mix {other}: its dict.txt differs from the one in {own}; prepare its text again with {cure}"
        assert str(error.value) == told


def test_folders_of_another_tokenizer_or_that_cannot_be_mixed(tmp_path: Path) -> None:
    own = write_folder(tmp_path / "own", "sentencepiece")
    checked(own, write_folder(tmp_path / "unknown", None))
    for kind, said in (("hf", "hf, not sentencepiece"), ("sentencepiece", "sentencepiece.bpe.model")):
        with pytest.raises(UserError, match=rf"its tokenizer \({said}\) differs from the one in {own}; prepare"):
            checked(own, write_folder(tmp_path / kind, kind, model="x"))
    with pytest.raises(UserError, match=f"--mix {tmp_path / 'gone'}: there is no folder"):
        checked(own, tmp_path / "gone")
    sharded = write_folder(tmp_path / "sharded", "sentencepiece")
    shutil.copytree(sharded, sharded / "shard0"), write_folder(sharded / "shard1", "sentencepiece", WORDS[:-1])
    (sharded / "dict.txt").unlink()
    (sharded / "clear.json").write_text(json.dumps({"format": 1, "shards": ["shard0", "shard1"]}))
    with pytest.raises(UserError, match=f"--mix {sharded}/shard1: its dict.txt differs from the one in {own}"):
        checked(own, sharded)
    (own / "clear.json").write_text(json.dumps({"format": 1, "vocabulary_hash": "0"}))
    with pytest.raises(UserError, match=r"dict.txt: differs from the file that clear.json describes"):
        checked(write_folder(tmp_path / "first", "gpt2"), own)
