"""``fairseq-clear plot`` as a user types it."""

import pytest

from fairseq_clear.cli.main import main
from fairseq_clear.evaluation.reports import Report, Row
from tests.conftest import sentences
from tests.evaluation.test_training_curves import LINES

pytestmark = pytest.mark.slow


@pytest.fixture
def pairs(tmp_path):
    texts = [text for text in sentences(60, seed=3) if text]
    rows = [f"{one}\t{two}\t{number % 6}" for number, (one, two) in enumerate(zip(texts[::2], texts[1::2]))]  # noqa: B905
    (tmp_path / "pairs.tsv").write_text("\n".join(rows) + "\n")
    return tmp_path / "pairs.tsv"


def test_curves_and_compare(tmp_path, capsys):
    log, report = tmp_path / "train.log", tmp_path / "report.json"
    log.write_text("\n".join(LINES))
    Report("sts", {}, {}, ["STS-B"], [Row("a", {"STS-B": 80.0})]).write(report)
    assert main(["plot", "curves", str(log), "--labels", "run", "--output", str(tmp_path / "curves.png")]) == 0
    assert main(["plot", "compare", str(report), "--output", str(tmp_path / "bars")]) == 0
    wrote = [f"wrote {tmp_path / name}.png and {tmp_path / name}.svg" for name in ("curves", "bars")]
    captured = capsys.readouterr()
    assert captured.out.splitlines() == wrote and captured.err == ""
    assert all(
        (tmp_path / f"{name}.{kind}").stat().st_size > 1000 for name in ("curves", "bars") for kind in ("png", "svg")
    )
    assert main(["plot", "curves", str(log), "--output", str(tmp_path / "curves")]) == 2
    assert "exists already" in capsys.readouterr().err
    flags = ["--labels", "a", "b", "--overwrite", "--output", str(tmp_path / "curves")]
    assert main(["plot", "curves", str(log), *flags]) == 2
    assert "--labels: 2 for 1 entries of the legend" in capsys.readouterr().err


def test_layers_and_embedding(tmp_path, capsys, checkpoint, data_bin, pairs):
    flags = ["--encoder", str(checkpoint), "--data-bin", str(data_bin), "--tokenizer", "whitespace", "--device", "cpu"]
    data = ["--sts-file", str(pairs), "--labels", "tiny"]
    assert main(["plot", "layers", *flags, *data, "--output", str(tmp_path / "layers")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("tiny cls: - ") and lines[1].startswith("tiny mean: ")
    assert main(["plot", "embedding", *flags, *data, "--pairs", "5", "--output", str(tmp_path / "map")]) == 0
    assert (tmp_path / "layers.svg").exists() and (tmp_path / "map.png").exists()
    assert main(["plot", "layers", *flags, "--output", str(tmp_path / "more")]) == 2
    assert "--data: give the folder of SentEval's data, or --sts-file" in capsys.readouterr().err
    flags = ["--encoder", "tests.evaluation.toys:Words", *data, "--pairs", "5"]
    assert main(["plot", "embedding", *flags, "--output", str(tmp_path / "words")]) == 0
    assert not (tmp_path / "more.png").exists() and (tmp_path / "words.png").exists()
