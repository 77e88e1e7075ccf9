"""Correlations against scipy, protocols of STS on sets whose correlations can be computed by hand, and the command ``sts``."""

import json
import weakref
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fairseq_clear.cli.main import main
from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.encoders import CachedEncoder
from fairseq_clear.evaluation.sts import UndefinedCorrelation, cosine, evaluate_sts, pearson, read_sts_tasks, spearman
from fairseq_clear.evaluation.sts_data import STS_YEARS
from tests.conftest import WORDS
from tests.evaluation import toys
from tests.evaluation.toys import Constant, Letters, Words


@pytest.fixture
def folder(tmp_path):
    """STS13 of three sizes and offsets, one pair unscored, and STS-B's dev split."""
    rng = np.random.default_rng(5)
    year = tmp_path / "STS13-en-test"
    year.mkdir()
    for name, size in {"FNWN": 3, "headlines": 8, "OnWN": 5}.items():
        texts = [["".join(rng.choice(WORDS, 3)) for _ in range(2)] for _ in range(size)]
        scores = [f"{value:.2f}" for value in rng.uniform(0, 5, size)]
        if name == "OnWN":
            scores[2] = ""
        (year / f"STS.input.{name}.txt").write_text("".join(f"{a}\t{b}\n" for a, b in texts))
        (year / f"STS.gs.{name}.txt").write_text("".join(f"{score}\n" for score in scores))
    (tmp_path / "STSBenchmark").mkdir()
    rows = [f"g\tf\ty\t{i}\t{i % 3}\t{'a' * i}b\tbc" for i in range(6)]
    (tmp_path / "STSBenchmark" / "sts-dev.csv").write_text("\n".join(rows) + "\n")
    return tmp_path


def by_hand(folder, name):
    """Similarities and gold of a subset, with nothing of the harness."""
    year = folder / "STS13-en-test"
    texts = [line.split("\t") for line in (year / f"STS.input.{name}.txt").read_text().splitlines()]
    gold = (year / f"STS.gs.{name}.txt").read_text().splitlines()
    kept = [(pair, float(score)) for pair, score in zip(texts, gold, strict=True) if score]
    similarities = []
    for pair, _ in kept:
        u, v = Letters().encode(pair)
        similarities.append(sum(u * v) / (sum(u * u) * sum(v * v)) ** 0.5)
    return similarities, [score for _, score in kept]


def test_the_three_aggregations(folder):
    subsets = {name: by_hand(folder, name) for name in STS_YEARS["STS13"]}
    sizes = [len(gold) for _, gold in subsets.values()]
    found = {}
    for metric, reference in (("spearman", stats.spearmanr), ("pearson", stats.pearsonr)):
        each = [reference(*subset).statistic for subset in subsets.values()]
        similarities, gold = (sum((subset[side] for subset in subsets.values()), []) for side in (0, 1))
        expected = {
            "all": reference(similarities, gold).statistic,
            "mean": sum(each) / 3,
            "wmean": sum(c * n for c, n in zip(each, sizes, strict=True)) / sum(sizes),
        }
        for aggregation, value in expected.items():
            score = evaluate_sts(Letters(), read_sts_tasks(folder, ["STS13"]), aggregation=aggregation)["STS13"]
            assert getattr(score, metric) == pytest.approx(100 * value, abs=1e-4)
            assert (score.pairs, score.unscored) == (15, 1)
            assert score.subsets["headlines"][metric] == pytest.approx(100 * each[1], abs=1e-4)
        found[metric] = list(expected.values())
    assert len({round(value, 3) for values in found.values() for value in values}) == 6  # the protocols do differ


def test_tasks_files_and_json(folder):
    table = folder / "extra.tsv"
    table.write_text("ab\tba\t5\nab\tcd\t0\nab\tac\t2\n")
    letters = Letters()
    result = evaluate_sts(CachedEncoder(letters), read_sts_tasks(folder, ["STS-B-dev", "STS13"], files=[table]))
    assert list(result) == ["STS-B-dev", "STS13", "extra"]
    assert result["extra"].spearman == pytest.approx(100)
    (asked,) = letters.asked
    assert len(asked) == len(set(asked))
    assert json.loads(json.dumps(asdict(result["extra"])))["pairs"] == 3
    assert list(evaluate_sts(Letters(), read_sts_tasks(folder))) == ["STS13"]  # of the default tasks, what is there


def test_cosine_of_a_zero_vector_is_zero_and_of_nan_nan():
    found = cosine([[3, 4], [0, 0], [np.nan, 1]], [[4, 3], [1, 1], [1, 1]])
    assert found.tolist() == pytest.approx([0.96, 0, np.nan], nan_ok=True)


def test_equal_texts_are_ties() -> None:
    """Their cosines would differ by rounding, and their ranks by chance."""
    rng = np.random.default_rng(1)
    vectors = rng.normal(size=(300, 384)).astype(np.float32)
    other_batch = vectors * (1 + rng.uniform(-1e-7, 1e-7, vectors.shape)).astype(np.float32)
    assert set(cosine(vectors, vectors)) == set(cosine(vectors, other_batch)) == {1.0}
    assert len(set(cosine(vectors, vectors[::-1]))) == 150
    changed = vectors.copy()
    changed[:, 0] += 0.01  # a small difference is none of rounding
    assert cosine(vectors, changed).max() < 1


