"""A sentence and its context: every sentence once, contexts within a document, trimmed around the sentence, never empty."""

import logging
import pickle
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_clear.errors import UserError
from fairseq_clear.seeding import Draws
from fairseq_clear.views.view_table import build_view_source
from tests.text.test_documents import slow_documents
from tests.views.cases import pairs_of
from tests.views.documents_of_text import BOS, EOS, in_memory, numbered_lines, whole_text

SHAPES = st.lists(st.integers(0, 5), min_size=1, max_size=40).filter(any)
SIDES = st.tuples(st.integers(0, 4), st.integers(0, 4)).filter(any)


def source(documents, knobs="before=2,after=4,keep=0.1", tokens=512):
    return build_view_source(f"cloze:{knobs}", documents, settings={"tokens_per_sample": tokens})


def slow_pairs(shape, before, after):
    """[(document, tokens before the sentence, the sentence, tokens after it)] of the text itself, whole."""
    lines, pairs = numbered_lines(shape), []
    for number, (begin, end) in enumerate(slow_documents(shape, "blank")):
        sentences = [line[:-1] for line in lines[begin:end]]
        for place, sentence in enumerate(sentences):
            left = sum(sentences[max(place - before, 0) : place], [])
            right = sum(sentences[place + 1 : place + 1 + after], [])
            if left or right:
                pairs.append((number, left, sentence, right))
    return pairs


def slow_context(left, sentence, right, room):
    """Tokens of a context: its outer tokens are dropped one by one from the side that has more than its share."""
    total, kept = (len(left), len(right)), [*left, *sentence, *right]
    wanted = room - len(sentence)
    if sum(total) > wanted:
        low = max(n for n in range(wanted + 1) if n * sum(total) <= wanted * total[0])
        kept = [*left[len(left) - low :], *sentence, *right[: wanted - low]]
    return [BOS, *kept, EOS]


@pytest.mark.slow
@given(SHAPES, SIDES, st.sampled_from([0, 1]), st.sampled_from([3, 4, 7, 12, 100]))
@settings(max_examples=400, deadline=None)
def test_every_sentence_once_with_its_context(shape, sides, keep, tokens):
    before, after = sides
    expected, corpus = slow_pairs(shape, before, after), in_memory(shape)
    knobs = f"before={before},after={after},keep={keep}"
    if not expected:
        with pytest.raises(UserError, match="no document has 2 sentences"):
            source(corpus, knobs, tokens)
        return
    views = pickle.loads(pickle.dumps(source(corpus, knobs, tokens)))
    assert len(views.text_lengths) == len(expected)
    for index, (number, left, sentence, right) in enumerate(expected):
        (pair,) = pairs_of(views, index, index)
        (context,) = pair.positives
        is_kept = keep == 1 and len(sentence) < tokens - 2
        assert pair.anchor.tolist() == [BOS, *sentence, EOS]
        assert context.tolist() == slow_context(left, sentence if is_kept else [], right, tokens - 2)
        assert 3 <= len(context) <= min(views.text_lengths[index, 1], tokens)
        assert views.text_lengths[index, 0] == len(sentence) + 2
        if keep == 0:
            assert len(context) == views.text_lengths[index, 1]
        assert (pair.document, pair.identity) == (number, corpus.identities(np.array([number]))[0])
        content = whole_text(corpus, number)
        (begin, end), (low, high) = pair.spans
        assert content[begin:end] == sentence
        within = content[low:high]
        assert [within[0], within[-1]] == [context[1], context[-2]]
        assert set(within) - set(context.tolist()) <= set(sentence)


def test_by_hand():
    views = source(in_memory([2, 1, 3, 0, 1, 0, 1, 2]), "before=1,after=1,keep=0")
    drawn = partial(pairs_of, views)
    shown = [(pair.anchor.tolist()[1:-1], pair.positives[0].tolist()[1:-1]) for (pair,) in map(drawn, range(5))]
    assert shown == [
        ([10, 11], [12]),
        ([12], [10, 11, 13, 14, 15]),
        ([13, 14, 15], [12]),
        ([17], [18, 19]),
        ([18, 19], [17]),
    ]
    assert drawn(1)[0].spans == [(2, 3), (0, 6)] and drawn(0)[0].spans == [(0, 2), (2, 3)]


@pytest.mark.parametrize("keep", [0, 0.1, 0.5, 1])
def test_the_share_of_sentences_left_in(keep):
    views = source(in_memory([3] * 2000), f"keep={keep}")
    items = np.arange(2000)
    texts = views.pairs(items, Draws.of(1, 1, items, 0).fold(0)).texts
    share = np.mean([bool(set(texts[2 * item][1:-1]) & set(texts[2 * item + 1][1:-1])) for item in items])
    deviation = (keep * (1 - keep) / 2000) ** 0.5
    assert abs(share - keep) <= 4 * deviation


def test_in_chunks(monkeypatch):
    shape = [3, 2, 0, 1, 0, 4, 5, 1, 0, 2, 2, 0, 0, 7]
    knobs = ("before=1,after=1,keep=0", "before=0,after=2", "before=2,after=0,keep=1")
    expected = [source(in_memory(shape, [1, 1, 0, 2]), one).text_lengths.tolist() for one in knobs]
    assert expected[0] == [[5, 4], [4, 5], [6, 7], [7, 7], [3, 7], [4, 4], [4, 4], [3, 3], [3, 3]]
    monkeypatch.setattr("fairseq_clear.views.sentence_pair_views.CHUNK_ITEMS", 2)
    assert [source(in_memory(shape, [1, 1, 0, 2]), one).text_lengths.tolist() for one in knobs] == expected


def test_documents_of_one_sentence_are_counted(caplog):
    caplog.set_level(logging.INFO)
    source(in_memory([6, 0, 2, 1, 0, 3]))
    assert "2 pairs of a sentence and its context; 2 of 3 documents have one sentence, so no pair" in caplog.text


def test_each_line_a_document_is_one_error():
    with pytest.raises(UserError, match="--views same") as error:
        source(in_memory([3, 3], boundary="line"))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("knobs", "said"),
    [
        ("before=0,after=0", "set before or after to 1 or more"),
        ("before=-1", "is not a whole number from 0 to 10000"),
        ("keep=1.1", "is not a number from 0 to 1"),
        ("sentences=2", "cloze has no knob 'sentences'"),
    ],
)
def test_mistakes(knobs, said):
    with pytest.raises(UserError) as error:
        source(in_memory([4, 4]), knobs)
    assert said in str(error.value)
