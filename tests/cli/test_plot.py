"""``fairseq-clear plot`` as a user types it."""

import sys

import pytest

from fairseq_clear.cli.main import main
from tests.conftest import sentences
from tests.evaluation.test_training_log import LINES

pytestmark = pytest.mark.slow


@pytest.fixture
def pairs(tmp_path):
    texts = [text for text in sentences(60, seed=3) if text]
    rows = [f"{one}\t{two}\t{number % 6}" for number, (one, two) in enumerate(zip(texts[::2], texts[1::2]))]  # noqa: B905
    (tmp_path / "pairs.tsv").write_text("\n".join(rows) + "\n")
    return tmp_path / "pairs.tsv"


def test_curves(tmp_path, capsys):
    log = tmp_path / "train.log"
    log.write_text("\n".join(LINES) + "\n")
    assert main(["plot", "curves", str(log), "--output", str(tmp_path / "curves.png"), "--labels", "run"]) == 0
    captured = capsys.readouterr()
    assert captured.out == f"wrote {tmp_path / 'curves.png'}\n" and captured.err == ""
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_the_extra_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["plot", "curves", "train.log", "--output", str(tmp_path / "curves.png")]) == 2
    assert "pip install 'fairseq_clear[eval]'" in capsys.readouterr().err


def test_layers_and_embedding(tmp_path, capsys, checkpoint, data_bin, pairs):
    flags = ["--encoder", str(checkpoint), "--data-bin", str(data_bin), "--tokenizer", "whitespace", "--device", "cpu"]
    data = ["--sts-file", str(pairs), "--labels", "tiny"]
    assert main(["plot", "layers", *flags, *data, "--output", str(tmp_path / "layers.svg")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("tiny, cls: ") and lines[1].startswith("tiny, mean: ")
    assert (tmp_path / "layers.svg").read_bytes().startswith(b"<?xml")
    flags = ["--encoder", "tests.evaluation.toys:Words", *data]
    assert main(["plot", "embedding", *flags, "--pairs", "5", "--output", str(tmp_path / "words.pdf")]) == 0
    assert (tmp_path / "words.pdf").read_bytes().startswith(b"%PDF")
