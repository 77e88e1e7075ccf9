"""A title and its text: every document with a title once, the title not in the text, no line that is not a title."""

import logging
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_clear.errors import UserError
from fairseq_clear.text.documents import Documents, Lines
from fairseq_clear.views.view_table import build_view_source
from tests.views.cases import pairs_of
from tests.views.documents_of_text import BOS, EOS, in_memory, whole_text

LINES = st.lists(st.lists(st.integers(10, 12), max_size=4), min_size=1, max_size=30)  # few ids, so lines repeat


def source(documents, knobs="longest=3", tokens=64):
    return build_view_source(f"titles:{knobs}", documents, settings={"tokens_per_sample": tokens})


def corpus(*files):
    """Documents of lines of token ids; an empty line ends a document."""
    return Documents([Lines([[*line, EOS] for line in lines]) for lines in files], BOS, EOS)


def slow_pairs(files, longest, room):
    """[(title, text)] of the documents whose first line is a title, written out."""
    documents = []
    for lines in files:
        documents.append([])
        for line in lines:
            documents[-1].append(line) if line else documents.append([])
    documents = [document for document in documents if document]
    titles = [document[0] for document in documents if len(document) > 1 and len(document[0]) <= min(longest, room)]
    pairs = []
    for title, *rest in documents:
        if rest and titles.count(title) == 1:
            text = [token for line in rest for token in line]
            text = text[len(title) :] if text[: len(title)] == title and len(text) > len(title) else text
            pairs.append((title, text[:room]))
    return pairs


@given(st.lists(LINES, min_size=1, max_size=2), st.integers(1, 4), st.sampled_from([3, 4, 6, 64]))
@settings(max_examples=400, deadline=None)
def test_every_title_once_with_its_text(files, longest, tokens):
    if not any(line for lines in files for line in lines):
        return
    expected, documents = slow_pairs(files, longest, tokens - 2), corpus(*files)
    if not expected:
        with pytest.raises(UserError, match="no document has a title for --views titles: .* choose another view"):
            source(documents, f"longest={longest}", tokens)
        return
    views = pickle.loads(pickle.dumps(source(documents, f"longest={longest}", tokens)))
    assert len(views.text_lengths) == len(expected)
    for index, (title, text) in enumerate(expected):
        (pair,) = pairs_of(views, index, index)
        assert pair.anchor.tolist() == [BOS, *title, EOS]
        assert pair.positives[0].tolist() == [BOS, *text, EOS]
        assert views.text_lengths[index, 0] == len(title) + 2
        assert len(text) + 2 <= views.text_lengths[index, 1] <= tokens
        assert pair.identity == documents.identities(np.array([pair.document]))[0]
        content = whole_text(documents, pair.document)
        (begin, end), (low, high) = pair.spans
        assert (content[begin:end], content[low:high]) == (title, text)


def test_what_is_no_title_is_counted(caplog):
    caplog.set_level(logging.INFO)
    lines = [[1], [2, 3], [], [1], [4], [], [5], [], [6, 7, 8, 9], [3], [], [7, 8], [7, 8], [9]]
    (pair,) = pairs_of(source(corpus(lines)), 0)
    assert (pair.anchor.tolist(), pair.positives[0].tolist()) == ([BOS, 7, 8, EOS], [BOS, 9, EOS])
    said = "1 of 5 documents have a title; 1 have one line, 1 begin with more than 3 tokens, and "
    said += "2 share their first line with another"
    assert said in caplog.text


def test_mistakes():
    with pytest.raises(UserError, match="longest"):
        source(in_memory([2, 4]), "longest=0")
