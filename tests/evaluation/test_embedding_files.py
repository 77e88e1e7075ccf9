"""Files of sentences to files of vectors: aligned with lines, whole or absent, in blocks."""

import errno
import gzip
import hashlib
import json
import lzma
import sys

import numpy as np
import pytest

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.embedding_files import (
    Sentences,
    check_output,
    embed_lines,
    open_output,
    read_sentences,
    scan_sentences,
)
from fairseq_clear.models.encoding import EncodingCounts
from tests.conftest import run

LINES = ["one line", "", "  two ", "na\u00efve \u2028 line", "", "last"]


class Letters:
    """Stands for a SentenceEncoder: a vector of each text's length and first letter; notes the blocks."""

    dimension = 2

    def __init__(self):
        self.blocks, self.last = [], EncodingCounts()

    def encode_block(self, texts, batch_size, normalize=False, on_batch=None):
        self.blocks.append(list(texts))
        self.last = EncodingCounts(len(texts), tokens=3 * len(texts), unknown=1, cells=4 * len(texts), truncated=1)
        on_batch(len(texts))
        return np.array([[len(text), ord(text[:1] or " ") / 3] for text in texts], np.float32)


DIGEST = hashlib.sha256("".join(f"{line}\n" for line in LINES).encode()).hexdigest()
EXPECTED = Letters().encode_block(LINES, 1, on_batch=lambda _: None)


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
    assert scan_sentences(path) == Sentences(len(LINES), DIGEST)
    path.write_bytes(pack((end.join(["a\rb", *LINES]) + end).encode()))
    assert list(read_sentences(path)) == ["a b", *LINES]


@pytest.mark.parametrize("block", [1, 4, 100])
def test_blocks_make_one_array(source, tmp_path, block):
    encoder, output, done = Letters(), tmp_path / "out.npy", []
    with open_output(output, len(LINES), 2) as write:
        report = embed_lines(encoder, source, write, block=block, on_batch=done.append)
        assert not output.exists()
    vectors = np.load(output)
    assert vectors.dtype == np.float32 and (vectors == EXPECTED).all()
    assert max(map(len, encoder.blocks)) <= block and sum(encoder.blocks, []) == LINES and sum(done) == len(LINES)
    assert report.counts == EncodingCounts(6, 18, len(encoder.blocks), 24, len(encoder.blocks))
    assert report.summary().startswith(f"6 sentences, dimension 2; {len(encoder.blocks)} cut at the model's length;")
    assert "25.0% padding" in report.summary()
    assert np.load(output, mmap_mode="r").shape == (6, 2)


def test_json_lines_read_back_exactly(source, tmp_path):
    output = tmp_path / "out.jsonl"
    with open_output(output, len(LINES), 2) as write:
        embed_lines(Letters(), source, write, block=4, on_batch=lambda _: None)
    records = [json.loads(line) for line in output.read_text(encoding="utf-8").split("\n")[:-1]]
    assert [record["text"] for record in records] == LINES
    assert (np.array([record["embedding"] for record in records], np.float32) == EXPECTED).all()


@pytest.mark.parametrize("name", ["out.npy", "out.jsonl"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")])
def test_nothing_half_written(source, tmp_path, name, error):
    output = tmp_path / name
    output.write_text("old")
    before = sorted(path.name for path in tmp_path.iterdir())
    expected = UserError if isinstance(error, OSError) else type(error)
    with pytest.raises(expected) as caught, open_output(output, len(LINES), 2) as write:
        write(["a"], EXPECTED[:1])
        assert len(list(tmp_path.iterdir())) == len(before) + 1
        raise error
    assert output.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    if expected is UserError:
        assert str(caught.value) == f"--output {output}: cannot write it (No space left on device)"


@pytest.mark.parametrize("name", ["out.npy", "out.jsonl"])
@pytest.mark.parametrize("rows", [1, 3])
def test_an_input_that_changed_is_not_half_an_output(tmp_path, name, rows):
    changed = pytest.raises(UserError, match=f"the input had {rows} texts and now has 2")
    with changed, open_output(tmp_path / name, rows, 2) as write:
        write(["a", "b"], EXPECTED[:2])
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_others_may_read(source, tmp_path):
    with open_output(tmp_path / "out.npy", 1, 2) as write:
        write(["a"], EXPECTED[:1])
    assert (tmp_path / "out.npy").stat().st_mode == source.stat().st_mode


def test_where_output_may_go(tmp_path):
    check_output(tmp_path / "new.npy", overwrite=False)
    (tmp_path / "old.npy").write_text("old")
    check_output(tmp_path / "old.npy", overwrite=True)
    (tmp_path / "folder.npy").mkdir()
    for path, overwrite, message in [
        (tmp_path / "old.npy", False, "exists already; add --overwrite"),
        (tmp_path / "folder.npy", True, "exists already"),
        (tmp_path / "out.csv", True, "unknown suffix; give .npy or .jsonl"),
        (tmp_path / "absent" / "out.npy", True, "there is no folder"),
    ]:
        with pytest.raises(UserError, match=message):
            check_output(path, overwrite)


def test_bad_input_is_found_before_encoding(tmp_path):
    (tmp_path / "bytes.txt").write_bytes(b"good\n\xff bad\n")
    (tmp_path / "none.txt").write_bytes(b"")
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"text\n" * 999)[:-9])
    for name, message in [
        ("bytes.txt", "bytes.txt:2: byte 0xff"),
        ("none.txt", "none.txt: holds no line"),
        ("cut.gz", "archive is damaged or cut off"),
        ("absent.txt", "absent.txt: cannot read it"),
    ]:
        with pytest.raises(UserError, match=message) as caught:
            scan_sentences(tmp_path / name)
        assert "\n" not in str(caught.value)


PEAK = """
import resource, sys
from pathlib import Path
import numpy as np, torch
from fairseq_clear.evaluation.embedding_files import embed_lines, open_output, scan_sentences
from fairseq_clear.models.encoding import EncodingCounts
from tests.conftest import run

class Linear:
    dimension, last = 64, EncodingCounts()
    layer = torch.nn.Linear(1, 64)
    def encode_block(self, texts, batch_size, normalize=False, on_batch=None):
        with torch.no_grad():
            return self.layer(torch.tensor([[float(len(text))] for text in texts])).numpy()

source = Path(sys.argv[1])
rows = scan_sentences(source).count
with open_output(source.with_suffix(".npy"), rows, 64) as write:
    embed_lines(Linear(), source, write)
print(rows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path):
    """The vectors of a million lines take 256 MB."""
    found = []
    for count in (100_000, 1_000_000):
        source = tmp_path / f"{count}.txt"
        source.write_text("".join(f"line {number}\n" for number in range(count)))
        rows, kilobytes = run(sys.executable, "-c", PEAK, source).stdout.split()
        assert int(rows) == count
        assert np.load(source.with_suffix(".npy"), mmap_mode="r").shape == (count, 64)
        source.with_suffix(".npy").unlink()
        found.append(int(kilobytes) / 1024)
    assert found[1] - found[0] < 30, found
