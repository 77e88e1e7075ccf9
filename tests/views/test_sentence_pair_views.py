"""Pairs of sentences of a document (neighbours; a sentence and its context; a title and its text) against the text itself."""

import logging
import pickle
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_clear.errors import UserError
from fairseq_clear.seeding import Draws
from fairseq_clear.text.documents import Documents, Lines
from fairseq_clear.views.view_table import build_view_source
from tests.text.test_documents import slow_documents
from tests.views.cases import content_hash, pairs_of
from tests.views.documents_of_text import BOS, EOS, in_memory, numbered_lines, whole_text

SHAPES = st.lists(st.integers(0, 5), min_size=1, max_size=40).filter(any)
SIDES = st.tuples(st.integers(0, 4), st.integers(0, 4)).filter(any)


def source(spec, documents, tokens=512):
    return build_view_source(spec, documents, settings={"tokens_per_sample": tokens})


def made(spec, documents, tokens, expected, said):
    """The source as a loader process gets it; None, after the error, if no item is expected."""
    if not expected:
        with pytest.raises(UserError, match=said):
            source(spec, documents, tokens)
        return None
    views = pickle.loads(pickle.dumps(source(spec, documents, tokens)))
    assert len(views.text_lengths) == len(expected)
    return views


def sentences_of(shape):
    """The sentences of each document of the text itself."""
    lines = numbered_lines(shape)
    return [[line[:-1] for line in lines[begin:end]] for begin, end in slow_documents(shape, "blank")]


# Neighbours


def slow_neighbours(shape, n):
    """[(document, first span, second span)]"""
    pairs = []
    for number, sentences in enumerate(sentences_of(shape)):
        spans = [sum(sentences[i : i + n], []) for i in range(0, len(sentences) - n + 1, n)]
        pairs += [(number, one, other) for one, other in pairwise(spans)]
    return pairs


def hashes(documents, pair):
    """Of the document and of both texts."""
    own = documents.identities(np.array([pair.document])).tolist()
    return own + [content_hash(pair.anchor), content_hash(pair.positives[0])]


@given(SHAPES, st.integers(1, 4))
def test_every_pair_of_neighbours_once(shape, n):
    expected, corpus, spec = slow_neighbours(shape, n), in_memory(shape), f"neighbor:sentences={n}"
    views = made(spec, corpus, 512, expected, f"no document has {2 * n} sentences")
    for index, (number, one, other) in enumerate(expected):
        (pair,) = pairs_of(views, index, index)
        (positive,) = pair.positives
        assert pair.anchor.tolist() == [BOS, *one, EOS] and positive.tolist() == [BOS, *other, EOS]
        assert views.text_lengths[index].tolist() == [len(one) + 2, len(other) + 2]
        assert (pair.document, pair.identity) == (number, hashes(corpus, pair))
        content = whole_text(corpus, number)
        assert [content[begin:end] for begin, end in pair.spans] == [one, other]


# A sentence and its context


def slow_contexts(shape, before, after):
    """[(document, tokens before the sentence, the sentence, tokens after it)], whole."""
    pairs = []
    for number, sentences in enumerate(sentences_of(shape)):
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
def test_every_sentence_once_with_its_context(shape, sides, keep, tokens):
    before, after = sides
    expected, corpus = slow_contexts(shape, before, after), in_memory(shape)
    spec = f"cloze:before={before},after={after},keep={keep}"
    views = made(spec, corpus, tokens, expected, "no document has 2 sentences")
    for index, (number, left, sentence, right) in enumerate(expected):
        (pair,) = pairs_of(views, index, index)
        context, bounds = pair.positives[0].tolist(), views.text_lengths[index].tolist()
        is_kept = keep == 1 and len(sentence) < tokens - 2
        assert pair.anchor.tolist() == [BOS, *sentence, EOS]
        assert context == slow_context(left, sentence if is_kept else [], right, tokens - 2)
        assert bounds[0] == len(sentence) + 2 and 3 <= len(context) <= min(bounds[1], tokens)
        assert keep == 1 or len(context) == bounds[1]
        assert (pair.document, pair.identity) == (number, hashes(corpus, pair))
        content = whole_text(corpus, number)
        own, within = (content[begin:end] for begin, end in pair.spans)
        assert (own, within[0], within[-1]) == (sentence, context[1], context[-2])
        assert set(within) - set(context) <= set(sentence)


