"""--train-pairs: training and comparison share no text; hard negatives are given or mined; titles are further pairs."""

import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.retrieval_data import read_beir
from fairseq_clear.refining.holding_out import MOST_VALID, divide_training_pairs, read_rows, write_rows
from tests.conftest import run, sentences
from tests.evaluation.toys import Letters
from tests.interop.folders import make_sentence_folder
from tests.refining.test_holding_out import pairs

CLEAR = [sys.executable, "-m", "fairseq_clear.cli"]


def rows_of(folder: Path) -> list[list[str]]:
    found: list[list[str]] = json.loads((folder / "pairs.json").read_text())["pairs"]
    return found


def asked(folder: Path) -> set[tuple[str, str]]:
    """The pairs of the comparison."""
    return {*pairs(folder, "dev"), *pairs(folder, "test")}


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=12, max_size=60),
    st.floats(0.05, 0.5),
    st.integers(0, 9),
)
def test_no_text_is_on_both_sides(tmp_path_factory, numbers, share, seed) -> None:
    folder = tmp_path_factory.mktemp("pairs")
    rows = [(f"query {a}", f"passage {b}", f"passage {(a + b) % 31}") for a, b in numbers]
    try:
        counts = divide_training_pairs(rows, None, None, folder, share, seed)
    except UserError as error:
        assert "pairs to train on" in str(error)  # all pairs have a query or a passage of the held-out ones
        return
    trained = {tuple(row) for row in rows_of(folder)}
    judged = asked(folder)
    given = {row[:2] for row in rows}
    assert {row[:2] for row in trained} <= given and counts.negatives == 1
    assert judged in (set(), {pair for pair in given if pair[0] in {query for query, _ in judged}})  # with all answers
    kept_apart = 0 if counts.shared else 1  # queries, and passages unless most pairs share them
    assert not {text for row in trained for text in row} & {text for pair in judged for text in pair[: 1 + kept_apart]}
    assert not counts.shared or 2 * len(trained) < 2 * len(given)
    assert not {query for query, _ in pairs(folder, "dev")} & {query for query, _ in pairs(folder, "test")}
    if judged:
        assert len(trained) + len(judged) + counts.left_out == len(given)
    assert counts.pairs == len(trained)


