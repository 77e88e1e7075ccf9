"""``fairseq-clear embed`` as a user types it."""

import errno
import gzip
import io
import json
import os
import signal
import sys
import tempfile
from types import SimpleNamespace

import numpy as np
import pytest

from fairseq_clear.cli.main import main
from fairseq_clear.evaluation.sentence_encoder import SentenceEncoder
from tests.conftest import WORDS, rejected, sentences

TEXTS = ["", *sentences(25, seed=4), " ".join(WORDS[:40])]


@pytest.fixture
def source(tmp_path):
    (tmp_path / "in.txt").write_text("\n".join(TEXTS) + "\n")
    return tmp_path / "in.txt"


@pytest.fixture
def flags(checkpoint, data_bin):
    return ["--checkpoint", str(checkpoint), "--data-bin", str(data_bin), "--tokenizer", "whitespace"]


def test_rows_are_the_lines_vectors(source, tmp_path, flags, encoder, capsys):
    output = tmp_path / "out.npy"
    assert main(["embed", str(source), *flags, "--output", str(output)]) == 0
    expected = encoder.encode(TEXTS)
    np.testing.assert_allclose(np.load(output), expected, atol=1e-6)
    out, err = capsys.readouterr()
    assert out.startswith(f"{len(TEXTS)} sentences, dimension 32; 1 cut at the model's length; 0.00% unknown tokens; ")
    assert out.endswith(f"pooling mean; wrote {output}\n") and (out.count("\n"), err) == (1, "")
    options = ["--pooling", "first-last", "--normalize", "--batch-size", "2", "--overwrite"]
    (link := tmp_path / "link.npy").symlink_to(output)
    assert main(["embed", str(source), *flags, "--output", str(link), *options]) == 0
    assert link.is_symlink()
    again = np.load(output)
    np.testing.assert_allclose(again, encoder.encode(TEXTS, 7, "first-last", normalize=True), atol=1e-5)
    assert not np.allclose(again, expected, atol=1e-2)


def test_the_first_dimensions(source, tmp_path, flags, encoder, capsys):
    output = tmp_path / "out.npy"
    assert main(["embed", str(source), *flags, "--output", str(output), "--dimension", "5"]) == 0
    kept = encoder.encode(TEXTS).astype(np.float64)[:, :5]
    expected = kept / np.sqrt((kept * kept).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(np.load(output), expected, atol=1e-6)
    assert "dimension 5; " in capsys.readouterr().out
    assert main(["embed", str(source), *flags, "--dimension", "5"]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    np.testing.assert_allclose([record["embedding"] for record in records], expected, atol=1e-6)


def test_texts_of_json_lines(tmp_path, flags, encoder):
    records = [{"text": "ba\nda"}, {"text": ""}, {"id": 3, "text": TEXTS[1]}]
    source, output = tmp_path / "in.jsonl.gz", tmp_path / "out.npy"
    source.write_bytes(gzip.compress("\n\n".join(map(json.dumps, records)).encode()))
    assert main(["embed", str(source), *flags, "--output", str(output)]) == 0
    np.testing.assert_allclose(np.load(output), encoder.encode(["ba da", "", TEXTS[1]]), atol=1e-6)


def test_json_lines_by_pipe(flags, encoder, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO("\n".join(TEXTS).encode())))
    assert main(["embed", "-", *flags]) == 0
    out, err = capsys.readouterr()
    records = [json.loads(line) for line in out.splitlines()]
    assert [record["text"] for record in records] == TEXTS
    np.testing.assert_allclose([record["embedding"] for record in records], encoder.encode(TEXTS), atol=1e-6)
    assert err.startswith(f"{len(TEXTS)} sentences") and "wrote" not in err
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"\xff")))
    rejected(capsys, ["embed", "-", *flags], "standard-input.txt:1: byte 0xff")

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("fairseq_clear.cli.embed.shutil.copyfileobj", full)
    rejected(capsys, ["embed", "-", *flags], "standard-input.txt: cannot write it (No space left on device)")
    monkeypatch.setattr(sys, "stdin", None)  # as the shell's <&-
    rejected(capsys, ["embed", "-", *flags], "-: standard input is closed")
    os.mkfifo(tmp_path / "pipe")  # as the shell's <(zcat big.gz)
    embed = ["embed", tmp_path / "pipe", *flags, "--output", tmp_path / "out.npy"]
    rejected(capsys, embed, "pipe: is a pipe, which can be read only once; give it as")
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_standard_output_is_utf8_and_may_be_full(flags, tmp_path, capsys, monkeypatch):
    (tmp_path / "in.txt").write_text("\u4e16\n", encoding="utf-8")
    embed = ["embed", str(tmp_path / "in.txt"), *flags]
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "ascii"))
    assert main(embed) == 0
    assert json.loads(sys.stdout.buffer.getvalue())["text"] == "\u4e16"
    with open("/dev/full", "wb", buffering=0) as full:
        monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=full))
        rejected(capsys, embed, "error: standard output: cannot write it (No space left on device)")


@pytest.mark.parametrize("from_pipe", [False, True])
def test_a_signal_leaves_nothing(source, tmp_path, flags, monkeypatch, from_pipe):
    made = []

    def stop(*_, **__):
        made.extend([*tmp_path.glob("*out*"), *spooled.iterdir()])
        os.kill(os.getpid(), signal.SIGTERM)

    spooled = tmp_path / "spooled"
    spooled.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(spooled))
    monkeypatch.setattr(SentenceEncoder, "encode_block", stop)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(source.read_bytes())))
    with pytest.raises(SystemExit, match="143"):
        main(["embed", "-" if from_pipe else str(source), *flags, "--output", str(tmp_path / "out.npy")])
    assert len(made) == 1 + from_pipe
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["in.txt", "spooled"]
