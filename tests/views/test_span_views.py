"""Spans of documents: DeCLUTR's section 3.1.1 against enumeration and scipy's beta distribution; the items made of them."""

import logging
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta, chisquare, kstest

from fairseq_clear.errors import UserError
from fairseq_clear.seeding import Draws
from fairseq_clear.views import span_views
from fairseq_clear.views.span_views import STRATEGIES, SpanSettings, draw_beta, kind_of, place_positives, scale_lengths
from fairseq_clear.views.view_table import build_view_source
from tests.augmentations.cases import are_alike
from tests.views.cases import content_hash, pairs_of
from tests.views.documents_of_text import BOS, EOS, in_memory, whole_text


def draws_of(seed, rows=1):
    return Draws.of(seed, 1, np.arange(rows), 0)


def sample_spans(n, low, high, settings, draws):
    """The spans of one document, between two others: for each anchor, the anchor and then its positives."""
    around = settings.least_length + 100
    limits = ([settings.low, low, settings.low], [settings.high, high, settings.high])
    keys = np.concatenate([[np.uint64(1)], draws.key, [np.uint64(2)]])
    found = span_views.sample_spans(np.array([around, n, around]), *map(np.array, limits), settings, Draws(keys))
    assert found.shape == (3, settings.anchors, 1 + settings.positives, 2)
    return [[tuple(span) for span in group] for group in found[1].tolist()]


def sample_many(n, low, high, settings, count):
    """(count, A, 1 + P, 2) the spans of as many documents of one length."""
    shape = (np.full(count, value) for value in (n, low, high))
    return span_views.sample_spans(*shape, settings, draws_of(1, count))


def place_anchors(n, lengths, apart, draws):
    size = len(draws.key)
    many = np.tile(lengths, (size, 1))
    return span_views.place_anchors(np.full(size, n), many, np.full(size, apart), draws)


def cut(anchors=2, positives=2, low=2, high=5, strategy="any", **shape):
    usual = {"alpha_anchor": 4.0, "beta_anchor": 2.0, "alpha_positive": 2.0, "beta_positive": 4.0}
    return SpanSettings(anchors=anchors, positives=positives, low=low, high=high, strategy=strategy, **usual | shape)


@st.composite
def cuts(draw):
    strategy = draw(st.sampled_from(STRATEGIES))
    low = draw(st.integers(2 if strategy == "overlapping" else 1, 5))
    shape = draw(st.sampled_from([0.3, 1.0, 4.0]))
    return cut(
        draw(st.integers(1, 3)), draw(st.integers(1, 3)), low, draw(st.integers(low, 9)), strategy,
        alpha_anchor=shape, beta_anchor=1 / shape, alpha_positive=shape, beta_positive=shape,
    )  # fmt: skip


def slow_kind(anchor, positive):
    a, p = set(range(*anchor)), set(range(*positive))
    if not a & p:
        # adjacent: nothing between them
        return "adjacent" if max(a | p) - min(a | p) + 1 == len(a) + len(p) else "apart"
    return "subsumed" if p <= a else "overlapping"


def allowed(n, anchor, length, strategy):
    """The starts of the paper's set {s_start - length ... s_end} that lie in the document and are of this kind."""
    starts = [s for s in range(anchor[0] - length, anchor[1] + 1) if s >= 0 and s + length <= n]
    return [s for s in starts if strategy in ("any", slow_kind(anchor, (s, s + length)))]


@given(cuts(), st.integers(0, 20), st.integers(0, 2**32))
def test_every_document_that_is_long_enough(s, more, seed):
    n = s.least_length + more
    spans = sample_spans(n, s.low, s.high, s, draws_of(seed))
    assert len(spans) == s.anchors and all(len(group) == 1 + s.positives for group in spans)
    anchors = [group[0] for group in spans]
    for anchor, *positives in spans:
        for span in (anchor, *positives):
            assert 0 <= span[0] < span[1] <= n and s.low <= span[1] - span[0] <= s.high
        for positive in positives:
            assert positive[0] in allowed(n, anchor, positive[1] - positive[0], s.strategy)
            assert kind_of(anchor, positive) == slow_kind(anchor, positive)
            assert s.strategy in ("any", kind_of(anchor, positive))
    for one, other in zip(anchors, anchors[1:], strict=False):
        assert other[0] - one[1] >= s.high, "anchors are at least max tokens apart"
    again = sample_spans(n, s.low, s.high, s, draws_of(seed))
    assert again == spans


