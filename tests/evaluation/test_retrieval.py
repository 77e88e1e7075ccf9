"""Metrics against pytrec_eval, search in blocks against sorting everything, baselines against their formulas."""

import json
import math
import os
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytrec_eval
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from fairseq_clear.cli.main import main
from fairseq_clear.errors import UserError
from fairseq_clear.evaluation import retrieval
from fairseq_clear.evaluation.encoders import CachedEncoder
from fairseq_clear.evaluation.retrieval import (
    METRICS,
    Nearest,
    bootstrap,
    evaluate_retrieval,
    score_baseline,
    score_rankings,
    search,
    search_terms,
)
from fairseq_clear.evaluation.retrieval_data import (
    RetrievalData,
    data_of_pairs,
    read_beir,
    read_pairs_file,
    term_weights,
)
from tests.conftest import sentences
from tests.evaluation import toys
from tests.evaluation.test_retrieval_data import write_beir
from tests.evaluation.toys import Letters, Words

MEASURES = {
    "nDCG@10": "ndcg_cut_10",
    "MAP@100": "map_cut_100",
    **{f"recall@{depth}": f"recall_{depth}" for depth in (1, 5, 10, 100)},
}


@st.composite
def runs(draw: Any) -> tuple[np.ndarray, list[dict[int, int]]]:
    """Scores (Q, P) with many ties, and judgements; some queries have none, some judge passages outside the corpus."""
    queries, passages = draw(st.integers(1, 4)), draw(st.sampled_from([1, 2, 7, 12, 30, 150]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scores = rng.integers(0, draw(st.sampled_from([1, 2, 5, 1000])) + 1, (queries, passages)).astype(np.float64)
    judged = []
    for _ in range(queries):
        count = int(rng.integers(0, min(passages, 20) + 1))
        numbers = rng.choice(passages + 2, count, replace=False).tolist()
        judged.append({number: int(rng.integers(1, 4)) for number in numbers})
    return scores, judged


def name(number: int) -> str:
    """Name of a passage. Names descend, because trec_eval orders equal scores by descending name."""
    return f"{9999 - number}"


def by_trec_eval(scores: np.ndarray, judged: list[dict[int, int]]) -> dict[str, list[float]]:
    qrels = {f"q{q}": {name(n): gain for n, gain in own.items()} | {"unjudged": 0} for q, own in enumerate(judged)}
    run = {f"q{q}": {name(n): float(score) for n, score in enumerate(row)} for q, row in enumerate(scores)}
    whole = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut.10", "map_cut.100", "recall.1,5,10,100"}).evaluate(run)
    first = {q: dict(sorted(row.items(), key=lambda item: item[::-1], reverse=True)[:10]) for q, row in run.items()}
    cut = pytrec_eval.RelevanceEvaluator(qrels, {"recip_rank"}).evaluate(first)
    found = {metric: [whole[f"q{q}"][measure] for q in range(len(judged))] for metric, measure in MEASURES.items()}
    return {"MRR@10": [cut[f"q{q}"]["recip_rank"] for q in range(len(judged))], **found}


def ranked(scores: np.ndarray, depth: int = 100) -> np.ndarray:
    nearest = Nearest(len(scores), depth)
    rows, columns = (torch.from_numpy(side) for side in np.indices(scores.shape).reshape(2, -1))
    nearest.add(slice(None), rows, columns, torch.from_numpy(scores).flatten())
    return nearest.passages.numpy()


@given(runs())
@settings(max_examples=200)
def test_metrics_are_those_of_trec_eval(run: tuple[np.ndarray, list[dict[int, int]]]) -> None:
    values = score_rankings(ranked(run[0]), run[1])
    expected = by_trec_eval(*run)
    assert values.shape == (len(run[1]), len(METRICS)) == (len(run[1]), len(expected))
    for column, metric in enumerate(METRICS):
        assert values[:, column] == pytest.approx(expected[metric], abs=1e-6), metric


# Search


def sort_everything(scores: np.ndarray, depth: int) -> list[list[int]]:
    """Numbers of the highest scores; of equal ones, the lowest number first."""
    return [sorted(range(len(row)), key=lambda n: (-row[n], n))[:depth] for row in scores.tolist()]


def by_exact_cosines(queries: np.ndarray, passages: np.ndarray, depth: int) -> list[list[int]]:
    units = [side / np.linalg.norm(side.astype(np.float64), axis=1, keepdims=True) for side in (queries, passages)]
    exact = [side.astype(np.float32).astype(np.float64) for side in units]
    return sort_everything(np.round(np.einsum("qd,pd->qp", *exact), 12), depth)


def signs(rows: int, seed: int) -> np.ndarray:
    """Vectors of +-1 whose norm is a power of two: cosines are exact, and many are equal."""
    return np.random.default_rng(seed).choice([-1.0, 1.0], (rows, 16)).astype(np.float32)


@pytest.mark.parametrize("columns", [1, 2, 3, 5, 16, 40, 41, 100])
@pytest.mark.parametrize("rows", [1, 4, 50])
def test_blocks_find_what_sorting_everything_finds(rows: int, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrieval, "QUERIES_PER_BLOCK", rows)
    monkeypatch.setattr(retrieval, "PASSAGES_PER_BLOCK", columns)
    queries, passages = signs(9, 1), signs(41, 2)
    expected = sort_everything(queries @ passages.T, 7)
    assert any(len({*row}) < len(row) for row in (queries @ passages.T).tolist())
    parts = [passages[:20], passages[20:21], passages[21:]]
    found = search(queries, parts, 7)
    assert found.passages.tolist() == expected
    ascending = passages[np.argsort(queries[0] @ passages.T)]
    found_ = search(queries[:1], [ascending], 7)
    assert found_.passages.tolist() == sort_everything(queries[:1] @ ascending.T, 7)
    assert search(queries[:1], [passages[:2]], 3).passages[:, 2:].tolist() == [[-1]]
    assert found.scores.numpy() == pytest.approx(-np.sort(-(queries @ passages.T) / 16, axis=1)[:, :7])


@pytest.mark.slow
@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.sampled_from([1, 3, 10, 64]), st.sampled_from([0.0, 100.0]))
@settings(max_examples=50)
def test_float_ties_do_not_depend_on_blocks(seed: int, columns: int, rows: int, shift: float) -> None:
    """Each vector occurs several times; with a shift, all cosines are near 1."""
    rng = np.random.default_rng(seed)
    queries = (rng.normal(size=(5, 24)) + shift).astype(np.float32)
    passages = (rng.normal(size=(20, 24)) + shift).astype(np.float32)[rng.integers(0, 20, 60)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retrieval, "QUERIES_PER_BLOCK", rows)
        patch.setattr(retrieval, "PASSAGES_PER_BLOCK", columns)
        found = search(queries, [passages], 12)
    assert found.passages.tolist() == by_exact_cosines(queries, passages, 12)


@pytest.mark.parametrize("columns", [1, 7, 64])
def test_cosines_that_float32_does_not_tell_apart_are_ranked(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrieval, "PASSAGES_PER_BLOCK", columns)
    rng = np.random.default_rng(1)
    base = rng.normal(size=24)
    queries = (base + 0.3 * rng.normal(size=(20, 24))).astype(np.float32)
    passages = (base + 1e-6 * rng.normal(size=(64, 24))).astype(np.float32)
    assert search(queries, [passages], 5).passages.tolist() == by_exact_cosines(queries, passages, 5)


def test_vectors_that_are_not_finite_are_an_error() -> None:
    broken = np.array([[1, np.nan]], np.float32)
    for sides in ((broken, np.ones((1, 2), np.float32)), (np.ones((1, 2), np.float32), broken)):
        with pytest.raises(UserError, match="NaN or infinity"):
            search(sides[0], [sides[1]])


def test_sparse_search_finds_what_sorting_everything_finds() -> None:
    queries, passages = ["a1 b1", "zz", "b1 b1 c1"], ["a1", "b1 c1", "c1 b1", "d1", "a1", "b1 c1 a1 a1"]
    weights = term_weights("tfidf", queries, passages)
    scores = (weights[0] @ weights[1].T).toarray()
    expected = [[n for n in row if scores[q, n] > 0] for q, row in enumerate(sort_everything(scores, 4))]
    found = search_terms(*weights, 4).tolist()
    assert [[n for n in row if n >= 0] for row in found] == expected
    assert expected[0][:3] == [5, 0, 4] and expected[1] == []


# Baselines

TEXTS = ["The cat sat on the mat", "a cat, a dog and a cat", "dogs bark", "the the mat bark", "nothing here"]
QUERIES = ["cat mat", "the dog", "unknown words", "bark bark cat"]


def test_bm25_is_its_formula() -> None:
    def words(text: str) -> list[str]:
        return [w for w in text.lower().replace(",", "").split() if len(w) > 1]

    documents = [Counter(words(text)) for text in TEXTS]
    mean = sum(map(Counter.total, documents)) / len(documents)

    def score(query: str, document: Counter[str]) -> float:
        total = 0.0
        for word in words(query):
            containing = sum(word in other for other in documents)
            idf = math.log(1 + (len(documents) - containing + 0.5) / (containing + 0.5))
            frequency = document[word]
            norm = 1.2 * (1 - 0.75 + 0.75 * document.total() / mean)
            total += idf * frequency * 2.2 / (frequency + norm)
        return total

    queries, passages = term_weights("bm25", QUERIES, TEXTS)
    expected = [[score(query, document) for document in documents] for query in QUERIES]
    assert (queries @ passages.T).toarray() == pytest.approx(np.array(expected))
    with pytest.raises(UserError, match="--baselines bm25: the passages have no words"):
        term_weights("bm25", QUERIES, ["-", "!"])


def test_tfidf_is_its_formula() -> None:
    texts = ["aa bb bb", "aa cc"]
    idf = {"aa": math.log(3 / 3) + 1, "bb": math.log(3 / 2) + 1, "cc": math.log(3 / 2) + 1}
    first = np.array([idf["aa"], (1 + math.log(2)) * idf["bb"], 0])
    second = np.array([idf["aa"], 0, idf["cc"]])
    expected = [row @ [0, 1, 0] / np.linalg.norm(row) for row in (first, second)]
    queries, passages = term_weights("tfidf", ["bb"], texts)
    assert (queries @ passages.T).toarray()[0] == pytest.approx(expected)


# Whole evaluations


def test_the_bootstrap_of_a_share_is_a_binomial_distribution() -> None:
    values = np.zeros((60, 2))
    values[:21, 0] = 1
    values[:, 1] = 0.5
    low, high = bootstrap(values, 3, resamples=20_000)
    expected = [binom.ppf(q, 60, 21 / 60) / 60 for q in (0.025, 0.975)]
    assert [low[0], high[0]] == pytest.approx(expected)
    assert low[1] == high[1] == 0.5
    values = np.random.default_rng(0).random((60, 2))
    assert (bootstrap(values, 3) == bootstrap(values, 3)).all() and (bootstrap(values, 3) != bootstrap(values, 4)).all()


PAIRS = [("abc", "abcd"), ("bad", "daz"), ("xyz", "zyxy"), ("fee", "bce"), ("abc", "cay"), ("tad", "abcd")]


def by_hand(encoder: Any, pairs: list[tuple[str, str]], prefixes: tuple[str, str] = ("", "")) -> float:
    """MRR@10 x100 of the ranking by all cosines."""
    queries, passages = (list(dict.fromkeys(side)) for side in zip(*pairs, strict=True))
    vectors = [
        np.asarray(encoder.encode([prefix + text for text in side]), np.float64)
        for prefix, side in zip(prefixes, (queries, passages), strict=True)
    ]
    units = [side / np.linalg.norm(side, axis=1, keepdims=True) for side in vectors]
    reciprocal = []
    for query, order in zip(queries, sort_everything(np.round(units[0] @ units[1].T, 9), 10), strict=True):
        ranks = [rank for rank, n in enumerate(order, 1) if (query, passages[n]) in pairs]
        reciprocal.append(1 / ranks[0] if ranks else 0)
    return 100 * float(np.mean(reciprocal))


def test_an_evaluation_is_the_ranking_of_all_cosines() -> None:
    data = data_of_pairs("pairs", PAIRS, {})
    assert (len(data.queries), len(data.passages)) == (5, 5)
    result = evaluate_retrieval(Letters(), data)
    assert result.scores["MRR@10"] == pytest.approx(by_hand(Letters(), PAIRS))
    low, high = result.details["intervals"]["MRR@10"]
    assert low < result.scores["MRR@10"] < high and result.deviations["MRR@10"] == pytest.approx((high - low) / 2)
    prefixed = evaluate_retrieval(Letters(), data, query_prefix="eee ", passage_prefix="ffffff ")
    assert prefixed.scores["MRR@10"] == pytest.approx(by_hand(Letters(), PAIRS, ("eee ", "ffffff ")))
    assert prefixed.scores != result.scores


def test_a_report_shows_what_three_queries_find() -> None:
    data = data_of_pairs("pairs", PAIRS, {})
    details = evaluate_retrieval(Letters(), data).details
    assert len(details["examples"]) == 3
    for example in details["examples"]:
        query = data.queries.index(example["query"])
        numbers = [data.passages.index(text) for text in example["passages"]]
        assert example["right"] == [number in data.relevant[query] for number in numbers]
        assert example["rank"] == details["ranks"][query] and (True in example["right"]) == (example["rank"] <= 3)
    shown = [evaluate_retrieval(Letters(), data, seed=seed).details["examples"] for seed in range(4)]
    assert any(one != shown[0] for one in shown), "the seed chooses them"


def test_passages_are_encoded_in_parts_that_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    data = data_of_pairs("pairs", PAIRS, {})
    whole = evaluate_retrieval(CachedEncoder(Words()), data)
    monkeypatch.setattr(retrieval, "PASSAGES_AT_ONCE", 2)
    held = []

    class Watched(CachedEncoder):
        def encode(self, *arguments: Any, **options: Any) -> Any:
            vectors = super().encode(*arguments, **options)
            held.append(len(self._vectors))
            return vectors

    encoder = Watched(Words())
    assert evaluate_retrieval(encoder, data).details == whole.details
    assert held == [5, 2, 2, 1]


def test_the_passage_with_the_id_of_the_query_takes_no_place() -> None:
    texts = ["ab", *("ab" + "b" * n for n in range(1, 120))]  # further and further from the query
    data = RetrievalData("d", ["ab"], texts, [{100: 1}], [0])
    assert evaluate_retrieval(Letters(), data).scores["recall@100"] == 100
    assert evaluate_retrieval(Letters(), replace(data, identical=[])).scores["recall@100"] == 0
    assert evaluate_retrieval(Letters(), replace(data, relevant=[{101: 1}])).scores["recall@100"] == 0


# The command

TOYS = "tests.evaluation.toys"
DOCUMENT = "bada kefe\nligi moho bada\nnuju\n\nligi pala\nreme ligi\n\nalone\n\nsine reme\nsine sine\n"


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    words = [line.split()[:3] for line in sentences(24, 3) if line]
    rows = (f"{one[0]} {one[1]}\t{one[0]} {' '.join(other)}\n" for one, other in pairwise(words))
    (tmp_path / "pairs.tsv").write_text("".join(rows))
    return tmp_path / "pairs.tsv"


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
    interval = expected[2].details["intervals"]["MRR@10"]
    assert report["rows"][2]["details"]["intervals"]["MRR@10"] == pytest.approx(list(interval))
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
    text.write_text("One is here. Two is\nthere.\n\nThree came. Four went.\n")
    of_text = {"One is here.", "Two is there.", "Three came.", "Four went."}
    assert asked("--documents", text, "--split-sentences", "paragraphs") == of_text
    data = read_beir(write_beir(tmp_path, "dev"), "dev")
    found = asked("--data", tmp_path, "--split", "dev", "--passage-prefix", "p: ")
    assert found == {*data.queries, *(f"p: {text}" for text in data.passages)}


def test_the_table_or_the_report_cannot_be_written(pairs: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    command = ["retrieval", "--pairs", str(pairs), "--encoder", f"{TOYS}:Letters", "--output"]
    assert main([*command, "/proc/r.json"]) == 2
    out, err = capsys.readouterr()
    assert "MRR@10" in out and "queries 23; passages 23" in out
    assert "--output /proc/r.json: " in err and err.count("\n") == 1
    reader, writer = os.pipe()
    os.close(reader)  # as a pager that has left
    with os.fdopen(writer, "w", buffering=1) as gone:
        monkeypatch.setattr(sys, "stdout", gone)
        assert main([*command, str(tmp_path / "r.json")]) == 0
    assert json.loads((tmp_path / "r.json").read_text())["rows"]
