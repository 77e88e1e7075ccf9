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


@pytest.mark.parametrize(
    ("flags", "where"),
    [
        (["--output", "taken.json"], "--output taken.json: "),
        (["--batch-size", "0"], "--batch-size 0: "),
        (["--data", "no"], "--data no: "),
        (["--whitening-dimensions", "2"], "--whitening-dimensions 2: "),
        (["--whitening", "c.jsonl"], "--whitening c.jsonl: "),
        (["--tasks", "STS12"], "--data: "),
        (["--encoder", f"{TOYS}:broken"], f"{TOYS}:broken: "),
        (["--encoder", f"{TOYS}:Constant"], f"{TOYS}:Constant, pairs: "),
        (None, "--data: "),
    ],
)
def test_mistakes_are_one_line_and_write_nothing(flags, where, table, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken.json").write_text("old")
    (tmp_path / "c.jsonl").write_text('{"text": "a"}\n')
    before = sorted(tmp_path.iterdir())
    given = ["--sts-file", "pairs.tsv", *flags] if flags is not None else []
    assert main(["sts", "--encoder", f"{TOYS}:Letters", *given]) == 2
    out, err = capsys.readouterr()
    assert where in err and err.count("\n") == 1 and out == "", err
    assert sorted(tmp_path.iterdir()) == before and (tmp_path / "taken.json").read_text() == "old"


def test_the_first_dimensions_are_scored(table, tmp_path, checkpoint, data_bin, capsys):
    from fairseq_clear.evaluation.sentence_encoder import SentenceEncoder
    from fairseq_clear.text.tokenizers import WhitespaceTokenizer

    encoder = SentenceEncoder.from_pretrained(checkpoint, data_bin, tokenizer=WhitespaceTokenizer())

    class Truncated:
        """The first dimensions by hand, not scaled: a cosine does not change."""

        def encode(self, sentences, batch_size=32):
            return encoder.encode(sentences)[:, :3]

    expected = evaluate_sts(Truncated(), read_sts_tasks(None, files=[table]))["pairs"].spearman
    output = tmp_path / "report.json"
    command = ["sts", "--sts-file", str(table), "--encoder", str(checkpoint), "--data-bin", str(data_bin)]
    command += ["--tokenizer", "whitespace"]
    assert main([*command, "--dimension", "3", "--output", str(output)]) == 0
    (row,) = json.loads(output.read_text())["rows"]
    assert row["scores"]["pairs"] == pytest.approx(expected)
    assert row["encoder"]["dimension"] == 3 and f"{checkpoint} mean first 3" in capsys.readouterr().out
    for flags, said in (
        (("--dimension", "33"), "have 32 dimensions; give 1 to 32"),
        (("--dimension", "3", "--whitening", str(table)), "not allowed with argument"),
    ):
        try:
            assert main([*command, *flags]) == 2
        except SystemExit as left:
            assert left.code == 2
        assert said in capsys.readouterr().err
