"""Chains and mixtures: what a view keeps of its text with any spec, and which specs are errors."""

import pickle
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_clear.augmentations import AUGMENTATIONS
from fairseq_clear.augmentations.chain import build_augmentation
from fairseq_clear.seeding import Draws
from fairseq_clear.tokens import Ragged
from tests.augmentations import cases


def view(spec, tokens, seed, symbols=cases.SYMBOLS):
    return cases.make_view(build_augmentation(spec, symbols), tokens, np.random.default_rng(seed))


def wrap(content, has_bos, has_eos):
    return [cases.BOS] * has_bos + content + [cases.EOS] * has_eos


def check(text, content, has_bos, has_eos, augmented, has_subs):
    tokens, source = augmented.tokens, augmented.source
    assert tokens.dtype == source.dtype == np.int64 and tokens.shape == source.shape
    if has_bos:
        assert (tokens[0], source[0]) == (cases.BOS, 0)
    if has_eos:
        assert (tokens[-1], source[-1]) == (cases.EOS, len(text) - 1)
    assert len(tokens) > has_bos + has_eos
    is_deleted = tokens == cases.DELETE
    assert not (is_deleted[1:] & is_deleted[:-1]).any()
    assert (source[is_deleted] == -1).all()
    old = source >= 0
    if not has_subs:
        assert (tokens[old] == np.array(text)[source[old]]).all()
        assert set(tokens[~old]) <= {cases.DELETE, cases.MASK}, "a new token is not a special symbol"
        assert len(set(source[old])) == old.sum(), "a token was copied twice"
    inside = source[has_bos : len(tokens) - has_eos]
    assert all(-1 <= position - has_bos < len(content) for position in inside if position >= 0)


@pytest.mark.slow
@given(cases.SPECS, cases.CONTENTS, st.booleans(), st.booleans(), cases.SEEDS)
@settings(max_examples=300, deadline=None)
def test_contract(spec, content, has_bos, has_eos, seed):
    # a text whose own last token is </s> has a final </s>
    content = content + [4] if content[-1] == cases.EOS else content
    text = wrap(content, has_bos, has_eos)
    chain = build_augmentation(spec, cases.SYMBOLS)
    augmented = cases.make_view(chain, text, np.random.default_rng(seed))
    check(text, content, has_bos, has_eos, augmented, chain.needs_synonyms)
    assert len(augmented.tokens) <= chain.bound(len(text))
    again = cases.make_view(pickle.loads(pickle.dumps(chain)), text, np.random.default_rng(seed))
    assert (again.tokens == augmented.tokens).all() and (again.source == augmented.source).all()
    assert build_augmentation(chain.spec, cases.SYMBOLS).spec == chain.spec


@given(st.lists(st.sampled_from(list(AUGMENTATIONS)), min_size=1, max_size=3), cases.CONTENTS, cases.SEEDS)
@settings(max_examples=60, deadline=None)
def test_ratio_zero_is_the_identity(names, content, seed):
    text = wrap(content, True, True)
    augmented = view("+".join(f"{name}:{cases.share_of(name)}=0" for name in names), text, seed)
    assert (augmented.tokens.tolist(), augmented.source.tolist()) == (text, list(range(len(text))))
    assert augmented.substituted == 0


@pytest.mark.parametrize("text", [[], [cases.BOS], [cases.EOS], [cases.BOS, cases.EOS]])
@pytest.mark.parametrize("spec", ["none", "del-word:ratio=1", "subs+del-span+reorder"])
def test_a_text_without_content_stays(text, spec):
    augmented = view(spec, text, 1)
    assert (augmented.tokens.tolist(), augmented.source.tolist()) == (text, list(range(len(text))))


def test_a_chain_without_steps_draws_nothing():
    for spec, is_identity in (("none", True), ("none/none", True), ("none/del-word", False), ("reorder", False)):
        chain = build_augmentation(spec, cases.SYMBOLS)
        assert chain.is_identity == is_identity
        if is_identity:
            assert chain(Ragged.of([cases.array([4, 5])]), None).views.tokens.tolist() == [4, 5]


