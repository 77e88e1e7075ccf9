"""Binarized text that is not whole is one line before training, whatever is missing of it."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from fairseq import tasks
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import MMapIndexedDataset, MMapIndexedDatasetBuilder

from fairseq_clear.errors import UserError
from fairseq_clear.text import mapped_files as data_files
from fairseq_clear.text.mapped_files import check_data_files
from tests.conftest import binarize
from tests.training import configuration, refuses

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(data_bin: Path, tmp_path: Path) -> Path:
    shutil.copytree(data_bin, tmp_path / "bin")
    return tmp_path / "bin"


def entries(folder: Path) -> int:
    return len(Dictionary.load(str(folder / "dict.txt")))


def highest(folder: Path) -> int:
    lines = MMapIndexedDataset(str(folder / "train"))
    return max(int(lines[index].max()) for index in range(len(lines)))


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def poke(path: Path, position: int, content: bytes) -> None:
    whole = bytearray(path.read_bytes())
    whole[position : position + len(content)] = content
    path.write_bytes(whole)


def test_whole_files_pass(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_data_files(str(folder / "train"), entries(folder))
    check_data_files(str(folder / "absent"), entries(folder))
    monkeypatch.setattr(data_files, "LINES", 10)  # in pieces
    monkeypatch.setattr(data_files, "IDS", 7)
    check_data_files(str(folder / "train"), entries(folder))
    check_data_files(str(folder / "train"), highest(folder) + 1)
    with pytest.raises(UserError, match="train.bin: holds the token id"):
        check_data_files(str(folder / "train"), highest(folder))


DAMAGES = {
    **{f"index of {size} bytes": ("idx", lambda _, path, n=size: cut(path, n)) for size in (0, 1, 8, 25, 500, -8, -1)},
    **{f"text of {size} bytes": ("bin", lambda _, path, n=size: cut(path, n)) for size in (0, 1, 1000, -1)},
    "text of other data": ("bin", lambda folder, path: shutil.copyfile(folder / "valid.bin", path)),
    "a size below 0": ("idx", lambda _, path: poke(path, 26, b"\xff\xff\xff\xff")),
    "a size": ("idx", lambda _, path: poke(path, 30, b"\x63\0\0\0")),
    "an address": ("idx", lambda _, path: poke(path, path.stat().st_size - 8, b"\0\0\0\0\0\0\0\0")),
    "the number of lines": ("idx", lambda _, path: poke(path, 18, b"\0")),
    "the type of the ids": ("idx", lambda _, path: poke(path, 17, b"\x77")),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_files(name: str, folder: Path) -> None:
    kind, damage = DAMAGES[name]
    damage(folder, folder / f"train.{kind}")
    with pytest.raises(UserError, match="train.idx: .*(not consecutive|cut off)|train.bin: .*(describes|other data)"):
        check_data_files(str(folder / "train"), entries(folder))


def test_ids_that_the_vocabulary_lacks(folder: Path) -> None:
    cut(folder / "dict.txt", (folder / "dict.txt").read_bytes().index(b"\n", 300) + 1)
    said = f"holds the token id {highest(folder)}, but dict.txt has {entries(folder)} entries"
    with pytest.raises(UserError, match=said):
        check_data_files(str(folder / "train"), entries(folder))


def test_files_that_are_read_together(folder: Path) -> None:
    for name in ("bin", "idx"):
        shutil.copyfile(folder / f"train.{name}", folder / f"train1.{name}")
    cut(folder / "train1.bin", 10)
    check_data_files(str(folder / "train"), entries(folder))
    with pytest.raises(UserError, match="train1.bin: 10 bytes"):
        check_data_files(str(folder / "train"), entries(folder), combine=True)


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.int64, np.uint8])
def test_every_type_of_ids(tmp_path: Path, dtype: type) -> None:
    for name, items in (("a", ([5, 2], [2], [7, 9, 2])), ("empty", ())):
        builder = MMapIndexedDatasetBuilder(str(tmp_path / f"{name}.bin"), dtype=dtype)
        for item in items:
            builder.add_item(torch.IntTensor(item))
        builder.finalize(str(tmp_path / f"{name}.idx"))
    check_data_files(str(tmp_path / "a"), 10)
    for name, said in (("a", "token id 9"), ("empty", "empty.idx: holds no line; make the data folder again")):
        with pytest.raises(UserError, match=said):
            check_data_files(str(tmp_path / name), 9)


def load(folder: Path | str, *flags: str) -> None:
    tasks.setup_task(configuration(folder, *flags).task).load_dataset("train")


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda f: cut(f / "train.bin", -1), "train.bin: "),
        (lambda f: cut(f / "train.idx", -1), "train.idx: "),
        (lambda f: poke(f / "train.idx", 0, b"TNTIDX"), "train.idx: is not memory-mapped; "),
        (lambda f: cut(f / "dict.txt", (f / "dict.txt").read_bytes().index(b"\n", 300) + 1), "token id"),
        (lambda f: cut(f / "dict.txt", (f / "dict.txt").read_bytes().index(b" ", 300)), "dict.txt: cut off or damaged"),
        (lambda f: (f / "dict.txt").write_bytes(b"\xff\xfe\0"), "dict.txt: cut off or damaged"),
        (lambda f: (f / "clear.json").write_text('{"format": 1, "vocabulary_hash": "0123"}'), ", not 0123): cut"),
    ],
    ids=["bin", "idx", "lazy", "dict", "dict within a line", "dict of bytes", "dict of another folder"],
)
def test_training_does_not_begin(folder, damage, told, caplog) -> None:
    damage(folder)
    refuses(caplog, told, folder, of=load)


def test_several_folders_are_checked_at_the_start(folder: Path, tmp_path: Path, caplog) -> None:
    other = Path(shutil.copytree(folder, tmp_path / "other"))
    load(Path(f"{folder}:{other}"))
    (other / "dict.txt").write_text("".join(reversed((other / "dict.txt").read_text().splitlines(keepends=True))))
    refuses(caplog, "other: its dict.txt differs from the one in", f"{folder}:{other}", of=load)
    refuses(caplog, "gone: no such folder", f"{folder}:{tmp_path / 'gone'}", of=load)


@pytest.mark.parametrize("flags", [("--views", "neighbor"), ("--sample-break-mode", "complete")])
def test_whatever_reads_the_text(folder: Path, flags: tuple[str, ...], caplog: pytest.LogCaptureFixture) -> None:
    load(folder, *flags)
    cut(folder / "train.bin", -1)
    refuses(caplog, "cut off, or of other data", folder, *flags, of=load)


def test_fairseq_would_have_begun(folder: Path) -> None:
    """The negative control: the last line is missing, and nothing says so until it is read."""
    cut(folder / "train.bin", -1)
    lines = MMapIndexedDataset(str(folder / "train"))
    assert len(lines[0]) > 1
    with pytest.raises(ValueError, match="buffer"):
        lines[len(lines) - 1]


@pytest.mark.parametrize("symbols", [("a", "<mask>"), ("<mask>", "a"), ("a",)])
def test_a_vocabulary_may_hold_the_mask(symbols: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("".join(f"{symbol} 1\n" for symbol in symbols))
    data = binarize(tmp_path / "data", tmp_path / "words.txt", train=["a a"], valid=[" ".join(symbols)])
    task = tasks.setup_task(configuration(data).task)
    task.load_dataset("valid")
    assert task.text_entries == 4 + len(symbols)
