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
    command, output = ["plot", "curves", str(log)], ["--output", str(tmp_path / "curves.png")]
    assert main([*command, *output, "--labels", "run"]) == 0
    captured = capsys.readouterr()
    assert captured.out == f"wrote {tmp_path / 'curves.png'}\n" and captured.err == ""
    assert (tmp_path / "curves.png").stat().st_size > 1000
    for flags, where in (
        ([], f"--output {tmp_path / 'curves.png'}: "),
        (["--labels", "a", "b", "--overwrite"], "--labels a b: "),
        ([*["x"] * 8, "--labels", *"abcdefghi", "--overwrite"], "9 lines"),
        ([str(log), "--overwrite"], f"--labels {log} {log}: "),
        (["--output", "curves.gif"], "--output curves.gif: "),
    ):
        assert main([*command, *flags, *(output if "--output" not in flags else [])]) == 2
        error = capsys.readouterr().err
        assert where in error and error.count("\n") == 1


def test_without_matplotlib_the_extra_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["plot", "curves", "train.log", "--output", str(tmp_path / "curves.png")]) == 2
    assert "pip install 'fairseq_clear[eval]'" in capsys.readouterr().err


def test_layers(tmp_path, capsys, checkpoint, data_bin, pairs):
    flags = ["--encoder", str(checkpoint), "--data-bin", str(data_bin), "--tokenizer", "whitespace", "--device", "cpu"]
    data = ["--sts-file", str(pairs), "--labels", "tiny"]
    assert main(["plot", "layers", *flags, *data, "--output", str(tmp_path / "layers.svg")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("tiny, cls: - ") and lines[1].startswith("tiny, mean: ")
    assert (tmp_path / "layers.svg").exists()
    flags = ["--encoder", "tests.evaluation.toys:Words", *data]
    assert main(["plot", "layers", *flags, "--output", str(tmp_path / "more.png")]) == 2
    assert "--encoder tests.evaluation.toys:Words: " in capsys.readouterr().err
    assert not (tmp_path / "more.png").exists()
