"""Spans of documents as items: what becomes of short documents, framing, identity, and the same item for everyone."""

import logging

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_clear.errors import UserError
from fairseq_clear.views.span_views import STRATEGIES
from fairseq_clear.views.view_table import build_view_source
from tests.views.cases import content_hash, pairs_of
from tests.views.documents_of_text import BOS, EOS, in_memory, whole_text

SETTINGS = {"short_documents": "clip", "same_document_negatives": "include", "tokens_per_sample": 512}


def source(documents, spec="span:min=2,max=6", **task):
    return build_view_source(spec, documents, settings={**SETTINGS, **task})


SHAPES = st.lists(st.integers(0, 40), min_size=1, max_size=20).filter(any)
SHORT = st.sampled_from(["clip", "skip"])


@given(SHAPES, st.integers(1, 3), st.integers(1, 3), st.sampled_from(STRATEGIES), SHORT, st.integers(0, 2**32))
@settings(max_examples=300, deadline=None)
def test_spans_of_random_documents(shape, anchors, positives, strategy, short, seed):
    documents = in_memory(shape)
    spec = f"span:anchors={anchors},positives={positives},min=3,max=7,strategy={strategy}"
    try:
        views = source(documents, spec, short_documents=short)
    except UserError as error:
        assert "documents are too short" in str(error)
        span = 7 if short == "skip" else 2 if strategy == "overlapping" else 1
        outside = {"adjacent": 2 * span - 1, "overlapping": 1}.get(strategy, 0) if anchors == 1 else 0
        assert documents.lengths.max() < (2 * anchors - 1) * span + outside
        return
    assert views.text_lengths.shape == (len(views.items), anchors * (1 + positives))
    for index, number in enumerate(views.items):
        content = whole_text(documents, number)
        pairs = pairs_of(views, index, seed)
        assert len(pairs) == anchors
        for pair in pairs:
            assert len(pair.positives) == positives == views.positives and pair.document == number
            assert pair.identity == content_hash(pair.anchor)
            for text, (begin, end), bound in zip(
                (pair.anchor, *pair.positives), pair.spans, views.text_lengths[index], strict=False
            ):
                assert text.tolist() == [BOS, *content[begin:end], EOS]
                assert 3 <= len(text) <= bound <= 9
        ordered = [pair.spans[0] for pair in pairs]
        greatest = int(views.text_lengths[index][0]) - 2
        assert all(b[0] - a[1] >= greatest for a, b in zip(ordered, ordered[1:], strict=False))


def test_clipping_scales_both_ends():
    documents = in_memory([18, 0, 9, 0, 3, 0, 2, 0, 100])
    views = source(documents)  # two anchors need three times max
    assert views.items.tolist() == [0, 1, 2, 4], "in two tokens there is no place for two anchors"
    assert views.text_lengths[:, 0].tolist() == [8, 5, 3, 8]
    lengths = {index: set() for index in range(4)}
    for index in range(4):
        for seed in range(200):
            for pair in pairs_of(views, index, seed):
                lengths[index] |= {end - begin for begin, end in pair.spans}
    assert lengths == {0: {2, 3, 4, 5, 6}, 1: {1, 2, 3}, 2: {1}, 3: {2, 3, 4, 5, 6}}


def test_skipping_counts_and_refusing_names_the_first(caplog):
    documents = in_memory([18, 0, 20, 0, 9, 8, 0, 17, 0, 3])
    caplog.set_level(logging.INFO)
    views = source(documents, short_documents="skip")
    assert views.items.tolist() == [0, 1]
    assert "3 of 5 documents have fewer than the 18 tokens" in caplog.text
    assert "0 clipped, 3 left out" in caplog.text
    caplog.clear()
    source(documents)
    assert "3 clipped, 0 left out" in caplog.text
    with pytest.raises(UserError, match=r"document 3 \(line 5\) has 17 tokens, fewer than the 18 tokens"):
        source(documents, short_documents="error")
    assert len(source(in_memory([18, 0, 19]), short_documents="error").items) == 2


@pytest.mark.parametrize(
    ("short", "remedy"), [("skip", "--short-documents clip"), ("clip", "--document-boundary line")]
)
def test_a_corpus_of_short_documents_is_one_error(short, remedy):
    with pytest.raises(UserError) as error:
        source(in_memory([2, 0, 1, 0, 1, 1]), short_documents=short)
    message = str(error.value)
    assert "all 3 documents are too short: the longest has 2 tokens of the 18 tokens" in message and remedy in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("span:min=7,max=6", "min must not be above max"),
        ("span:max=513", "--tokens-per-sample 512 would cut such spans; give it 515"),
        ("span:min=1,strategy=overlapping", "2 tokens or more"),
        ("span:strategy=near", "is not one of any, adjacent, subsumed, overlapping"),
        ("span:anchors=0", "is not a whole number, 1 or more"),
        ("span:alpha_anchor=0", "is not a number, 0.001 or more"),
    ],
)
def test_mistakes(spec, said):
    with pytest.raises(UserError) as error:
        source(in_memory([40]), spec)
    assert said in str(error.value)


def test_identity_of_the_span_or_of_the_document():
    documents = in_memory([60, 0, 60])
    include, exclude = (source(documents, same_document_negatives=value) for value in ("include", "exclude"))
    assert len({pair.identity for index in (0, 1) for pair in pairs_of(include, index, 1)}) == 4
    found = [pair.identity for index in (0, 1) for pair in pairs_of(exclude, index, 1)]
    assert found == documents.identities(np.array([0, 0, 1, 1])).tolist()
