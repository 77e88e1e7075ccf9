"""``fairseq-clear sts`` as a user types it."""

import json

import pytest

from fairseq_clear.cli.main import main
from fairseq_clear.evaluation.sts import evaluate_sts, read_sts_tasks
from tests.evaluation.toys import Letters, Words

TOYS = "tests.evaluation.toys"


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("bada kefe\tbada kefe\t5\nligi\tligi moho\t3\nnuju\tpala\t1\nreme bada\treme sine\t2\n")
    return path


def test_encoders_and_poolings_are_rows_of_one_table(table, tmp_path, checkpoint, data_bin, capsys):
    output = tmp_path / "report.json"
    flags = ["--data-bin", str(data_bin), "--tokenizer", "whitespace", "--metric", "pearson", "--output", str(output)]
    poolings = ["--pooling", "layer:0", "mean"]
    status = main(["sts", "--sts-file", str(table), "--encoder", str(checkpoint), *poolings, *flags])
    out, err = capsys.readouterr()
    assert status == 0, err
    lines = out.splitlines()
    assert lines[0].split() == ["pairs"] and lines[1].startswith(f"{checkpoint} layer:0") and "*" in lines[1] + lines[2]
    assert lines[3] == "metric pearson of the cosine x100; aggregation all; pairs pairs=4"
    assert "7 distinct sentences" in err and f"wrote {output}" in err
    report = json.loads(output.read_text())
    assert [row["encoder"]["pooling"] for row in report["rows"]] == ["layer:0", "mean"]
    assert report["rows"][0]["encoder"]["checkpoint"] == str(checkpoint)
    assert report["rows"][0]["scores"]["pairs"] == report["rows"][0]["details"]["pairs"]["pearson"]
    assert set(report["data"]["pairs"]) == {"pairs.tsv"}


def test_numbers_are_those_of_the_library(table, tmp_path, capsys):
    other = tmp_path / "other.tsv"
    other.write_text("a b\tc b\t1\na c\ta c\t4\n")
    names = [f"{TOYS}:Letters", f"{TOYS}:Words"]
    assert main(["sts", "--sts-file", str(table), str(other), "--encoder", *names]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["pairs", "other", "Avg."]
    for line, encoder in zip(lines[1:3], (Letters(), Words()), strict=True):
        result = evaluate_sts(encoder, read_sts_tasks(None, files=[table, other]))
        scores = [score.spearman for score in result.values()]
        expected = [*scores, sum(scores) / 2]
        assert [float(cell.strip("*")) for cell in line.split()[1:]] == [pytest.approx(x, abs=0.006) for x in expected]
