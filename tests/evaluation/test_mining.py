"""Hard negatives against a search by hand through all candidates."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_clear.cli.main import main
from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.mining import MinedNegatives, mine_negatives
from fairseq_clear.evaluation.retrieval import search
from fairseq_clear.evaluation.retrieval_data import MiningSettings
from tests.conftest import WORDS
from tests.evaluation import toys
from tests.evaluation.toys import Letters

Pairs = list[tuple[str, str]]


class Table:
    """A random vector for each text; texts with the same last letter get the same one, so there are ties."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def encode(self, texts: list[str], batch_size: int = 32) -> np.ndarray:
        return np.stack([np.random.default_rng([self.seed, *text[-2:].encode()]).normal(size=4) for text in texts])


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    one, other = one.astype(np.float32).astype(np.float64), other.astype(np.float32).astype(np.float64)
    return float(one @ other / np.sqrt((one @ one) * (other @ other)))


Rows = list[list[tuple[int, float, str]]]


def eligible(encoder: Any, pairs: Pairs, extra: list[str], chosen: MiningSettings) -> Rows:
    """(rank, cosine, text) of everything that each pair may get, nearest first; each cosine in float64, one by one."""
    texts = list(dict.fromkeys([passage for _, passage in pairs] + extra))
    vectors = dict(zip(texts, encoder.encode(texts), strict=True))
    found = []
    for query, passage in pairs:
        own = {query, *(other for same, other in pairs if same == query)}
        (vector,) = encoder.encode([query])
        cosines = {text: round(cosine(vector, vectors[text]), 9) for text in texts if text not in own}
        # sorted() keeps the order of the candidates where cosines are equal
        ranked = enumerate(sorted(cosines, key=lambda text: -cosines[text]), 1)
        rows = [(n, cosines[t], t) for n, t in ranked if chosen.first_rank <= n <= chosen.last_rank]
        if chosen.margin is not None:
            limit = cosine(vector, vectors[passage]) - chosen.margin
            rows = [row for row in rows if row[1] < limit - 1e-9]
        found.append(rows)
    return found


def listed(mined: MinedNegatives) -> Rows:
    rows = zip(mined.ranks.tolist(), mined.similarities.tolist(), mined.negatives.tolist(), strict=True)
    return [[(r, c, mined.texts[n]) for r, c, n in zip(*row, strict=True)] for row in rows]


LETTERS = "abcdefgh"
text = st.text(LETTERS, min_size=2, max_size=3)


SETTINGS = st.builds(
    lambda n, first, more, margin: MiningSettings(
        negatives=n, first_rank=first, last_rank=first + n - 1 + more, margin=margin
    ),
    *(st.integers(1, 3), st.integers(1, 5), st.integers(0, 20), st.sampled_from([None, 0.0, 0.2, -0.3])),
)
PAIRS = st.lists(st.tuples(text, text), min_size=1, max_size=12)


@given(PAIRS, st.lists(text, max_size=12), SETTINGS, st.integers(0, 99))
@pytest.mark.slow
@settings(max_examples=150)
def test_the_nearest_are_those_of_a_full_search(pairs, extra, chosen, seed) -> None:
    """Random texts: duplicates, queries that are passages, queries with several positives and ties all occur."""
    encoder = Table(seed)
    rows = eligible(encoder, pairs, extra, chosen)
    kept = [number for number, row in enumerate(rows) if len(row) >= chosen.negatives]
    if not kept:
        with pytest.raises(UserError, match=f"none of the {len(pairs)} pairs has {chosen.negatives} negatives among"):
            mine_negatives(encoder, pairs, extra, chosen)
        return
    mined = mine_negatives(encoder, pairs, extra, chosen)
    assert mined.kept.tolist() == kept
    expected = [rows[number][: chosen.negatives] for number in kept]
    for found, wanted in zip(listed(mined), expected, strict=True):
        assert [(rank, text) for rank, _, text in found] == [(rank, text) for rank, _, text in wanted]
        assert [c for _, c, _ in found] == pytest.approx([c for _, c, _ in wanted], abs=1e-6)
    columns = mined.columns()
    assert [*columns] == ["query", "positive", *(f"negative{n + 1}" for n in range(chosen.negatives))]
    assert [*zip(columns["query"], columns["positive"], strict=True)] == [pairs[number] for number in kept]


def test_texts_that_are_equal_up_to_white_space_are_one() -> None:
    pairs = [("ab", "ba\n c"), ("ab ", "cab"), ("xy", "xz")]
    mined = mine_negatives(Letters(), pairs, ["ba  c", " ", "ab", "xy z", "bx"])
    assert mined.texts == ["ba c", "cab", "xz", "ab", "xy z", "bx"]
    # the nearest to "ab" that is neither "ab" nor one of its positives
    assert [[text for *_, text in row] for row in listed(mined)] == [["bx"], ["bx"], ["xy z"]]
    assert mined.ranks.tolist() == [[1], [1], [1]]


