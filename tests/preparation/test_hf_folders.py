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
    assert clear["tokenizer"] == {
        "kind": "hf", "files": ["tokenizer.json", "special_tokens_map.json"], "id_offset": None,
    }  # fmt: skip
    tokenizer = load_tokenizer(tmp_path / "bin")
    dictionary = load_dictionary(tmp_path / "bin" / "dict.txt")
    splits = [load_indexed_dataset(str(tmp_path / "bin" / split)) for split in ("train", "valid")]
    stored = {tuple(split[index].tolist()) for split in splits for index in range(len(split))}
    expected = {(*(dictionary.index(symbol) for symbol in tokenizer.encode(line)), 2) for line in lines}
    assert stored == expected


def test_aligned_texts_have_its_ids_too(folder: Path, tmp_path: Path) -> None:
    lines = sentences(30, seed=1)
    others = [" ".join(reversed(line.split())) for line in lines]
    for name, texts in (("text", lines), ("de", others)):
        (tmp_path / f"{name}.txt").write_text("\n".join(texts) + "\n")
    flags = ("--paraphrase", f"de={tmp_path / 'de.txt'}", "--tokenizer-dir", folder)
    assert prepare(tmp_path / "text.txt", tmp_path / "bin", *flags) == 0
    tokenizer, dictionary = load_tokenizer(tmp_path / "bin"), load_dictionary(tmp_path / "bin" / "dict.txt")
    wanted = {
        tuple(dictionary.index(symbol) for symbol in tokenizer.encode(line)): [
            *(dictionary.index(symbol) for symbol in tokenizer.encode(other)), 2
        ]
        for line, other in zip(lines, others, strict=True)
    }  # fmt: skip
    for split in ("train", "valid"):
        own, aligned = (load_indexed_dataset(str(tmp_path / "bin" / part / split)) for part in (".", "paraphrase/de"))
        assert len(own) == len(aligned) > 0
        assert all(aligned[n].tolist() == wanted[tuple(own[n].tolist()[:-1])] for n in range(len(own)))


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


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--tokenizer-dir", "x", "--spm-model", "y"], "--tokenizer-dir"),
        (["--gpt2-encoder-json", "x", "--spm-model", "y"], "--gpt2-encoder-json"),
        (["--gpt2-encoder-json", "x"], "--gpt2-vocab-bpe"),
        (["--tokenizer-dir", "nowhere"], "nowhere"),
    ],
)
def test_flags_that_contradict(
    flags: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.txt").write_text("\n".join(sentences(20, seed=1)) + "\n")
    try:
        status = prepare(tmp_path / "text.txt", tmp_path / "bin", *flags)
    except SystemExit as ended:  # of argparse
        status = ended.code
    assert status == 2 and message in capsys.readouterr().err
    assert not (tmp_path / "bin").exists()


def test_a_vocabulary_that_dict_txt_cannot_hold(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = json.loads((folder / "tokenizer.json").read_text())
    for token, message in (("a\nb", "line break"), ("<del>", "the task adds itself")):
        vocabulary = {**content["model"]["vocab"], token: len(content["model"]["vocab"])}
        changed = {**content, "model": {**content["model"], "vocab": vocabulary}}
        (folder / "tokenizer.json").write_text(json.dumps(changed))
        (tmp_path / "text.txt").write_text("\n".join(sentences(20, seed=1)) + "\n")
        assert prepare(tmp_path / "text.txt", tmp_path / "bin", "--tokenizer-dir", folder) == 2
        assert message in capsys.readouterr().err
