"""``fairseq-clear embed`` as a user types it."""

import gzip
import io
import json
import os
import signal
import sys
import tempfile
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from fairseq_clear.cli.main import main
from fairseq_clear.evaluation.sentence_encoder import SentenceEncoder
from fairseq_clear.text.tokenizers import WhitespaceTokenizer
from tests.conftest import WORDS, rejected, sentences

TEXTS = ["", *sentences(25, seed=4), " ".join(WORDS[:40])]


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "in.txt"
    path.write_text("\n".join(TEXTS) + "\n")
    return path


@pytest.fixture(scope="module")
def encoder(checkpoint, data_bin):
    return SentenceEncoder.from_pretrained(checkpoint, data_bin, tokenizer=WhitespaceTokenizer())


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
    assert out.endswith(f"pooling mean; wrote {output}\n") and out.count("\n") == 1
    assert err == ""
    options = ["--pooling", "first-last", "--normalize", "--batch-size", "2", "--overwrite"]
    assert main(["embed", str(source), *flags, "--output", str(output), *options]) == 0
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


@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 2e-3), ("int8", 2e-2)])
def test_smaller_types(source, tmp_path, flags, encoder, capsys, dtype, tolerance):
    output = tmp_path / "out.npy"
    assert main(["embed", str(source), *flags, "--output", str(output), "--dtype", dtype]) == 0
    assert f"; {dtype}: recall@10 " in (said := capsys.readouterr().out) and said.count("\n") == 1
    stored, expected = np.load(output), encoder.encode(TEXTS)
    assert stored.dtype == dtype
    scales = np.load(tmp_path / "out.scales.npy") if dtype == "int8" else 1
    np.testing.assert_allclose(stored * scales, expected, atol=tolerance * np.abs(expected).max())
    (tmp_path / "pairs.tsv").write_text("ba\tda\t1\nba\tke\t2\n")
    reader = ["sts", "--encoder", str(output), "--sts-file", str(tmp_path / "pairs.tsv"), *flags[2:]]
    rejected(capsys, reader, "out.npy")  # no command takes vectors for an encoder


def test_texts_of_json_lines(tmp_path, flags, encoder, capsys):
    records = [{"text": "ba\nda"}, {"text": ""}, {"id": 3, "text": TEXTS[1]}]
    source, output = tmp_path / "in.jsonl.gz", tmp_path / "out.npy"
    source.write_bytes(gzip.compress("\n\n".join(map(json.dumps, records)).encode()))
    assert main(["embed", str(source), *flags, "--output", str(output)]) == 0
    np.testing.assert_allclose(np.load(output), encoder.encode(["ba da", "", TEXTS[1]]), atol=1e-6)
    assert capsys.readouterr().out.startswith("3 sentences")
    source.write_bytes(gzip.compress(b'{"text": "a"}\n{"title": "b"}\n'))
    assert main(["embed", str(source), *flags, "--output", str(output), "--overwrite"]) == 2
    assert (
        f"{source}:2: no field 'text' (fields: title); name the right one with --text-field" in capsys.readouterr().err
    )
    assert main(["embed", str(source), *flags, "--text-field", "title"]) == 2
    assert f"{source}:1: no field 'title'" in capsys.readouterr().err


def test_json_lines_by_pipe(flags, encoder, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO("\n".join(TEXTS).encode())))
    assert main(["embed", "-", *flags]) == 0
    out, err = capsys.readouterr()
    records = [json.loads(line) for line in out.splitlines()]
    assert [record["text"] for record in records] == TEXTS
    np.testing.assert_allclose([record["embedding"] for record in records], encoder.encode(TEXTS), atol=1e-6)
    assert err.startswith(f"{len(TEXTS)} sentences") and "wrote" not in err
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"\xff")))
    assert main(["embed", "-", *flags]) == 2
    assert "error: standard input:1: byte 0xff" in capsys.readouterr().err


def test_a_pipe_with_a_name(source, tmp_path, flags, encoder):
    os.mkfifo(tmp_path / "pipe")  # as the shell's <(zcat big.gz): it can be read only once
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_bytes(source.read_bytes()))
    writer.start()
    assert main(["embed", str(tmp_path / "pipe"), *flags, "--output", str(tmp_path / "out.npy")]) == 0
    writer.join()
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), encoder.encode(TEXTS), atol=1e-6)


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


def test_mistakes_are_one_line_and_write_nothing(source, tmp_path, flags, capsys):
    existing, fine, plain = tmp_path / "old.npy", [source, *flags], [source, *flags[:4]]
    existing.write_text("old")
    (tmp_path / "bad.txt").write_bytes(b"a\n\xff\n")
    (tmp_path / "a.scales.npy").write_text("old")
    before = sorted(tmp_path.iterdir())
    for arguments, message in [
        ([*fine, "--output", existing], "exists already; add --overwrite"),
        ([*fine, "--output", tmp_path / "out.csv"], "unknown suffix"),
        ([*fine, "--dtype", "int8", "--output", tmp_path / "out.jsonl"], "--dtype int8: needs --output FILE.npy"),
        ([*fine, "--dtype", "int8", "--output", tmp_path / "a.npy"], "a.scales.npy: exists already; add --overwrite"),
        ([*fine, "--batch-size", "0"], "--batch-size 0: must be 1 or more"),
        ([*fine, "--dimension", "0"], "--dimension 0: must be 1 or more"),
        ([*fine, "--dimension", "33"], "--dimension 33: the vectors have 32 dimensions; give 1 to 32"),
        (plain, "add --tokenizer whitespace"),
        ([tmp_path / "bad.txt", *flags], "bad.txt:2: byte 0xff"),
        ([tmp_path / "absent.txt", *flags], "cannot read it"),
    ]:
        output = [] if "--output" in arguments else ["--output", tmp_path / "out.npy"]
        rejected(capsys, ["embed", *arguments, *output], message)
    assert sorted(tmp_path.iterdir()) == before and existing.read_text() == "old"
