"""Checkpoints are written and read completely or not at all, and are never written with a NaN."""

import builtins
import errno
import io
import os
import resource
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_clear.errors import UserError
from fairseq_clear.patches import checkpoint_files
from fairseq_clear.patches.checkpoint_files import copy_whole, newest_whole, read_checkpoint, write_whole
from tests.faults.commands import run

STATE = {"model": {"weight": torch.arange(2000.0)}, "optimizer_history": [{"num_updates": 7}], "n": 1}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "last.pt").write_bytes(b"earlier")
    return tmp_path / "last.pt"


def is_alone(place: Path) -> bool:
    """Whether the earlier checkpoint is as it was, and nothing is beside it."""
    return place.read_bytes() == b"earlier" and list(place.parent.iterdir()) == [place]


def full(monkeypatch: pytest.MonkeyPatch, room: int, number: int) -> None:
    """Make writes of checkpoints fail after ``room`` bytes per file."""

    class Full(io.FileIO):
        def write(self, content: Any) -> int:
            if self.tell() + len(memoryview(content).cast("B")) > room:
                raise OSError(number, os.strerror(number))
            return super().write(content)

    stock = builtins.open

    def opened(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
        writes = "w" in mode and isinstance(file, int)  # files.write_whole opens its file by number
        return Full(file, "w", closefd=False) if writes else stock(file, mode, *args, **options)

    monkeypatch.setattr(builtins, "open", opened)


@pytest.mark.parametrize("room", [0, 100, 5000])
def test_a_full_disk_leaves_the_earlier_one(place: Path, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    slept: list[float] = []
    monkeypatch.setattr(checkpoint_files.time, "sleep", slept.append)
    full(monkeypatch, room, errno.ENOSPC)
    with pytest.raises(UserError, match="last.pt: cannot write it .No space left on device.; the checkpoints before"):
        write_whole(STATE, str(place))
    assert slept == [] and is_alone(place), "a full disk is not retried"
    write_whole(STATE, str(place.with_name("crash.pt")))  # the run already ends with another error
    assert is_alone(place)


def test_a_file_system_that_recovers_is_tried_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    def recover(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            monkeypatch.undo()

    monkeypatch.setattr(checkpoint_files.time, "sleep", recover)
    full(monkeypatch, 100, errno.EIO)
    write_whole(STATE, str(place))
    assert len(slept) == 2
    assert torch.equal(torch.load(place, weights_only=True)["model"]["weight"], STATE["model"]["weight"])  # type: ignore[index]


def test_a_file_size_limit(place: Path) -> None:
    """The kernel lets the process write files of at most 3,000 bytes."""

    def write() -> int:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
        with pytest.raises(UserError, match="File too large"):
            write_whole(STATE, str(place))
        return 0

    assert run(write, Path("/dev/null")) == 0 and is_alone(place)


def test_a_copy_is_whole_or_not_at_all(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = place.with_name("one.pt")
    source.write_bytes(b"newer")
    assert not copy_whole(str(source), str(place)) and place.read_bytes() == b"earlier"
    with monkeypatch.context() as patch, pytest.raises(UserError, match="one.pt is complete: free some space"):
        full(patch, 3, errno.ENOSPC)
        copy_whole(str(source), str(place), overwrite=True)
    assert place.read_bytes() == b"earlier"
    assert copy_whole(str(source), str(place), overwrite=True) and place.read_bytes() == b"newer"
    assert sorted(path.name for path in place.parent.iterdir()) == ["last.pt", "one.pt"]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_not_saved(place: Path, value: float) -> None:
    state = {**STATE, "model": {"count": torch.tensor(3), "weight": torch.tensor([1.0, value])}}
    with pytest.raises(UserError, match="update 7: weight is not finite any more, so .*last.pt is not written"):
        write_whole(state, str(place))
    assert place.read_bytes() == b"earlier"
    write_whole(state, str(place.with_name("crash.pt")))  # kept for debugging
    write_whole({"model": None}, str(place))


def test_a_truncated_checkpoint_is_an_error(checkpoint: Path, tmp_path: Path) -> None:
    whole = checkpoint.read_bytes()
    assert read_checkpoint(str(checkpoint))["optimizer_history"][-1]["num_updates"] == 4
    cut = tmp_path / "cut.pt"
    # a short one, whose end torch seeks before its beginning, is not "Invalid argument" either
    for length in (0, 1, 100, *range(5000, 65000, 5000), len(whole) // 2, len(whole) - 1):
        cut.write_bytes(whole[:length])
        with pytest.raises(UserError, match="cut.pt: not a complete checkpoint of fairseq-train"):
            read_checkpoint(str(cut))
    with pytest.raises(UserError, match=r"gone.pt: cannot read it \(No such file"):
        read_checkpoint(str(tmp_path / "gone.pt"))


def test_a_changed_bit_is_an_error(checkpoint: Path, tmp_path: Path) -> None:
    weights = torch.load(checkpoint, weights_only=True)["model"]
    name = "encoder.sentence_encoder.embed_tokens.weight"
    found = checkpoint.read_bytes().find(weights[name].numpy().tobytes())
    content = bytearray(checkpoint.read_bytes())
    content[found + 4003] ^= 0x40
    (tmp_path / "changed.pt").write_bytes(content)
    loaded = torch.load(tmp_path / "changed.pt", weights_only=True)["model"]
    assert not torch.equal(loaded[name], weights[name]), "the negative control: torch does not notice"
    with pytest.raises(UserError, match="changed.pt: not a complete checkpoint .*CRC"):
        read_checkpoint(str(tmp_path / "changed.pt"))


def test_the_newest_complete_checkpoint_is_found(tmp_path: Path) -> None:
    last = tmp_path / "checkpoint_last.pt"
    last.write_bytes(b"torn")
    assert newest_whole(str(last)) is None
    for when, name in enumerate(("checkpoint_1_5.pt", "checkpoint_1_10.pt", "crash.pt")):
        torch.save({}, tmp_path / name)
        os.utime(tmp_path / name, (when, when))
    (tmp_path / "checkpoint_1_15.pt").write_bytes(b"torn too")
    assert newest_whole(str(last)) == tmp_path / "checkpoint_1_10.pt"
