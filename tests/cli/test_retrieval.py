"""``fairseq-clear retrieval`` as a user types it."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from fairseq_clear.cli.main import main
from fairseq_clear.evaluation.retrieval import METRICS, evaluate_retrieval, score_baseline
from fairseq_clear.evaluation.retrieval_data import read_beir, read_pairs_file
from tests.conftest import sentences
from tests.evaluation import toys
from tests.evaluation.test_retrieval_data import CORPUS, QRELS, QUESTIONS, lines
from tests.evaluation.toys import Letters, Words

TOYS = "tests.evaluation.toys"
DOCUMENT = "bada kefe\nligi moho bada\nnuju\n\nligi pala\nreme ligi\n\nalone\n\nsine reme\nsine sine\n"


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.tsv"
    words = [line.split()[:3] for line in sentences(24, 3) if line]
    path.write_text(
        "".join(f"{' '.join(first[:2])}\t{first[0]} {' '.join(other)}\n" for first, other in pairwise(words))
    )
    return path


def cells(line: str, label: str) -> list[list[float]]:
    """The score and the number after +- of each cell of a row."""
    return [[float(part.rstrip("*")) for part in cell.split("\u00b1")] for cell in line.removeprefix(label).split()]


def test_encoders_and_baselines_are_rows_of_one_table(pairs, tmp_path, capsys) -> None:
    output = tmp_path / "report.json"
    names = [f"{TOYS}:Letters", f"{TOYS}:Words"]
    flags = ["--baselines", "tfidf", "bm25", "--query-prefix", "bada ligi ", "--seed", "7", "--output", str(output)]
    assert main(["retrieval", "--pairs", str(pairs), "--encoder", *names, *flags]) == 0
    out, err = capsys.readouterr()
    table = out.splitlines()
    assert table[0].split() == list(METRICS) and len(table) == 6
    data = read_pairs_file(pairs)
    expected = [
        *(score_baseline(name, data, seed=7) for name in ("tfidf", "bm25")),
        *(evaluate_retrieval(encoder, data, query_prefix="bada ligi ", seed=7) for encoder in (Letters(), Words())),
    ]
    labels = ["TF-IDF", "BM25", *names]
    for line, label, result in zip(table[1:5], labels, expected, strict=True):
        assert line.startswith(label)
        for cell, metric in zip(cells(line, label), METRICS, strict=True):
            assert cell == pytest.approx([result.scores[metric], result.deviations[metric]], abs=0.006)
    assert "queries 23; passages 23; query prefix 'bada ligi '; \u00b1 half of the 95 % interval" in table[5]
    assert table[5].endswith("seeds 7") and f"wrote {output}" in err
    report = json.loads(output.read_text())
    assert [row["label"] for row in report["rows"]] == labels and report["command"] == "retrieval"
    assert report["rows"][1]["encoder"] == {"baseline": "BM25", "k1": 1.2, "b": 0.75}
    assert report["rows"][2]["details"]["intervals"]["MRR@10"] == pytest.approx(
        list(expected[2].details["intervals"]["MRR@10"])
    )
    assert set(report["data"]["pairs.tsv"]) == {"pairs.tsv"} and report["seeds"] == [7]


Asked = Callable[..., set[str]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> Asked:
    """Runs the command with these flags and returns the texts that the encoder was given."""

    def run(*flags: str | Path) -> set[str]:
        encoder = Letters()
        monkeypatch.setattr(toys, "INSTANCE", encoder)
        assert main(["retrieval", *map(str, flags), "--encoder", f"{TOYS}:INSTANCE"]) == 0, capsys.readouterr().err
        return {text for texts in encoder.asked for text in texts}

    return run


def test_every_kind_of_data(tmp_path: Path, asked: Asked) -> None:
    text = tmp_path / "t.txt"
    text.write_text(DOCUMENT)
    of_text = {"bada kefe", "ligi moho bada nuju", "ligi pala", "reme ligi", "sine reme", "sine sine"}
    assert asked("--documents", text) == of_text
    running = tmp_path / "running.txt"
    running.write_text("One is here. Two is\nthere.\n\nThree came. Four went.\n")
    of_text = {"One is here.", "Two is there.", "Three came.", "Four went."}
    assert asked("--documents", running, "--split-sentences", "paragraphs") == of_text
    beir = tmp_path / "beir"
    (beir / "qrels").mkdir(parents=True)
    (beir / "corpus.jsonl").write_text(lines(CORPUS)), (beir / "queries.jsonl").write_text(lines(QUESTIONS))
    (beir / "qrels" / "dev.tsv").write_text(QRELS)
    data = read_beir(beir, "dev")
    found = asked("--data", beir, "--split", "dev", "--passage-prefix", "p: ")
    assert found == {*data.queries, *(f"p: {text}" for text in data.passages)}


def test_scores_are_printed_though_the_report_cannot_be_written(pairs: Path, capsys: pytest.CaptureFixture) -> None:
    flags = ["--pairs", str(pairs), "--encoder", f"{TOYS}:Letters", "--output", "/proc/r.json"]
    assert main(["retrieval", *flags]) == 2
    out, err = capsys.readouterr()
    assert "MRR@10" in out and "queries 23; passages 23" in out
    assert "--output /proc/r.json: " in err and err.count("\n") == 1
