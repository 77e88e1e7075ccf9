"""Held-out documents: no sentence is in two parts, pairs are the first sentence and the rest, the choice follows the seed."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.retrieval_data import read_beir
from fairseq_clear.refining import holding_out
from fairseq_clear.refining.holding_out import HARDER, QUESTION, below_title, divide_pairs, hold_out


def write_text(folder: Path, documents: Iterable[list[str]]) -> None:
    (folder / "text.txt").write_text("\n\n".join("\n".join(document) for document in documents) + "\n")


def write(folder: Path, lengths: list[int]) -> list[list[str]]:
    """Write a text whose documents have these numbers of sentences, all different."""
    documents = [[f"sentence {k} of document {n}." for k in range(length)] for n, length in enumerate(lengths)]
    write_text(folder, documents)
    return documents


def read(folder: Path, name: str) -> list[list[str]]:
    blocks = (folder / f"{name}.txt").read_text().split("\n\n")
    return [block.strip().split("\n") for block in blocks if block.strip()]


def pairs(folder: Path, name: str) -> list[tuple[str, str]]:
    if not (folder / "question").exists():
        return []
    data = read_beir(folder / "question", name)
    return [(query, data.passages[n]) for query, found in zip(data.queries, data.relevant, strict=True) for n in found]


@given(st.lists(st.integers(1, 5), min_size=2, max_size=60), st.floats(0.01, 0.9), st.integers(0, 9))
def test_documents_are_in_one_part(tmp_path_factory, lengths, share, seed) -> None:
    folder = tmp_path_factory.mktemp("held")
    documents = write(folder, lengths)
    counts = hold_out(folder / "text.txt", folder, share, seed)
    train, valid = read(folder, "train"), read(folder, "valid")
    queries = [pair for name in ("dev", "test") for pair in pairs(folder, name)]
    assert train and valid
    assert (counts.documents, counts.long_documents) == (len(lengths), sum(length > 1 for length in lengths))
    assert (counts.dev, counts.test) == (len(pairs(folder, "dev")), len(pairs(folder, "test")))
    whole = {document[0]: document for document in documents}
    for query, passage in queries:
        assert passage == " ".join(whole[query][1:])
    held = {query for query, _ in queries} | {document[0] for document in valid}
    assert not held & {document[0] for document in train}
    assert len({query for query, _ in queries}) == len(queries)
    assert all(document in documents for document in (*train, *valid))


def test_dev_and_test_are_disjoint_and_bounded(tmp_path: Path) -> None:
    write(tmp_path, [2] * 4000)
    counts = hold_out(tmp_path / "text.txt", tmp_path, 0.9, 1)
    assert (counts.dev, counts.test) == (holding_out.MOST_DEV, holding_out.MOST_TEST)
    assert not set(pairs(tmp_path, "dev")) & set(pairs(tmp_path, "test"))
    assert len(read(tmp_path, "train")) == 4000 - holding_out.MOST_DEV - holding_out.MOST_TEST


def test_the_choice_follows_the_seed(tmp_path: Path) -> None:
    write(tmp_path, [3] * 200)
    chosen = []
    for seed in (1, 1, 2):
        hold_out(tmp_path / "text.txt", tmp_path, 0.2, seed)
        chosen.append(pairs(tmp_path, "test"))
    assert chosen[0] == chosen[1] != chosen[2]


def test_one_document_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, [40])
    with pytest.raises(UserError, match=r"one document of 40 sentences.*--document-start \."):
        hold_out(tmp_path / "text.txt", tmp_path, 0.1, 1)
    write_text(tmp_path, [["one sentence.", "another."]] * 20)
    with pytest.raises(UserError, match="every document equals one that is held out"):
        hold_out(tmp_path / "text.txt", tmp_path, 0.1, 1)


def test_given_pairs_are_divided(tmp_path: Path) -> None:
    documents = write(tmp_path, [1] * 5)
    given_pairs = [(f"query {n}", f"passage {n}") for n in range(50)]
    counts = divide_pairs(given_pairs, tmp_path / "text.txt", tmp_path, 1)
    assert (counts.dev, counts.test, counts.documents) == (10, 40, 5)
    assert sorted(read(tmp_path, "train") + read(tmp_path, "valid")) == documents
    assert len(read(tmp_path, "valid")) == 1  # a tenth of them, at least one
    assert sorted(pairs(tmp_path, "dev") + pairs(tmp_path, "test")) == sorted(given_pairs)
    with pytest.raises(UserError, match="--pairs: 3 pairs; give 4 or more"):
        divide_pairs(given_pairs[:3], tmp_path / "text.txt", tmp_path, 1)


def test_documents_with_a_given_query_are_not_trained_on(tmp_path: Path) -> None:
    documents = write(tmp_path, [3] * 8)
    of_titles = [(document[0].replace(" ", "  "), f"passage {n}") for n, document in enumerate(documents[:5])]
    of_titles.append((documents[5][1], "its middle sentence asks"))
    counts = divide_pairs(of_titles, tmp_path / "text.txt", tmp_path, 1)
    assert counts.left_out == 6
    assert sorted(read(tmp_path, "train") + read(tmp_path, "valid")) == sorted(documents[6:])
    of_titles += [(document[0], "more") for document in documents[6:]]
    with pytest.raises(UserError, match="--pairs: 8 of 8 documents have a query as a sentence"):
        divide_pairs(of_titles, tmp_path / "text.txt", tmp_path, 1)


def test_a_passage_is_the_beginning_of_the_rest(tmp_path: Path) -> None:
    documents = [[f"title {n}", *(f"{n} {'word ' * 17}{k}" for k in range(4))] for n in range(30)]
    write_text(tmp_path, documents)
    hold_out(tmp_path / "text.txt", tmp_path, 0.5, 1)
    for query, passage in pairs(tmp_path, "dev") + pairs(tmp_path, "test"):
        words = " ".join(documents[int(query.split()[1])][1:]).split()
        assert passage.split() == words[: holding_out.BEGIN_WORDS] and len(words) > holding_out.BEGIN_WORDS
    easier, harder = (read_beir(tmp_path / name, "test") for name in (QUESTION, HARDER))
    assert harder.queries == easier.queries and len(harder.passages) == len(easier.passages) == 30
    for query, gains in zip(harder.queries, harder.relevant, strict=True):
        assert [harder.passages[number] for number in gains] == [documents[int(query.split()[1])][3]]


@pytest.mark.parametrize("most", [9000, 2000])
def test_all_other_documents_are_further_passages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(holding_out, "MOST_OTHERS", most)
    write(tmp_path, [2] * 3000)
    counts = hold_out(tmp_path / "text.txt", tmp_path, 0.02, 1)
    trained = {document[1] for document in read(tmp_path, "train")}
    passages = read_beir(tmp_path / "question", "test").passages
    assert passages == read_beir(tmp_path / "question", "dev").passages
    others = [passage for passage in passages if passage in trained]
    assert (counts.dev, counts.test) == (30, 30)
    assert (len(passages) - len(others), len(others)) == (60, min(most, 2940))


@pytest.mark.parametrize("title", ["", "another "])
def test_copies_of_held_out_documents_are_not_trained_on(title: str, tmp_path: Path) -> None:
    documents = write(tmp_path, [2] * 40)
    write_text(tmp_path, [*documents, *([title + document[0], *document[1:]] for document in documents[:20])])
    counts = hold_out(tmp_path / "text.txt", tmp_path, 0.5, 1)
    trained, asked = read(tmp_path, "train"), pairs(tmp_path, "dev") + pairs(tmp_path, "test")
    assert not {query for query, _ in asked} & {document[0] for document in trained}
    assert not {passage for _, passage in asked} & {" ".join(document[1:]) for document in trained}
    assert 0 < counts.left_out == 60 - 30 - len(trained)


def test_documents_of_several_sentences_validate(tmp_path: Path) -> None:
    write(tmp_path, [1] * 400 + [5] * 20)
    hold_out(tmp_path / "text.txt", tmp_path, 0.5, 1)
    asked = {query for query, _ in pairs(tmp_path, "dev")}
    assert asked and asked <= {document[0] for document in read(tmp_path, "valid")}


def test_a_single_query_compares_nothing(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("".join(f"Dear all,\ntext {n}.\n\n" for n in range(40)))
    counts = hold_out(tmp_path / "text.txt", tmp_path, 0.5, 1)
    assert (counts.dev, counts.test) == (0, 0)
    given_pairs = [("a", "one"), ("b", "two"), ("c", "three"), ("c", "four"), ("b", "five"), ("a", "six")]
    counts = divide_pairs(given_pairs, tmp_path / "text.txt", tmp_path, 1)
    assert (counts.dev, counts.test) == (0, 0)  # the only query of test has two passages


def test_titles_are_short_and_begin_one_document(tmp_path: Path) -> None:
    long = " ".join(["word"] * (holding_out.MOST_TITLE_WORDS + 1))
    documents = [["A title.", "x"], ["Same.", "y"], ["Same.", "z"], [long, "u"], ["alone"], ["Another one.", "v"]]
    write_text(tmp_path, [*documents, ["Page 1 of 20", "w"], ["Page 12 of 20", "r"]])
    counts = hold_out(tmp_path / "text.txt", tmp_path, 0.5, 1)
    assert (counts.documents, counts.long_documents, counts.titled) == (8, 7, 2)


def test_a_repeated_title_is_not_in_the_passage() -> None:
    assert below_title(["A title.", "A title.", "Its text.", "More."]) == "Its text. More."
    assert below_title(["A title.", "Its text."]) == "Its text."
    assert below_title(["Cat", "Cats sleep."]) == "Cats sleep."
    assert below_title(["Cat", "Cat: it sleeps."]) == ": it sleeps."
    assert below_title(["A title.", "A title."]) == below_title(["A title."]) == "A title."


def test_few_of_many_pairs_are_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holding_out, "MOST_OTHERS", 2000)
    write(tmp_path, [1] * 5)
    given_pairs = [(f"query {n // 2}", f"passage {n}") for n in range(6000)]
    counts = divide_pairs(given_pairs, tmp_path / "text.txt", tmp_path, 1)
    assert (counts.dev, counts.test) == (holding_out.MOST_DEV, holding_out.MOST_TEST)
    asked = pairs(tmp_path, "dev") + pairs(tmp_path, "test")
    assert (
        len(asked) == len(set(asked)) == 2 * (holding_out.MOST_DEV + holding_out.MOST_TEST)
    )  # both passages of a query
    assert len(read_beir(tmp_path / "question").passages) == len(asked) + 2000
