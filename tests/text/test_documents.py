"""Documents are those of the text, wherever its files are; spans are cut from the map."""

import pickle

import numpy as np
import pytest
from fairseq.data import ConcatDataset
from hypothesis import given
from hypothesis import strategies as st

from fairseq_clear.errors import UserError
from fairseq_clear.text.documents import Documents, Lines, documents_of
from tests.views.documents_of_text import BOS, EOS, binarize, in_memory, numbered_lines

SHAPES = st.lists(st.integers(0, 4), max_size=30)


def slow_documents(shape, boundary):
    """[(first line, last line + 1)], line by line."""
    found, current = [], []
    for number, length in enumerate([*shape, 0]):
        if length and boundary == "blank":
            current.append(number)
        elif length:
            found.append((number, number + 1))
        elif current:
            found.append((current[0], current[-1] + 1))
            current = []
    return found


@given(st.lists(SHAPES, min_size=1, max_size=3), st.sampled_from(["blank", "line"]), st.data())
def test_documents_are_the_text(shapes, boundary, data):
    expected, first = [], 10
    for shape in shapes:
        lines = numbered_lines(shape, first)
        first += sum(shape)
        expected += [lines[begin:end] for begin, end in slow_documents(shape, boundary)]
    if not expected:
        with pytest.raises(UserError, match="holds no document"):
            in_memory(*shapes, boundary=boundary)
        return
    documents = in_memory(*shapes, boundary=boundary)
    assert len(documents) == len(expected)
    spans = []
    for index, lines in enumerate(expected):
        content = [token for line in lines for token in line[:-1]]
        assert documents.lengths[index] == len(content)
        assert documents.line_counts[index] == len(lines)
        begin = data.draw(st.integers(0, len(content) - 1))
        end = data.draw(st.integers(begin + 1, len(content)))
        spans.append((index, begin, end, content[begin:end]))
        first_line = data.draw(st.integers(0, len(lines) - 1))
        last_line = data.draw(st.integers(first_line + 1, len(lines)))
        inner = [token for line in lines[first_line:last_line] for token in line[:-1]]
        bounds = documents.positions(np.array([index, index]), np.array([first_line, last_line])).tolist()
        spans.append((index, *bounds, inner))
    spans.append((0, 0, 0, []))
    # all at once, out of order: a span is the same in every batch
    order = data.draw(st.permutations(spans))
    found = documents.read(*(np.array(column) for column in list(zip(*order, strict=True))[:3]))
    assert [found[row].tolist() for row in range(len(found))] == [inner for *_, inner in order]


def test_identity_is_the_documents_content():
    lines = [[5, 6, EOS], [7, EOS], [EOS], [5, 6, EOS], [7, EOS], [EOS], [5, 6, EOS], [8, EOS], [EOS], [5, 6, EOS]]
    documents = Documents([Lines(lines)], BOS, EOS)
    identities = documents.identities(np.arange(4)).tolist()
    assert identities[0] == identities[1] and len(set(identities)) == 3
    long = [[*range(5, 905), EOS], [EOS], [*range(5, 906), EOS], [EOS], [*range(5, 905), EOS]]
    documents = Documents([Lines(long)], BOS, EOS)
    identities = documents.identities(np.arange(3)).tolist()
    assert identities[0] == identities[2] != identities[1]


def test_mistakes(caplog):
    in_memory([3, 2, 4])
    assert "--document-boundary line" in caplog.text
    caplog.clear()
    in_memory([3, 2, 4], boundary="line")
    in_memory([3])
    assert "--document-boundary" not in caplog.text
    with pytest.raises(UserError, match="do not end in </s>"):
        Documents([Lines([[5, 6], [7]])], BOS, EOS)
    with pytest.raises(UserError, match="--dataset-impl mmap"):
        documents_of([[1]], BOS, EOS)


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.int64])
def test_binarized_data(tmp_path, dtype):
    shape = [3, 2, 0, 0, 4, 0, 1]
    dataset = binarize(tmp_path / "train", numbered_lines(shape), dtype)
    other = binarize(tmp_path / "train1", numbered_lines([2, 0, 5], 30), dtype)
    contents = [[10, 11, 12, 13, 14], [15, 16, 17, 18], [19], [30, 31], [32, 33, 34, 35, 36]]
    for data, expected in ((dataset, contents[:3]), (ConcatDataset([dataset, other]), contents)):
        documents = documents_of(data, BOS, EOS)
        again = pickle.loads(pickle.dumps(documents))
        for copy in (documents, again):
            numbers = np.arange(len(copy))
            spans = copy.read(numbers, np.zeros_like(numbers), copy.lengths)
            assert [spans[number].tolist() for number in numbers] == expected and spans.tokens.dtype == np.int64
            assert len(set(copy.identities(numbers).tolist())) == len(expected)
    assert len(pickle.dumps(documents)) < 5000, "the tokens stay in their files"