def test_undefined_is_an_error(folder):
    with pytest.raises(UserError, match="Constant, STS13: all 15 first numbers are 1: a correlation is not defined"):
        evaluate_sts(Constant(), read_sts_tasks(folder, ["STS13"]))
    (folder / "STS13-en-test" / "STS.gs.FNWN.txt").write_text("1\n1\n1\n")
    score = evaluate_sts(Letters(), read_sts_tasks(folder, ["STS13"]))["STS13"]
    assert score.subsets["FNWN"]["spearman"] is None and score.subsets["OnWN"]["pearson"] is not None
    for aggregation in ("mean", "wmean"):
        with pytest.raises(UserError, match="Letters, STS13, FNWN: all 3 second numbers are 1"):
            evaluate_sts(Letters(), read_sts_tasks(folder, ["STS13"]), aggregation=aggregation)


def test_mistakes(folder):
    for arguments, message in [
        ((None,), "--data: give the folder"),
        ((folder / "STSBenchmark",), "has none of STS12, "),
        ((folder, ["STS13", "STS13"]), "the task STS13 is given twice"),
    ]:
        with pytest.raises(UserError, match=message):
            read_sts_tasks(*arguments)
    with pytest.raises(UserError, match="aggregation median: valid are all, mean, wmean"):
        evaluate_sts(Letters(), read_sts_tasks(folder, ["STS13"]), aggregation="median")


# Correlations

# few distinct values, so that ties are the rule
TIED = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=2, max_size=30)


@given(TIED)
def test_both_are_scipys(pairs):
    x, y = np.array(pairs, float).T
    if len(set(x)) < 2 or len(set(y)) < 2:
        with pytest.raises(UndefinedCorrelation, match=f"all {len(x)} (first|second) numbers are"):
            spearman(x, y)
        return
    assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-12)
    assert pearson(x, y) == pytest.approx(stats.pearsonr(x, y).statistic, abs=1e-12)


def test_ties_matter_and_size_does_not():
    x, y = [1.0, 1.0, 2.0, 3.0], [1.0, 4.0, 2.0, 9.0]
    in_order = np.argsort(np.argsort(x)) + 1.0  # ranks that break ties by position
    assert spearman(x, y) != pytest.approx(pearson(in_order, stats.rankdata(y)))
    for scale in (1e-200, 1e200):
        assert pearson(np.array(x) * scale, y) == pytest.approx(pearson(x, y))
    assert pearson([1.0, 1.0 + 1e-9, 1.0], [3, 4, 3]) == pytest.approx(1.0)


def test_undefined_is_an_error_and_not_nan():
    for x, y, message in (
        ([1.0], [2.0], "task X: a correlation of 1 pairs is not defined"),
        ([], [], "task X: a correlation of 0 pairs"),
        ([2.0, 2.0], [1.0, 2.0], "task X: all 2 first numbers are 2"),
        ([1.0, 2.0], [0.0, 0.0], "task X: all 2 second numbers are 0"),
        ([1.0, 2.0], [1.0], "task X: .2,. numbers against .1,."),
        ([1.0, float("nan")], [1.0, 2.0], "task X: a number is NaN"),
    ):
        for correlation in (pearson, spearman):
            with pytest.raises(UserError, match=message):
                correlation(x, y, where="task X")


# The command

TOYS = "tests.evaluation.toys"


@pytest.fixture
def table(tmp_path):
    rows = "bada kefe\tbada kefe\t5\nligi\tligi moho\t3\nnuju\tpala\t1\nreme bada\treme sine\t2\n"
    (tmp_path / "pairs.tsv").write_text(rows)
    return tmp_path / "pairs.tsv"


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


def test_an_encoder_is_freed_before_the_next_one_is_loaded(table, monkeypatch):
    alive = weakref.WeakSet()

    def load(pooling):
        assert not alive
        alive.add(encoder := Words())
        return encoder

    monkeypatch.setattr(toys, "INSTANCE", load)
    names = [f"{TOYS}:INSTANCE"] * 2
    assert main(["sts", "--sts-file", str(table), "--encoder", *names, "--pooling", "mean"]) == 0
    assert not alive


def test_numbers_are_those_of_the_library(table, tmp_path, capsys):
    other = tmp_path / "other.tsv"
    other.write_text("a b\tc b\t1\na c\ta c\t4\n")
    names = [f"{TOYS}:Letters", f"{TOYS}:Words"]
    assert main(["sts", "--sts-file", str(table), str(other), "--encoder", *names]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["pairs", "other", "Avg."]
    for line, encoder in zip(lines[1:3], (Letters(), Words()), strict=True):
        scores = [one.spearman for one in evaluate_sts(encoder, read_sts_tasks(None, files=[table, other])).values()]
        found = [float(cell.strip("*")) for cell in line.split()[1:]]
        assert found == pytest.approx([*scores, sum(scores) / 2], abs=0.006)
