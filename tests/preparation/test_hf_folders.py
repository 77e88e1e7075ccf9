"""``prepare --tokenizer-dir``: the vocabulary of the checkpoint, whatever the text."""

import json
from pathlib import Path

import pytest

pytest.importorskip("tokenizers", reason="optional, extra hf")

from fairseq.data.data_utils import load_indexed_dataset  # noqa: E402

from fairseq_clear.cli.main import main  # noqa: E402
from fairseq_clear.text.data_folders import load_tokenizer
from fairseq_clear.text.vocabulary import load_dictionary
from tests.conftest import sentences  # noqa: E402
from tests.interop.folders import wordpiece, write_tokenizer  # noqa: E402


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "hf").mkdir()
    write_tokenizer(wordpiece(), tmp_path / "hf", "bert")
    return tmp_path / "hf"


def prepare(text: Path, dest: Path, *flags: str | Path) -> int:
    return main(["prepare", str(text), "--dest", str(dest), "--workers", "2", *map(str, flags)])


def test_lines_are_binarized_with_it(folder: Path, tmp_path: Path) -> None:
    lines = [*sentences(60, seed=1), "", "A Caf\u00e9 \u4e2d [SEP]!"]
    (tmp_path / "text.txt").write_text("\n".join(lines) + "\n")
    assert prepare(tmp_path / "text.txt", tmp_path / "bin", "--tokenizer-dir", folder) == 0
    clear = json.loads((tmp_path / "bin" / "clear.json").read_text())
    assert clear["tokenizer"] == {"kind": "hf", "files": ["tokenizer.json", "special_tokens_map.json"]}
    tokenizer = load_tokenizer(tmp_path / "bin")
    dictionary = load_dictionary(tmp_path / "bin" / "dict.txt")
    splits = [load_indexed_dataset(str(tmp_path / "bin" / split)) for split in ("train", "valid")]
    stored = {tuple(split[index].tolist()) for split in splits for index in range(len(split))}
    expected = {(*(dictionary.index(symbol) for symbol in tokenizer.encode(line)), 2) for line in lines}
    assert stored == expected


def test_the_dictionary_does_not_depend_on_the_text(folder: Path, tmp_path: Path) -> None:
    for seed in (1, 2):
        (tmp_path / f"{seed}.txt").write_text("\n".join(sentences(60, seed=seed)) + "\n")
        assert prepare(tmp_path / f"{seed}.txt", tmp_path / f"bin{seed}", "--tokenizer-dir", folder) == 0
    one, two = ((tmp_path / f"bin{seed}" / "dict.txt").read_bytes() for seed in (1, 2))
    assert one == two
    (folder / "dict.txt").write_bytes(b"\n".join(reversed(one.splitlines())) + b"\n")
    assert prepare(tmp_path / "1.txt", tmp_path / "kept", "--tokenizer-dir", folder) == 0
    assert (tmp_path / "kept" / "dict.txt").read_bytes() == (folder / "dict.txt").read_bytes() != one
    (folder / "dict.txt").write_text("strange 1\n")
    assert prepare(tmp_path / "1.txt", tmp_path / "none", "--tokenizer-dir", folder) == 2
    assert not (tmp_path / "none").exists()