def test_inner_ends_of_sentences_are_content():
    tokens = view("del-word:ratio=1", [cases.BOS, 4, cases.EOS, cases.EOS, 5, cases.EOS], 1).tokens
    assert tokens.tolist() == [cases.BOS, cases.DELETE, cases.EOS]
    # a text without tokens may be last
    texts = Ragged.of([cases.array([0, 4, 5, 2]), cases.array([0, 2])])
    made = build_augmentation("del-word:ratio=1", cases.SYMBOLS)(texts, Draws.of(1, 1, np.arange(2), 1))
    assert [made.views[row].tolist() for row in range(2)] == [[0, cases.DELETE, 2], [0, 2]]


def test_runs_collapse_at_the_end_and_not_before():
    # half of the text is deleted, then its halves change places; had the run collapsed first, the two spans would not fit
    symbols = replace(cases.SYMBOLS, delete=99)
    spec = "del-span:spans=1,ratio=0.5+reorder:pairs=1,ratio=0.5"
    augmented = view(spec, range(100, 200), 1, symbols)
    kept = augmented.source[augmented.source >= 0].tolist()
    assert len(kept) == 50 and 0 < sum(position < 50 for position in kept) < 50
    assert kept == sorted(kept, key=lambda position: (position < 50, position))
    assert (augmented.tokens == 99).sum() == 2, "the run was cut in two by the swap"


def test_the_steps_of_a_chain_draw_independently():
    """Two deletions of a half leave a quarter; with equal draws the second would find its tokens deleted already."""
    text, symbols = list(range(100, 300)), replace(cases.SYMBOLS, delete=99)
    views = [view("del-word:ratio=0.5+del-word:ratio=0.5", text, seed, symbols) for seed in range(50)]
    left = np.mean([(one.source >= 0).mean() * len(one.source) / len(text) for one in views])
    assert abs(left - 0.25) < 0.02


def test_alternatives_are_drawn_uniformly_and_whole():
    chain = build_augmentation("del-word:ratio=1/none/subs:ratio=1", cases.SYMBOLS)
    rng = np.random.default_rng(1)
    drawn = Counter(tuple(cases.make_view(chain, [4, 12], rng).tokens.tolist()) for _ in range(3000))
    assert cases.are_alike(drawn, [(cases.DELETE,), (4, 12), (5, 12)])


@given(cases.CONTENTS, cases.SEEDS)
@settings(max_examples=60, deadline=None)
def test_words_are_counted_where_they_are_substituted(content, seed):
    augmented = view("subs:ratio=0.5", content + [4], seed)
    text = content + [4]
    words = [tuple(text[start:end]) for start, end in cases.split_words(text) if cases.is_word(text, start)]
    assert augmented.words == len(words)
    assert augmented.substituted <= sum(word in cases.ROWS for word in words)
    assert (augmented.substituted > 0) == (augmented.tokens.tolist() != text)
    assert view("del-word/reorder", text, seed)[2:] == (0, 0)


@pytest.mark.parametrize(
    ("spec", "canonical"),
    [
        ("", "none"),
        ("del-word", "del-word:ratio=0.7"),
        ("del-span:ratio=.1", "del-span:spans=5,ratio=0.1"),
        ("subs + del-span:ratio=0.050,spans=5/none", "subs:ratio=0.3+del-span:spans=5,ratio=0.05/none"),
    ],
)
def test_the_spec_is_spelled_out(spec, canonical):
    assert build_augmentation(spec, cases.SYMBOLS).spec == canonical


def test_bounds():
    assert [build_augmentation("del-span+reorder", cases.SYMBOLS).bound(n) for n in (0, 1, 512)] == [0, 1, 512]
    assert build_augmentation("subs:ratio=0.3", cases.SYMBOLS).bound(512) == 512 + 154
    assert build_augmentation("subs:ratio=0.5+subs:ratio=0.5/none", cases.SYMBOLS).bound(10) == 23
    bare = replace(cases.SYMBOLS, synonyms=None)  # before the table is loaded
    chain = build_augmentation("del-word/subs", bare)
    assert chain.needs_synonyms and chain.bound(10) == 13
    assert not build_augmentation("del-word+reorder", bare).needs_synonyms


def test_a_mask_of_the_vocabulary_is_a_word_of_its_own() -> None:
    piece = cases.INNER[0]
    assert not cases.SYMBOLS.begin_words[piece]
    assert replace(cases.SYMBOLS, mask=piece).begin_words[piece]