@given(cuts(), st.integers(0, 60))
def test_the_least_length_is_the_least(s, n):
    greatest = int(s.greatest_high(np.array([n]))[0])
    for high in (greatest, greatest + 1):
        scaled = SpanSettings(s.anchors, s.positives, 1, high, 1, 1, 1, 1, s.strategy)
        assert (scaled.least_length <= n) == (high == greatest)
    # and it is no more than is needed: with all lengths at their greatest, one token less leaves no place
    if s.anchors > 1:
        with pytest.raises(AssertionError, match="do not fit"):
            place_anchors(s.least_length - 1, np.full(s.anchors, s.high), s.high, draws_of(1))


@pytest.mark.parametrize(("low", "high"), [(32, 512), (1, 1), (7, 8)])
def test_lengths_are_equal_parts_of_the_unit_interval(low, high):
    parts = high - low + 1
    k = np.arange(parts)
    inside = scale_lengths((k + 0.5) / parts, low, high)
    assert inside.tolist() == list(range(low, high + 1)) and inside.dtype == np.int64
    assert scale_lengths(np.array([0.0, 1.0, np.nextafter(1.0, 0)]), low, high).tolist() == [low, high, high]


@pytest.mark.parametrize(("alpha", "shape"), [(4, 2), (2, 4), (0.5, 0.5), (1, 1)])
def test_lengths_have_the_beta_distributions_quantiles(alpha, shape):
    low, high, draws = 3, 10, 20_000
    lengths = scale_lengths(draw_beta(draws_of(1, draws), 7, 1, alpha, shape)[:, 0], low, high)
    edges = beta(alpha, shape).cdf(np.arange(high - low + 2) / (high - low + 1))
    counts = np.bincount(lengths - low, minlength=high - low + 1)
    assert chisquare(counts, draws * np.diff(edges)).pvalue > 1e-3
    # the negative control: the paper's floor(p * (max - min) + min) never reaches it
    paper = beta(alpha, shape).cdf(np.append(np.arange(high - low + 1) / (high - low), 1.0))
    assert np.diff(paper)[-1] == 0 < counts[-1]
    # long spans hardly round: their quotients follow the continuous distribution
    long = scale_lengths(draw_beta(draws_of(2, 50), 7, 100, alpha, shape).reshape(-1), 0, 10**7) / 10**7
    assert kstest(long, beta(alpha, shape).cdf).pvalue > 1e-3


def test_anchors_are_uniform_over_all_placements():
    lengths, n, apart = np.array([2, 1, 3]), 15, 3
    starts = Counter(map(tuple, place_anchors(n, lengths, apart, draws_of(1, 6000)).tolist()))
    possible = [
        (a, b, c)
        for a in range(n) for b in range(n) for c in range(n)
        if b - (a + 2) >= apart and c - (b + 1) >= apart and c + 3 <= n
    ]  # fmt: skip
    assert are_alike(starts, possible) and len(possible) == 20


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    ("n", "anchor", "length"),
    [(30, (10, 15), 4), (30, (10, 13), 6), (9, (1, 5), 4), (12, (0, 6), 3), (12, (7, 12), 5)],
)
def test_positives_are_uniform_over_the_papers_set(strategy, n, anchor, length):
    starts = allowed(n, anchor, length, strategy)
    if not starts:
        assert strategy == "subsumed" and length > anchor[1] - anchor[0]
        return
    u = np.random.default_rng(1).random(400 * len(starts))
    around = (np.full(len(u), value) for value in (n, *anchor, length))
    drawn = Counter(place_positives(*around, strategy, u).tolist())
    assert set(drawn) == set(starts) and (len(starts) == 1 or are_alike(drawn, starts))


