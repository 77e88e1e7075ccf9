"""What is said of a view is what was done: against single steps, whose doing is known."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_clear.augmentations.chain import build_augmentation
from fairseq_clear.views.inspection import Words, longest_ordered, mark_view
from tests.augmentations.cases import BOS, CONTENTS, DELETE, EOS, IS_WORD_START, MASK, PAD, SEEDS, SPECS, SYMBOLS, array

WORDS = Words(
    is_start=np.append(IS_WORD_START, [True, True]),
    is_special=np.isin(np.arange(DELETE + 1), [BOS, PAD, EOS, MASK, DELETE]),
)


def view_of(spec, content, seed):
    text = array([BOS, *content, EOS])
    chain = build_augmentation(spec, SYMBOLS)
    augmented = chain(text, np.random.default_rng(seed))
    marked = mark_view(
        text, augmented.tokens, augmented.source, WORDS, delete=DELETE, may_substitute=chain.needs_synonyms
    )
    return text, augmented, marked


@given(SPECS, CONTENTS, SEEDS)
@settings(max_examples=200, deadline=None)
def test_every_token_has_one_fate(spec, content, seed):
    text, augmented, marked = view_of(spec, content, seed)
    came_out = np.isin(np.arange(len(text)), augmented.source)
    assert not (marked.deleted & marked.substituted).any()
    assert (came_out | marked.deleted | marked.substituted).all()
    assert not (came_out & marked.deleted).any()
    kept = (augmented.source >= 0) & ~marked.view_substituted
    assert (augmented.tokens[kept] == text[augmented.source[kept]]).all()
    in_order = augmented.source[(augmented.source >= 0) & ~marked.view_moved]
    assert (np.diff(in_order) >= 0).all()
    ends = [0, len(text) - 1]
    assert not (marked.deleted | marked.moved | marked.substituted)[ends].any()


@given(st.sampled_from(["del-word", "del-word:ratio=0.3", "del-span:spans=2,ratio=0.2"]), CONTENTS, SEEDS)
@settings(max_examples=60, deadline=None)
def test_deletion_deletes_and_no_more(spec, content, seed):
    text, augmented, marked = view_of(spec, content, seed)
    kept = np.isin(np.arange(len(text)), augmented.source)
    assert (marked.deleted == ~kept).all()
    assert not (marked.moved.any() or marked.substituted.any() or marked.view_moved.any())
    assert marked.deleted.any() == (augmented.tokens == DELETE).any() or DELETE in content


@given(CONTENTS, SEEDS)
@settings(max_examples=60, deadline=None)
def test_reordering_moves_and_no_more(content, seed):
    text, augmented, marked = view_of("reorder:pairs=2,ratio=0.1", content, seed)
    assert not (marked.deleted.any() or marked.substituted.any())
    assert marked.moved.sum() == marked.view_moved.sum()
    assert marked.moved.any() == (augmented.source != np.arange(len(text))).any()


@given(CONTENTS, SEEDS)
@settings(max_examples=200, deadline=None)
def test_substitution_substitutes_and_no_more(content, seed):
    text, augmented, marked = view_of("subs:ratio=0.6", content, seed)
    assert not (marked.deleted.any() or marked.moved.any())
    assert len(set(marked.word[marked.substituted])) == augmented.substituted


def test_a_word_replaced_by_its_first_piece():
    text = array([BOS, 11, 14, 8, EOS])
    substituted = mark_view(text, array([0, 11, 8, 2]), array([0, 1, 3, 4]), WORDS, delete=DELETE)
    assert substituted.substituted.tolist() == [False, True, True, False, False] and not substituted.deleted.any()
    for options in ({"may_substitute": True}, {"may_substitute": False}):
        view, source = array([0, 11, DELETE, 8, 2]), array([0, 1, -1, 3, 4])
        deleted = mark_view(text, view, source, WORDS, delete=DELETE, **options)
        assert deleted.deleted.tolist() == [False, False, True, False, False] and not deleted.substituted.any()
    moved = mark_view(text, array([0, 8, 11, 2]), array([0, 3, 1, 4]), WORDS, delete=DELETE, may_substitute=False)
    assert moved.deleted.tolist() == [False, False, True, False, False]


def test_punctuation_after_a_substitute_stayed():
    """``cat.`` and ``dog.``: the last piece of the word is not substituted, though its first one is."""
    text = array([BOS, 11, 14, 8, EOS])
    marked = mark_view(text, array([0, 12, 14, 8, 2]), array([0, 1, 2, 3, 4]), WORDS, delete=DELETE)
    assert marked.substituted.tolist() == [False, True, False, False, False]
    assert marked.view_substituted.tolist() == [False, True, False, False, False]


def test_a_word_replaced_by_itself_twice():
    doubled = mark_view(
        array([BOS, 4, 5, EOS]), array([BOS, 4, 4, 5, EOS]), array([0, 1, 1, 2, 3]), WORDS, delete=DELETE
    )
    assert doubled.substituted.tolist() == [False, True, False, False]
    assert doubled.view_substituted.tolist() == [False, True, True, False, False]


@given(st.lists(st.integers(0, 6), max_size=9))
def test_longest_ordered_against_all_subsequences(positions):
    chosen = longest_ordered(positions)
    kept = [position for position, is_kept in zip(positions, chosen, strict=True) if is_kept]
    assert kept == sorted(kept)
    longest = max(
        size
        for size in range(len(positions) + 1)
        for part in combinations(positions, size)
        if list(part) == sorted(part)
    )
    assert len(kept) == longest


@pytest.mark.parametrize(("order", "moved"), [([0, 1, 2, 3], []), ([0, 3, 1, 2], [1]), ([2, 3, 4, 0, 1], [3, 4])])
def test_the_fewest_tokens_are_said_to_move(order, moved):
    assert np.flatnonzero(~longest_ordered(order)).tolist() == moved
