"""``fairseq-clear plot`` as a user types it."""

import re
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
    command, output = ["plot", "curves", str(log)], ["--output", str(tmp_path / "curves.png")]
    assert main([*command, *output, "--labels", "run"]) == 0
    captured = capsys.readouterr()
    assert captured.out == f"wrote {tmp_path / 'curves.png'}\n" and captured.err == ""
    assert (tmp_path / "curves.png").stat().st_size > 1000
    for flags, message in (
        ([], "--output .*exists already"),
        (["--labels", "a", "b", "--overwrite"], "--labels a b: give a different name for each of 1 entries"),
        ([str(log), "--overwrite"], "--labels .*: give a different name for each of 2 entries"),
    ):
        assert main([*command, *flags, *output]) == 2
        error = capsys.readouterr().err
        assert re.search(message, error) and error.count("\n") == 1
    assert main([*command, "--output", "curves.gif"]) == 2
    assert "--output curves.gif: give a name that ends with .png, .svg, .pdf" in capsys.readouterr().err


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
    assert main(["plot", "embedding", *flags, *data, "--pairs", "5", "--output", str(tmp_path / "map.pdf")]) == 0
    assert (tmp_path / "layers.svg").exists() and (tmp_path / "map.pdf").exists()
    flags = ["--encoder", "tests.evaluation.toys:Words", *data]
    assert main(["plot", "embedding", *flags, "--pairs", "5", "--output", str(tmp_path / "words.png")]) == 0
    assert main(["plot", "layers", *flags, "--output", str(tmp_path / "more.png")]) == 2
    assert "--encoder tests.evaluation.toys:Words: has no layers to compare" in capsys.readouterr().err
    assert not (tmp_path / "more.png").exists() and (tmp_path / "words.png").exists()