def test_the_frequencies_of_the_three_kinds():
    """Far from the ends a positive of p tokens has a + p + 1 places around an anchor of a: 2 touch it, |a - p + 1| or none lie
    within it, the others overlap.
    """
    s, n, expected, found = cut(1, 2, 2, 6), 10_000, Counter(), Counter()
    for ((anchor, *positives),) in sample_many(n, s.low, s.high, s, 6000).tolist():
        for positive in positives:
            a, p = anchor[1] - anchor[0], positive[1] - positive[0]
            places = a + p + 1
            within = max(a - p + 1, 0)
            for kind, count in (("adjacent", 2), ("subsumed", within), ("overlapping", places - 2 - within)):
                expected[kind] += count / places
            found[kind_of(anchor, positive)] += 1
    kinds = list(expected)
    assert chisquare([found[kind] for kind in kinds], [expected[kind] for kind in kinds]).pvalue > 1e-3
    assert min(found.values()) > 1000


def test_subsumed_positives_are_scaled_to_their_anchor():
    """Beta over [min, length of the anchor], whose greatest is reached."""
    s = cut(1, 1, 1, 4, "subsumed", alpha_positive=1.0, beta_positive=1.0)
    pairs = Counter(map(tuple, np.diff(sample_many(50, 1, 4, s, 6000)).reshape(-1, 2).tolist()))
    assert set(pairs) == {(a, p) for a in range(1, 5) for p in range(1, a + 1)}
    assert chisquare([pairs[4, p] for p in range(1, 5)]).pvalue > 1e-3


# Items

SETTINGS = {"short_documents": "clip", "same_document_negatives": "include", "tokens_per_sample": 512}


def source(documents, spec="span:min=2,max=6", **task):
    return build_view_source(spec, documents, settings={**SETTINGS, **task})


SHAPES = st.lists(st.integers(0, 40), min_size=1, max_size=20).filter(any)
SHORT = st.sampled_from(["clip", "skip"])


@given(SHAPES, st.integers(1, 3), st.integers(1, 3), st.sampled_from(STRATEGIES), SHORT, st.integers(0, 2**32))
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
            of_document = documents.identities(np.array([number]))[0]
            assert pair.identity == (content_hash(pair.anchor) if anchors > 1 else of_document)
            texts = (pair.anchor, *pair.positives)
            for text, (begin, end), bound in zip(texts, pair.spans, views.text_lengths[index], strict=False):
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
    for index, lengths in enumerate(({2, 3, 4, 5, 6}, {1, 2, 3}, {1}, {2, 3, 4, 5, 6})):
        drawn = [pair for seed in range(200) for pair in pairs_of(views, index, seed)]
        assert {end - begin for pair in drawn for begin, end in pair.spans} == lengths


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
    for short, remedy in (("skip", "--short-documents clip"), ("clip", "--document-boundary line")):
        said = f"all 3 documents are too short: the longest has 2 tokens of the 18 tokens.*{remedy}"
        with pytest.raises(UserError, match=said):
            source(in_memory([2, 0, 1, 0, 1, 1]), short_documents=short)


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
    with pytest.raises(UserError, match=said):
        source(in_memory([40]), spec)


def test_identity_of_the_span_or_of_the_document():
    documents = in_memory([60, 0, 60])
    include, exclude = (source(documents, same_document_negatives=value) for value in ("include", "exclude"))
    assert len({pair.identity for index in (0, 1) for pair in pairs_of(include, index, 1)}) == 4
    found = [pair.identity for index in (0, 1) for pair in pairs_of(exclude, index, 1)]
    assert found == documents.identities(np.array([0, 0, 1, 1])).tolist()
    lone = source(documents, "span:anchors=1,min=2,max=5", same_document_negatives="include")
    assert [pairs_of(lone, 0, key)[0].identity for key in (1, 2)] == found[:1] * 2
