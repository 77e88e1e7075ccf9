"""Readers of queries and passages: what they return, and one line with file and line for each mistake."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.retrieval_data import (
    data_of_documents,
    data_of_pairs,
    read_beir,
    read_pairs,
    read_pairs_file,
    read_training_pairs,
)

CORPUS = [
    {"_id": "p1", "title": "T", "text": "one"},
    {"_id": "p2", "text": "two"},
    {"_id": "q1", "title": "", "text": "x"},
]
QUESTIONS = [{"_id": "q1", "text": "first?"}, {"_id": "q2", "text": "second?"}, {"_id": "q3", "text": "third?"}]
QRELS = "query-id\tcorpus-id\tscore\nq2\tp1\t2\nq1\tgone\t1\nq2\tp2\t0\nq1\tp2\t1\n"
SURROGATE = '{"query": "a", "passage": "b", "negatives": ["c", "\\ud800"]}\n'


def lines(records: list[Any]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def write_beir(folder: Path, split: str) -> Path:
    (folder / "qrels").mkdir()
    (folder / "corpus.jsonl.gz").write_bytes(gzip.compress(lines(CORPUS).encode()))
    (folder / "queries.jsonl").write_text(lines(QUESTIONS))
    (folder / "qrels" / f"{split}.tsv").write_text(QRELS)
    return folder


@pytest.fixture
def beir(tmp_path: Path) -> Path:
    return write_beir(tmp_path, "test")


def test_the_layout_of_beir(beir: Path) -> None:
    data = read_beir(beir)
    assert data.passages == ["T one", "two", "x"]
    assert data.queries == ["second?", "first?"], "judged ones, in the order of the qrels"
    assert data.relevant == [{0: 2}, {3: 1, 1: 1}], "without those of gain 0; 3 is outside the corpus"
    assert data.identical == [-1, 2]
    assert set(data.hashes) == {"corpus.jsonl.gz", "queries.jsonl", "test.tsv"}
    assert data.describe() == {"queries": 2, "passages": 3, "relevant passages that the corpus lacks": 1}
    (beir / "qrels/test.tsv").write_text(QRELS + "q2\tp1\t0\nq2\tp2\t3\n")
    assert read_beir(beir).relevant[0] == {1: 3}, "the last judgement of a passage counts"
    (beir / "qrels/test.tsv").write_text(QRELS + "q1\tq1\t1\n")
    assert (
        read_beir(beir).describe()["relevant passages with the id of their query, which BEIR never counts as found"]
        == 1
    )


def test_mistakes_in_a_folder_of_beir(beir: Path) -> None:
    for file, content, where in (
        ("qrels/test.tsv", "q1\tp1\n", "test.tsv:1: "),
        ("qrels/test.tsv", "q1\t0\tp1\t1\n", "test.tsv:1: has more than 3 columns; .*TREC's qrels"),
        ("qrels/test.tsv", QRELS + "q2\tp1\t0.5\n", "test.tsv:6: the score '0.5'"),
        ("qrels/test.tsv", QRELS + "q9\tp1\t1\n", "test.tsv:6: the query 'q9'"),
        ("qrels/test.tsv", "query-id\tcorpus-id\tscore\n", "test.tsv: "),
        ("queries.jsonl", "[]\n", "queries.jsonl:1: "),
        ("queries.jsonl", "{\n", "queries.jsonl:1: "),
        ("corpus.jsonl", "{}\n", "corpus.jsonl:1: no field '_id'"),
        ("corpus.jsonl", '{"_id": "a", "text": "b"}\n\n{"_id": 3.5, "text": "b"}\n', "corpus.jsonl:3: field '_id'"),
        ("corpus.jsonl", '{"_id": "a", "text": "b"}\n' * 2, "corpus.jsonl:2: the id 'a'"),
        ("corpus.jsonl", "\n", "corpus.jsonl: "),
    ):
        whole = (beir / file).read_bytes() if (beir / file).exists() else b""
        (beir / file).write_text(content)
        with pytest.raises(UserError, match=where):
            read_beir(beir)
        (beir / file).write_bytes(whole)


def test_missing_parts_of_a_folder_of_beir(beir: Path) -> None:
    with pytest.raises(UserError, match="no qrels/dev.tsv; its splits are test;"):
        read_beir(beir, "dev")
    (beir / "queries.jsonl").unlink()
    for folder in (beir, beir / "no"):
        with pytest.raises(UserError, match=f"--data {folder}: "):
            read_beir(folder)


def test_repeated_texts_are_one_query_or_passage() -> None:
    data = data_of_pairs("d", [("a", "x"), ("b", "x"), ("a", "y")], {})
    assert (data.queries, data.passages, data.relevant) == (["a", "b"], ["x", "y"], [{0: 1, 1: 1}, {0: 1}])


def test_a_passage_that_is_the_query_does_not_count_unless_it_answers_it() -> None:
    assert data_of_pairs("d", [("a", "b"), ("b", "a"), ("c", "c"), ("e", "a")], {}).identical == [1, 0, -1, -1]


DOCUMENTS = [["a", "b", "c"], ["alone"], ["d", "e"], ["a", "other"], ["f", "e"], ["g", "h"]]


def test_a_first_sentence_is_the_query_of_the_rest() -> None:
    data = data_of_documents(DOCUMENTS, {})
    assert data.queries == ["a", "d", "g"] and data.passages == ["b c", "e", "h"], "not those that occurred before"
    assert data.relevant == [{0: 1}, {1: 1}, {2: 1}] and data.describe() == {"queries": 3, "passages": 3}
    with pytest.raises(UserError, match="--documents: 1 of them"):
        data_of_documents(DOCUMENTS[:2], {})


def test_a_count_of_documents_is_drawn_by_the_seed() -> None:
    documents = [[f"q{n}", f"p{n}"] for n in range(50)]
    chosen = [data_of_documents(documents, {}, count=10, seed=s).queries for s in (1, 1, 2)]
    assert chosen[0] == chosen[1] != chosen[2]
    assert len(set(chosen[0])) == 10 and chosen[0] == sorted(chosen[0], key=lambda query: int(query[1:]))
    assert len(data_of_documents(documents, {}, count=99).queries) == 50


def test_pairs_of_every_form(tmp_path: Path) -> None:
    expected = [("a b", "c"), ("d", "e f", "g", "h")]
    table, records = tmp_path / "pairs.tsv", tmp_path / "pairs.jsonl.gz"
    table.write_text("a b\t c\n\nd\te f\tg\t h\n")
    rows = [{"query": q + "\0", "passage": p, "negatives": n, "more": 1} for q, p, *n in expected]
    records.write_bytes(gzip.compress(lines(rows).encode()))
    assert read_training_pairs(table) == read_training_pairs(records) == expected
    assert read_pairs(records) == [row[:2] for row in expected]
    table.write_text("a b\t c\n\nd\te f\n")
    assert read_pairs(table) == [row[:2] for row in expected]
    assert set(read_pairs_file(table).hashes) == {"pairs.tsv"}


def test_mistakes_in_pairs(tmp_path: Path) -> None:
    for read, content, where in (
        (read_pairs_file, "a\tb\nc\n", "x.tsv:2: "),
        (read_pairs_file, "a\tb\t3\n", "x.tsv:1: "),
        (read_pairs_file, "a\tb\n\t c\n", "x.tsv:2: "),
        (read_pairs_file, '{"query": "a"}\n', "x.jsonl:1: no field 'passage'"),
        (read_pairs_file, '{"query": "a", "passage": ""}\n', "x.jsonl:1: "),
        (read_pairs_file, "a\tb\n", "x.tsv: 1 different passages"),
        (read_pairs_file, "Query\tpassage\na\tb\nc\td\n", "x.tsv:1: is a header"),
        (read_pairs_file, "\n", "x.tsv: "),
        (read_training_pairs, "a\tb\tc\na\tb\t\n", "x.tsv:2: "),
        (read_training_pairs, '{"query": "a", "passage": "b", "negatives": "c"}\n', "x.jsonl:1: negatives"),
        (read_training_pairs, '{"query": "a", "passage": "b", "negatives": [1]}\n', "x.jsonl:1: "),
        (read_training_pairs, SURROGATE, "x.jsonl:1: an unpaired surrogate"),
    ):
        path = tmp_path / where.partition(":")[0]
        path.write_text(content)
        with pytest.raises(UserError, match=where):
            read(path)