def test_prefixes_are_encoded_and_not_written(tmp_path: Path) -> None:
    encoder = Letters()
    pairs = [("ab", "ba"), ("cd", "dc")]
    mined = mine_negatives(encoder, pairs, query_prefix="q: ", passage_prefix="p: ")
    assert {text for texts in encoder.asked for text in texts} == {"q: ab", "q: cd", "p: ba", "p: dc"}
    assert [*mined.write(tmp_path)] == ["query.txt", "positive.txt", "negative1.txt"]
    texts = [(tmp_path / f"{name}.txt").read_text() for name in ("query", "positive", "negative1")]
    assert texts == ["ab\ncd\n", "ba\ndc\n", "dc\nba\n"]


class TwoWidths:
    def encode(self, texts: list[str], batch_size: int = 32) -> np.ndarray:
        return np.ones((len(texts), 2 if texts[0].startswith("q") else 3), np.float32)


def test_mistakes() -> None:
    for encoder, chosen, where in (
        (Letters(), {"first_rank": 5, "last_rank": 6, "negatives": 3}, "--first-rank 5 --last-rank 6: "),
        (Letters(), {"first_rank": 9, "last_rank": 4}, "--first-rank 9 --last-rank 4: "),
        (Letters(), {"margin": float("nan")}, "--margin nan: "),
        (Letters(), {"negatives": 0}, "--negatives 0: "),
        (TwoWidths(), {}, "dimension 3, those of queries 2"),
    ):
        with pytest.raises(UserError, match=where):
            mine_negatives(encoder, [("qa", "b"), ("qc", "d")], (), MiningSettings(**chosen))


def test_one_query_with_many_passages_does_not_deepen_the_search_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = []

    def counted(queries: np.ndarray, parts: list[np.ndarray], depth: int, **options: Any) -> Any:
        cells.append(len(queries) * depth)
        return search(queries, parts, depth, **options)

    monkeypatch.setattr("fairseq_clear.evaluation.mining.search", counted)
    pairs = [("qa", f"p{n}") for n in range(300)] + [(f"q{n}", f"r{n}") for n in range(300)]
    chosen = MiningSettings(negatives=2, last_rank=5)
    mined = mine_negatives(Table(), pairs, (), chosen)
    assert sum(cells) <= 5 + 512 + 300 * 6
    expected = [row[:2] for row in eligible(Table(), pairs, [], chosen)]
    assert [[text for *_, text in row] for row in listed(mined)] == [[text for *_, text in row] for row in expected]


# The command, and training on what it writes

TOYS = "tests.evaluation.toys"


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """40 pairs with two words in common."""
    path = tmp_path / "pairs.tsv"
    rows = [(WORDS[n], WORDS[(n * 7 + 1) % 64], WORDS[(n * 3 + 2) % 64]) for n in range(40)]
    path.write_text("".join(f"{a} {b} {c}\t{a} {b} {b} {WORDS[-1]}\n" for a, b, c in rows))
    return path


def mine(*flags: str | Path) -> int:
    return main(["mine", *map(str, flags)])


def test_the_folder_and_the_table(pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    further, also, dest = tmp_path / "more.jsonl", tmp_path / "also" / "more.jsonl", tmp_path / "out" / "mined"
    also.parent.mkdir()
    also.write_text('{"body": "nuju"}\n')
    further.write_text('{"body": "bada kefe"}\n{"body": "ligi\\nmoho"}\n')
    flags = ("--candidates", further, also, *"--text-field body --negatives 2 --margin 0.02 --first-rank 2".split())
    assert mine("--pairs", pairs, "--encoder", f"{TOYS}:Letters", *flags, "--dest", dest) == 0
    out, err = capsys.readouterr()
    report = json.loads((dest / "mine.json").read_text())
    kept = report["counts"]["kept"]
    assert report["counts"] == {"pairs": 40, "kept": kept, "candidates": 43} and 0 < kept <= 40
    assert sorted(path.name for path in dest.iterdir()) == sorted([*report["files"], "mine.json"])
    for name, digest in report["files"].items():
        content = (dest / name).read_bytes()
        assert hashlib.sha256(content).hexdigest() == digest and content.count(b"\n") == kept
    assert set(report["inputs"]) == {"pairs.tsv", str(further), str(also)} and report["settings"]["margin"] == 0.02
    assert (out, err) == (f"pairs 40; kept {kept}; candidates 43; wrote {dest}\n", "")
    means = [report["mean_similarity"]["positive"], *report["mean_similarity"]["negatives"]]
    assert means[0] > means[1] + 0.02 and means[1] > means[2]
    assert 2 <= report["mean_rank"][0] < report["mean_rank"][1]


def test_the_prompts_of_the_encoder_are_recorded(pairs: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    class Prompted(Letters):
        prompts = {"query": "ask ", "document": ""}

        def encode(self, sentences: list[str], batch_size: int = 32, prompt: str = "") -> np.ndarray:
            return super().encode([prompt + text for text in sentences])

    monkeypatch.setattr(toys, "INSTANCE", Prompted())
    assert mine("--pairs", pairs, "--encoder", f"{TOYS}:INSTANCE", "--dest", tmp_path / "mined") == 0
    report = json.loads((tmp_path / "mined" / "mine.json").read_text())
    assert (report["settings"]["query_prefix"], report["settings"]["passage_prefix"]) == ("ask ", None)
    assert capsys.readouterr().err == "# prompts of queries and of passages: 'ask ', None\n"