@pytest.mark.parametrize("keep", [0, 0.1, 0.5, 1])
def test_the_share_of_sentences_left_in(keep):
    views = source(f"cloze:keep={keep}", in_memory([3] * 2000))
    items = np.arange(2000)
    texts = views.pairs(items, Draws.of(1, 1, items, 0).fold(0)).texts
    share = np.mean([bool(set(texts[2 * item][1:-1]) & set(texts[2 * item + 1][1:-1])) for item in items])
    deviation = (keep * (1 - keep) / 2000) ** 0.5
    assert abs(share - keep) <= 4 * deviation


def test_in_chunks(monkeypatch):
    corpus = in_memory([3, 2, 0, 1, 0, 4, 5, 1, 0, 2, 2, 0, 0, 7], [1, 1, 0, 2])
    specs = [f"cloze:{knobs}" for knobs in ("before=1,after=1,keep=0", "before=0,after=2", "before=2,after=0,keep=1")]
    expected = [source(spec, corpus).text_lengths.tolist() for spec in specs]
    assert expected[0] == [[5, 4], [4, 5], [6, 7], [7, 7], [3, 7], [4, 4], [4, 4], [3, 3], [3, 3]]
    monkeypatch.setattr("fairseq_clear.views.sentence_pair_views.CHUNK_ITEMS", 2)
    assert [source(spec, corpus).text_lengths.tolist() for spec in specs] == expected


# A title and its text

LINES = st.lists(st.lists(st.integers(10, 12), max_size=4), min_size=1, max_size=30)  # few ids, so lines repeat


def corpus(*files):
    """Documents of lines of token ids; an empty line ends a document."""
    return Documents([Lines([[*line, EOS] for line in lines]) for lines in files], BOS, EOS)


def slow_titles(files, longest, room):
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
def test_every_title_once_with_its_text(files, longest, tokens):
    if not any(line for lines in files for line in lines):
        return
    expected, documents = slow_titles(files, longest, tokens - 2), corpus(*files)
    spec = f"titles:longest={longest}"
    said = "no document has a title for --views titles: .* choose another view"
    views = made(spec, documents, tokens, expected, said)
    for index, (title, text) in enumerate(expected):
        (pair,) = pairs_of(views, index, index)
        assert pair.anchor.tolist() == [BOS, *title, EOS]
        assert pair.positives[0].tolist() == [BOS, *text, EOS]
        assert views.text_lengths[index, 0] == len(title) + 2
        assert len(text) + 2 <= views.text_lengths[index, 1] <= tokens
        assert pair.identity == hashes(documents, pair)
        content = whole_text(documents, pair.document)
        (begin, end), (low, high) = pair.spans
        assert (content[begin:end], content[low:high]) == (title, text)


TITLES = corpus([[1], [2, 3], [], [1], [4], [], [5], [], [6, 7, 8, 9], [3], [], [7, 8], [7, 8], [9]])


@pytest.mark.parametrize(
    ("spec", "documents", "said"),
    [
        ("neighbor", in_memory([6, 0, 2, 1, 0, 3]), "1 pairs of neighbours; 2 of 3 documents have fewer than 2 sent"),
        ("cloze", in_memory([6, 0, 2, 1, 0, 3]), "2 pairs of a sentence and its context; 2 of 3 documents have fewer"),
        ("titles:longest=3", TITLES, "1 of 5 documents have a title; 1 have one line, 1 begin with more than 3 tokens, "
         "and 2 share their first line with another"),
    ],
)  # fmt: skip
def test_documents_without_a_pair_are_counted(spec, documents, said, caplog):
    caplog.set_level(logging.INFO)
    source(spec, documents)
    assert said in caplog.text


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("cloze:before=0,after=0", "set before or after to 1 or more"),
        ("cloze:before=-1", "is not a whole number from 0 to 10000"),
        ("cloze:keep=1.1", "is not a number from 0 to 1"),
        ("cloze:sentences=2", "cloze has no knob 'sentences'"),
        ("titles:longest=0", "longest"),
        ("cloze", "--views same"),
    ],
)
def test_mistakes(spec, said):
    with pytest.raises(UserError, match=said):
        source(spec, in_memory([4, 4], boundary="line" if spec == "cloze" else "blank"))
