"""Pairs of neighbours: every pair once, in order, none across documents; their first spans as texts."""

import logging

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_clear.errors import UserError
from fairseq_clear.views.view_table import build_view_source
from tests.text.test_documents import slow_documents
from tests.views.cases import pairs_of
from tests.views.documents_of_text import BOS, EOS, in_memory, numbered_lines, whole_text


def source(documents, sentences=1):
    return build_view_source(f"neighbor:sentences={sentences}", documents, settings={"tokens_per_sample": 512})


def slow_pairs(shape, n):
    """[(document, first span, second span)] of the text itself."""
    lines, pairs = numbered_lines(shape), []
    for number, (begin, end) in enumerate(slow_documents(shape, "blank")):
        spans = [lines[i : i + n] for i in range(begin, end - n + 1, n)]
        spans = [[token for line in span for token in line[:-1]] for span in spans]
        pairs += [(number, one, other) for one, other in zip(spans, spans[1:], strict=False)]
    return pairs


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40).filter(any), st.integers(1, 4))
@settings(max_examples=300, deadline=None)
def test_every_pair_once(shape, n):
    expected, corpus = slow_pairs(shape, n), in_memory(shape)
    if not expected:
        with pytest.raises(UserError, match=f"no document has {2 * n} sentences"):
            source(corpus, n)
        return
    views = source(corpus, n)
    assert len(views.text_lengths) == len(expected)
    for index, (number, one, other) in enumerate(expected):
        (pair,) = pairs_of(views, index, index)
        (positive,) = pair.positives
        assert pair.anchor.tolist() == [BOS, *one, EOS] and positive.tolist() == [BOS, *other, EOS]
        assert views.text_lengths[index].tolist() == [len(one) + 2, len(other) + 2]
        assert (pair.document, pair.identity) == (number, corpus.identities(np.array([number]))[0])
        content = whole_text(corpus, number)
        assert [content[begin:end] for begin, end in pair.spans] == [one, other]


def test_lone_sentences_are_counted(caplog):
    caplog.set_level(logging.INFO)
    source(in_memory([6, 0, 2, 1, 0, 3]))
    assert "1 pairs of neighbours; 2 of 3 documents have fewer than 2 sentences, so no pair" in caplog.text
