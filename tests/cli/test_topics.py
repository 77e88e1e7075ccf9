"""``fairseq-clear topics`` as a user types it."""

import json

from fairseq_clear.cli.main import main
from fairseq_clear.evaluation.topics import evaluate_topics, read_topics
from tests.evaluation.test_topics import write
from tests.evaluation.toys import Words


def test_the_table_and_the_report(tmp_path, capsys):
    write(tmp_path)
    output = tmp_path / "r.json"
    arguments = ["--remove", "quotes", "--strength", "0.5", "--encoder", "tests.evaluation.toys:Words"]
    assert main(["topics", "--data", str(tmp_path), *arguments, "--output", str(output)]) == 0
    lines = capsys.readouterr().out.splitlines()
    expected = evaluate_topics(Words(), read_topics(tmp_path, ["quotes"]), strength=0.5)
    assert lines[0].split() == ["accuracy", "macro-F1"]
    assert lines[1].split()[1:] == [f"{expected.accuracy:.2f}", f"{expected.macro_f1:.2f}"]
    assert "C 0.5; removed quotes; texts train=30 test=18" in lines[2]
    report = json.loads(output.read_text())
    assert set(report["data"]["20news"]) == {"20news.train.jsonl.xz", "20news.test.jsonl.xz"}
    assert report["rows"][0]["details"]["f1"].keys() == expected.f1.keys()
    assert main(["topics", "--data", str(output.parent / "no"), "--encoder", "tests.evaluation.toys:Words"]) == 2
    assert "no: no such folder" in capsys.readouterr().err
