"""A full disk: every command ends with a one-line error and leaves no incomplete output."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import WORDS, run, sentences
from tests.faults import commands
from tests.interop.folders import make_sentence_folder
from tests.preparation.back_translation.archives import make_archive
from tests.preparation.corpora import write_corpus

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("mount") is None, reason="mounting a small disk needs root"),
]
SIZE = 1 << 22
UNSCORED = "--disable-validation"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "none", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a small disk is not allowed here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill(disk: Path, left: int) -> None:
    """Fill the disk except for ``left`` bytes."""
    (disk / "filler").write_bytes(b"x" * (SIZE - left))


def last_line(log: Path) -> str:
    text = log.read_text()
    assert "Traceback" not in text, text[-3000:]
    return text.splitlines()[-1]


def made_on(disk: Path) -> list[str]:
    return sorted(str(path.relative_to(disk)) for path in disk.rglob("*") if path.name != "filler")


def arguments_of(what: str, base: Path, made: Path) -> list[object]:
    """The command line that makes a path."""
    if what == "prepare":
        text = write_corpus(base / "corpus.txt", 60)
        return ["prepare", text, "--dest", made, "--vocab-size", 300, "--workers", 2]
    for source, target in (("en", "de"), ("de", "en")):
        make_archive(base / f"{source}-{target}", source, target)
    text = base / "text"
    text.write_text("".join(f"the cat sat {number} .\n" for number in range(24)))
    models = ["--forward", base / "en-de", "--backward", base / "de-en", "--chunk-lines", 4]
    return ["back-translate", "--input", text, "--output", made, *models, "--max-len-b", 10]


@pytest.mark.parametrize("what", ["prepare", "back-translate"])
def test_preparation(what: str, disk: Path, tmp_path: Path) -> None:
    arguments = arguments_of(what, tmp_path, disk / "made")
    fill(disk, 4096 if what == "prepare" else 0)
    assert commands.run(lambda: commands.fairseq_clear_command(*arguments), tmp_path / "log") == 2
    assert "No space left on device" in last_line(tmp_path / "log")
    assert not (disk / "made").exists()
    (disk / "filler").unlink()
    assert commands.run(lambda: commands.fairseq_clear_command(*arguments), tmp_path / "log") == 0
    assert (disk / "made").exists() and not [name for name in made_on(disk) if "partial" in name]


@pytest.mark.parametrize("command", ["embed", "export fairseq", "export hf"])
def test_embed_and_export(command: str, disk: Path, checkpoint: Path, data_bin: Path, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("".join(f"{WORDS[number % 60]} {WORDS[number % 7]}\n" for number in range(300)))
    data = ["--data-bin", data_bin, "--tokenizer", "whitespace"]
    name, _, form = command.partition(" ")
    if name == "embed":
        arguments = ["embed", text, "--checkpoint", checkpoint, "--output", disk / "made.npy", *data]
    else:
        if form == "hf":
            pytest.importorskip("transformers")
        arguments = ["export", checkpoint, "--format", form, "--dest", disk / "made", *data]
    fill(disk, 8192)
    assert commands.run(lambda: commands.fairseq_clear_command(*arguments), tmp_path / "log") == 2
    assert "No space left on device" in last_line(tmp_path / "log") or "cannot write" in last_line(tmp_path / "log")
    assert made_on(disk) == []


def test_refine(disk: Path, tmp_path: Path) -> None:
    """The run goes on where the disk has more space."""
    make_sentence_folder(tmp_path / "tiny", "bert")
    (tmp_path / "text.txt").write_text("\n".join(sentences(560, seed=5)) + "\n")
    flags = "--updates 6 --max-length 36 --device cpu --lr 0.01 --batch-size 32".split()
    command = [sys.executable, "-m", "fairseq_clear.cli", "refine", tmp_path / "text.txt", "--from", tmp_path / "tiny"]
    for left in (1 << 20, 3 << 19):
        fill(disk, left)
        full = run(*command, "--dest", disk / "out", *flags, check=False)
        assert full.returncode == 2 and "Traceback" not in full.stderr, full.stderr
        assert "No space left on device" in full.stderr.strip().splitlines()[-1] and not (disk / "out").exists()
    (disk / "filler").unlink()
    run(*command, "--dest", disk / "out", *flags)
    assert (disk / "out/report.md").exists()


def test_training(disk: Path, data_bin: Path, tmp_path: Path) -> None:
    """The disk fills up in the second save: the first checkpoint is complete, and the run resumes from it on a larger disk."""
    folder = disk / "run"
    assert commands.run(lambda: commands.fairseq_train(data_bin, tmp_path / "whole", UNSCORED), tmp_path / "log") == 0
    fill(disk, int(2.5 * (tmp_path / "whole" / "checkpoint_last.pt").stat().st_size))
    assert commands.run(lambda: commands.fairseq_train(data_bin, folder, UNSCORED), tmp_path / "full") == 2
    assert "cannot write it (No space left on device)" in last_line(tmp_path / "full")
    assert made_on(disk) == ["run", "run/checkpoint_1_3.pt", "run/checkpoint_last.pt"]
    assert commands.state_of(folder / "checkpoint_last.pt")["updates"] == 3
    (disk / "filler").unlink()
    more = shutil.copytree(folder, tmp_path / "more")  # a larger disk
    assert commands.run(lambda: commands.fairseq_train(data_bin, more, UNSCORED), tmp_path / "log") == 0
    ended = [commands.state_of(place / "checkpoint_last.pt") for place in (more, tmp_path / "whole")]
    assert commands.same(*ended)
