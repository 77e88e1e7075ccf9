"""Files of sentences to files of vectors: aligned with lines, whole or absent, in blocks."""

import gzip
import hashlib
import io
import lzma
import os
import sys

import numpy as np
import pytest

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation import embedding_files
from fairseq_clear.evaluation.embedding_files import Sentences, read_sentences, scan_sentences, write_array, write_jsonl
from fairseq_clear.models.encoding import EncodingCounts
from fairseq_clear.shared_work import Workers
from tests.conftest import run

LINES = ["one line", "", "  two ", "na\u00efve \u2028 line", "", "last"]


def letters(texts):
    """A vector of each text's length and first letter, and counts."""
    counts = EncodingCounts(len(texts), tokens=3 * len(texts), unknown=1, cells=4 * len(texts), truncated=1)
    return np.array([[len(text), ord(text[:1] or " ") / 3] for text in texts], np.float32), counts


DIGEST = hashlib.sha256("".join(f"{line}\n" for line in LINES).encode()).hexdigest()
EXPECTED = letters(LINES)[0]


def write(source, output, encode=letters, sentences=None):
    return write_array(output, sentences or scan_sentences(source), encode, 2, {"seed": 1}, workers=Workers())


@pytest.fixture(autouse=True)
def blocks_of_seven(monkeypatch):
    monkeypatch.setattr(embedding_files, "BLOCK", 7)


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "in.txt"
    path.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("suffix", "pack"), [(".txt", bytes), (".gz", gzip.compress), (".xz", lzma.compress), ("", bytes)]
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_every_line_is_one_text(tmp_path, suffix, pack, end):
    path = tmp_path / f"in{suffix}"
    path.write_bytes(pack(end.join(LINES).encode()))  # the last line has no end
    assert list(read_sentences(path)) == LINES
    assert scan_sentences(path) == Sentences(path, "text", len(LINES), DIGEST)
    path.write_bytes(pack((end.join(["a\rb", *LINES]) + end).encode()))
    assert list(read_sentences(path)) == ["a b", *LINES]


@pytest.mark.parametrize("block", [1, 4, 100])
def test_blocks_make_one_array(source, tmp_path, block, monkeypatch):
    monkeypatch.setattr(embedding_files, "BLOCK", block)
    output, blocks = tmp_path / "out.npy", []
    counts = write(source, output, lambda texts: (blocks.append(texts), letters(texts))[1])
    vectors = np.load(output)
    assert vectors.dtype == np.float32 and (vectors == EXPECTED).all()
    assert max(map(len, blocks)) <= block and sum(blocks, []) == LINES
    assert counts == EncodingCounts(6, 18, len(blocks), 24, len(blocks))
    assert np.load(output, mmap_mode="r").shape == (6, 2)
    assert output.stat().st_mode == source.stat().st_mode
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out.npy"]


def test_a_full_disk_keeps_finished_blocks(source, tmp_path, monkeypatch):
    fsync, calls, output = os.fsync, [], tmp_path / "out.npy"

    def full(file):
        if os.readlink(f"/proc/self/fd/{file}").endswith("vectors.npy"):
            calls.append(file)
            if len(calls) == 2:
                raise OSError(28, "No space left on device")
        fsync(file)

    output.write_text("old")
    monkeypatch.setattr(embedding_files, "BLOCK", 1)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(UserError, match=r"No space left on device; finished blocks are kept in .*\.partial"):
            write(source, output)
    assert output.read_text() == "old"
    (array,) = tmp_path.glob("*.partial/vectors.npy")
    content = array.read_bytes()
    array.write_bytes(b"")
    with pytest.raises(UserError, match=r"vectors\.npy: was damaged after it was written; remove .*\.partial and"):
        write(source, output)
    array.write_bytes(content)
    blocks = []
    write(source, output, lambda texts: (blocks.append(texts), letters(texts))[1])
    assert (np.load(output) == EXPECTED).all() and len(blocks) == 5  # the first one was finished
    assert not (tmp_path / "out.npy.partial").exists()


@pytest.mark.parametrize("rows", [5, 7])
def test_an_input_that_changed_is_an_error(source, tmp_path, rows):
    counted = Sentences(source, "text", rows, DIGEST)
    with pytest.raises(UserError, match="has changed"):
        write(source, tmp_path / "out.npy", sentences=counted)
    with pytest.raises(UserError, match="has changed"):
        write_jsonl(io.BytesIO(), counted, letters)
    assert [path.name for path in tmp_path.iterdir()] == ["in.txt"]


PEAK = """
import resource, sys
from pathlib import Path
import torch
from fairseq_clear.evaluation.embedding_files import scan_sentences, write_array
from fairseq_clear.models.encoding import EncodingCounts
from fairseq_clear.shared_work import Workers

layer = torch.nn.Linear(1, 64)
def encode(texts):
    with torch.no_grad():
        return layer(torch.tensor([[float(len(text))] for text in texts])).numpy(), EncodingCounts(len(texts))

source = Path(sys.argv[1])
rows = scan_sentences(source)
write_array(source.with_suffix(".npy"), rows, encode, 64, {}, workers=Workers())
print(rows.count, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path):
    """The vectors of 400,000 lines take 102 MB."""
    found = []
    for count in (10_000, 400_000):
        source = tmp_path / f"{count}.txt"
        source.write_text("".join(f"line {number}\n" for number in range(count)))
        rows, kilobytes = run(sys.executable, "-c", PEAK, source).stdout.split()
        assert int(rows) == count
        assert np.load(source.with_suffix(".npy"), mmap_mode="r").shape == (count, 64)
        source.with_suffix(".npy").unlink()
        found.append(int(kilobytes) / 1024)
    assert found[1] - found[0] < 40, found


@pytest.mark.parametrize("number", [np.nan, -np.inf])
def test_vectors_that_cannot_be_compared(number, source, tmp_path):
    def encode(texts):
        return np.full((len(texts), 2), number, np.float32), EncodingCounts(len(texts))

    with pytest.raises(UserError, match="NaN or infinity; check the checkpoint"):
        write(source, tmp_path / "out.npy", encode)
    with pytest.raises(UserError, match="NaN or infinity"):
        write_jsonl(io.BytesIO(), scan_sentences(source), encode)