def test_passages_that_most_queries_share_are_trained_on(tmp_path: Path) -> None:
    """Without them, hardly a pair would be left. The queries of the comparison are never trained on."""
    shared = [(f"query {n}", f"answer {m % 7}") for n in range(100) for m in (n, n + n // 7 % 6 + 1)]  # two of seven
    for name, judged in ("alone", None), ("given", [(f"other {n}", f"answer {n}") for n in range(7)]):
        (tmp_path / name).mkdir()
        counts = divide_training_pairs(shared, judged, None, tmp_path / name, 0.1, 1)
        assert counts.pairs == counts.shared == (180 if judged is None else 200) and counts.left_out == 0
        compared = asked(tmp_path / name)
        assert compared and not {row[0] for row in rows_of(tmp_path / name)} & {query for query, _ in compared}
    unique = [(f"query {n}", f"answer {n}") for n in range(100)]
    counts = divide_training_pairs(unique, None, None, tmp_path, 0.1, 1)
    assert (counts.pairs, counts.shared) == (90, 0)


def test_documents_that_contain_a_pair_of_the_comparison_are_not_trained_on(tmp_path: Path) -> None:
    rows = [(f"what is {name}?", f"It is {name}. It is old.") for name in "abcdefghijklmnopqrstuvwxyz"]
    documents = [f"About {row[0][8]}\n{row[0]}\nOne more.\n" for row in rows[:13]]
    documents += [f"Of {row[0][8]}\nFirst.\nIt is {row[0][8]}.\nIt is old.\nLast.\n" for row in rows[13:]]
    (tmp_path / "text.txt").write_text("\n".join(documents))
    counts = divide_training_pairs(rows, None, tmp_path / "text.txt", tmp_path, 0.4, 1)
    compared = {query[8] for query, _ in asked(tmp_path)}
    assert len(compared) == 10 and counts.left_out == 10
    titles = {row[0][-1] for row in rows_of(tmp_path) if row[0].startswith(("About", "Of"))}
    assert titles == set("abcdefghijklmnopqrstuvwxyz") - compared


def test_given_pairs_are_not_trained_on(tmp_path: Path) -> None:
    rows = [(f"q{n}", f"p{n // 2}") for n in range(20)]
    judged = [("q0", "p0"), ("other", "p3"), ("q9", "elsewhere"), ("x", "y")]
    counts = divide_training_pairs(rows, judged, None, tmp_path, 0.1, 1)
    # p0 has q0 and q1, p3 has q6 and q7, and q9 is a query of the comparison
    assert [row[0] for row in rows_of(tmp_path)] == [f"q{n}" for n in range(20) if n not in (0, 1, 6, 7, 9)]
    assert (counts.pairs, counts.left_out) == (15, 5)
    assert asked(tmp_path) == set(judged)


def test_titles_are_further_pairs(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("A title.\nIts text.\nMore.\n\nAlone.\n\nHeld title.\np3\n\n")
    rows = [(f"q{n}", f"p{n}", f"n{n}") for n in range(8)]
    judged = [(f"j{n}", f"p{n}") for n in range(2, 6)]
    counts = divide_training_pairs(rows, judged, tmp_path / "text.txt", tmp_path, 0.1, 1)
    assert counts.negatives == 1  # of the file, though titles have none
    kept = [[f"q{n}", f"p{n}", f"n{n}"] for n in (0, 1, 6, 7)]
    assert rows_of(tmp_path) == [*kept, ["A title.", "Its text. More."]]
    assert json.loads((tmp_path / "pairs.json").read_text())["further"] == ["Alone."]
    assert "Alone." in read_beir(tmp_path / "question").passages  # a candidate of the comparison too


def test_documents_of_the_comparison_are_left_out(tmp_path: Path) -> None:
    """A passage may be a document with its title, or without it."""
    documents = [[f"title {n} x", f"text {n} y.", f"end {n} z."] for n in "abcdefgh"]
    documents.append(["題", "甲。", "乙。"])  # split where the passage has no space
    (tmp_path / "text.txt").write_text("\n\n".join("\n".join(document) for document in documents) + "\n")
    judged = [("q0", " ".join(documents[0])), ("q1", " ".join(documents[1][1:])), ("q2", "甲。乙。"), ("q3", "other")]
    counts = divide_training_pairs([("q4", "p4")], judged, tmp_path / "text.txt", tmp_path, 0.1, 1)
    trained = {row[0] for row in rows_of(tmp_path)}
    assert trained == {"q4", *(document[0] for document in documents[2:-1])}
    assert counts.left_out == 3
    passages = read_beir(tmp_path / "question", "test").passages
    assert not [text for text in passages if "text a" in text and text != judged[0][1]]
    assert not [text for text in passages if "text b" in text and text != judged[1][1]]


def test_a_hard_negative_counts_once_and_is_no_passage_of_its_query(tmp_path: Path) -> None:
    rows = [(f"q{n // 2}", f"p{n}", f"p{n}", f"p{n ^ 1}", f"q{n // 2}", f"n{n}", f" n{n}") for n in range(40)]
    counts = divide_training_pairs(rows, None, None, tmp_path, 0.1, 1)
    found = rows_of(tmp_path)
    assert counts.negatives == 4 and len(found) == counts.pairs > 20
    assert all(row == [*row[:2], f"n{row[1][1:]}"] for row in found)


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_given_hard_negatives_come_before_mined_ones(tmp_path: Path) -> None:
    # the nearest text to query a is aab, then abb; to query b it is abb; c has nothing near
    rows = [("a", "aaaa", "given"), ("b", "bbbb"), ("c", "cccc")]
    (tmp_path / "pairs.json").write_text(json.dumps({"pairs": rows, "further": ["aab", "abb"]}))
    write_rows(tmp_path, tmp_path / "none", Letters, 0, 0.05, "cpu")
    assert sorted(path.name for path in (tmp_path / "none").iterdir()) == ["passage.txt", "query.txt"]
    write_rows(tmp_path, tmp_path / "two", Letters, 2, 0.05, "cpu")
    assert lines(tmp_path / "two/query.txt") == ["a", "b", "c"]
    assert lines(tmp_path / "two/negative1.txt")[:2] == ["given", "abb"]
    assert lines(tmp_path / "two/negative2.txt")[:2] == ["aab", "aab"]
    # with a large margin only what is far from the query is left
    write_rows(tmp_path, tmp_path / "far", Letters, 2, 0.9, "cpu")
    assert "aab" not in (tmp_path / "far/negative2.txt").read_text()
    with pytest.raises(UserError, match="none of the 3 pairs has 9 negatives among .*; give more texts"):
        write_rows(tmp_path, tmp_path / "many", Letters, 9, 0.05, "cpu")
    assert not (tmp_path / "many").exists()
    # too few texts for the others, but this pair has all of its
    rows[0] = ("a", "aaaa", *(f"given {n}" for n in range(9)))
    (tmp_path / "pairs.json").write_text(json.dumps({"pairs": rows, "further": ["aab", "abb"]}))
    wrong = mock.Mock(side_effect=UserError("a wrong encoder"))
    with pytest.raises(UserError, match="a wrong encoder"):  # is not hidden by the pair that needs none
        write_rows(tmp_path, tmp_path / "wrong", wrong, 9, 0.05, "cpu")
    write_rows(tmp_path, tmp_path / "one", Letters, 9, 0.05, "cpu")
    assert lines(tmp_path / "one/query.txt") == ["a"] and lines(tmp_path / "one/negative9.txt") == ["given 8"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny encoder, a text, and pairs of which some share a passage."""
    folder = tmp_path_factory.mktemp("train-pairs")
    make_sentence_folder(folder / "tiny", "bert")
    texts = [line for line in sentences(300, seed=5) if line]
    (folder / "text.txt").write_text("\n".join(sentences(210, seed=6)) + "\n")
    rows = [f"{texts[n]}\t{texts[n + 1 - n % 3]} {texts[n + 2 - n % 3]}\n" for n in range(150)]
    (folder / "pairs.tsv").write_text("".join(rows))
    return folder


def refine(folder: Path, dest: Path, *words: object) -> tuple[dict[str, Any], str]:
    start = ["refine", "--from", folder / "tiny", "--dest", dest, "--train-pairs", folder / "pairs.tsv"]
    short = ("--updates", 4, "--max-length", 36, "--device", "cpu", "--batch-size", 8)
    done = run(*CLEAR, *start, *short, *words)
    return json.loads((dest / "report.json").read_text()), done.stdout


@pytest.mark.slow
def test_refine_on_pairs_alone(folder: Path, tmp_path: Path) -> None:
    report, output = refine(folder, tmp_path / "out", "--negatives", 2)
    assert report["recipe"] == "pairs" and report["caveat"] == ""
    assert report["counts"]["documents"] == 0 and report["counts"]["pairs"] + report["counts"]["left_out"] < 150
    (training,) = (line for line in output.splitlines() if line.startswith("fairseq-train "))
    assert "--hard-negatives negative1,negative2" in training and "--views paraphrase:query,original" in training
    assert "--guide" in training
    assert "held-out pairs of --train-pairs" in (tmp_path / "out/report.md").read_text()
    assert report["drift"] < 1.0


@pytest.mark.slow
def test_refine_on_pairs_and_text(folder: Path, tmp_path: Path) -> None:
    judged = tmp_path / "judged.tsv"
    judged.write_text("".join((folder / "pairs.tsv").read_text().splitlines(keepends=True)[:30]))
    report, output = refine(folder, tmp_path / "out", folder / "text.txt", "--pairs", judged)
    counts = report["counts"]
    assert counts["left_out"] >= 30 and counts["titled"] > 0
    assert counts["pairs"] == 150 - counts["left_out"] + counts["titled"]
    assert f"# {counts['pairs']} pairs to train on" in output


def test_a_document_whose_text_repeats_its_title_is_not_trained_on(tmp_path: Path) -> None:
    rows = [(f"query {n}", f"It is number {n}.") for n in range(8)]
    judged = [(f"other {name}", f"This is what {name} says.") for name in "abcd"]
    text = "".join(f"Title {name}\nTitle {name} This is what {name} says.\n\n" for name in "abcdef")
    (tmp_path / "text.txt").write_text(text)
    counts = divide_training_pairs(rows, judged, tmp_path / "text.txt", tmp_path, 0.1, 1)
    assert counts.left_out == 4
    titled = [row for row in rows_of(tmp_path) if row[0].startswith("Title")]
    assert titled == [[f"Title {name}", f"This is what {name} says."] for name in "ef"]


def test_few_of_many_rows_validate(tmp_path: Path) -> None:
    for name in ("passage", "query"):
        (tmp_path / f"{name}.txt").write_text("text\n" * 6000)
    _, fields = read_rows(tmp_path)
    assert round(6000 * fields["valid_share"]) == MOST_VALID
