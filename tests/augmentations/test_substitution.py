"""Synonym substitution: whole words, their share, their alternatives, the bound of growth."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from fairseq_clear.augmentations import SynonymTable
from fairseq_clear.augmentations.substitution import count_words, substitute_words
from fairseq_clear.tokens import Ragged
from tests.augmentations import cases


def substitute(tokens, seed, ratio, symbols=cases.SYMBOLS):
    return cases.one(substitute_words)(tokens, np.random.default_rng(seed), symbols=symbols, ratio=ratio)


def counted(before, after, source):
    """The counts of one text and its view, between another text and an empty one."""
    other, source = cases.array([4, 5]), np.array(source, np.int64)
    befores, afters = (Ragged.of([other, cases.array(text), cases.array([])]) for text in (before, after))
    sources = np.concatenate([[0, 1], np.where(source < 0, -1, source + 2)])
    (first, words, empty), (unchanged, replaced, nothing) = count_words(befores, afters, sources, cases.SYMBOLS)
    assert (first, unchanged, empty, nothing) == (2, 0, 0, 0)
    return words, replaced


def read_words(tokens, result, source):
    """[(word, what stands in its place)], checking that words keep their order and that nothing stands between them."""
    pairs, place = [], 0
    for start, end in cases.split_words(tokens):
        taken = [i for i in range(len(result)) if start <= source[i] < end]
        assert taken == list(range(place, place + len(taken)))
        place += len(taken)
        pairs.append((tuple(tokens[start:end]), tuple(result[i] for i in taken)))
        kept = [source[i] for i in taken] == list(range(start, end)) and pairs[-1][0] == pairs[-1][1]
        assert kept or all(source[i] == start for i in taken)
    assert place == len(result)
    return pairs


@given(cases.CONTENTS, cases.SEEDS, st.integers(0, 20))
def test_whole_words_become_their_alternatives_and_nothing_else_changes(tokens, seed, twentieths):
    ratio = twentieths / 20
    result, source = substitute(tokens, seed, ratio)
    pairs = read_words(tokens, result.tolist(), source.tolist())
    changed = [(old, new) for old, new in pairs if old != new]
    assert all(new in cases.ROWS[old] for old, new in changed)
    words = sum(cases.is_word(tokens, start) for start, _ in cases.split_words(tokens))
    assert len(changed) <= math.floor(ratio * words) + 1
    assert len(result) <= len(tokens) + math.ceil(ratio * len(tokens))
    assert counted(tokens, result, source) == (words, len(changed))


def test_words_are_never_crossed():
    # (4, 14) and (8, 15, 16) are words with synonyms; a special, a start or the text's border between the pieces parts them
    parted = [[4, special, 14] for special in (cases.EOS, cases.MASK, cases.DELETE)]
    for tokens in (*parted, [8, 15, cases.EOS, 16], [14, 4], [8, 15], [4, 14, 17]):
        inside = [word for word in cases.ROWS if word in {tuple(tokens[a:b]) for a, b in cases.split_words(tokens)}]
        pairs = read_words(tokens, *map(list, substitute(tokens, 1, 1.0)))
        assert [old for old, new in pairs if old != new] == inside
    # without the border it is one word
    assert read_words([4, 14], *map(list, substitute([4, 14], 1, 1.0)))[0][1] in cases.ROWS[(4, 14)]


def test_specials_are_no_words_for_the_ratio():
    tokens = [4, cases.MASK, cases.EOS, cases.DELETE] * 4
    for seed in range(5):
        result, source = substitute(tokens, seed, 0.5)
        assert (result == 5).sum() == 2
        assert counted(tokens, result, source) == (4, 2)


@pytest.mark.parametrize("length", [1, 2, 5])
def test_the_ratio_is_of_all_words_kept_on_average_however_short_the_text(length):
    tokens = ([4, 12] * length)[:length]  # 12 has no synonym
    changed = [int((substitute(tokens, seed, 0.3)[0] == 5).sum()) for seed in range(4000)]
    assert abs(np.mean(changed) - 0.3 * length) < 4 * 0.5 / len(changed) ** 0.5
    # where fewer words have synonyms than the ratio asks for, all are replaced
    assert substitute([12, 12, 4, 12, 12, 4], 1, 0.9)[0].tolist() == [12, 12, 5, 12, 12, 5]


def test_words_and_alternatives_are_drawn_uniformly():
    tokens = [4, 14, 12, 4, 14]
    results = [substitute(tokens, seed, 0.34)[0].tolist() for seed in range(4000)]
    new = [result for result in results if result != tokens]
    first = [result for result in new if result[-3:] == [12, 4, 14]]
    counts = Counter(tuple(result[:-3]) for result in first)
    assert cases.are_alike(counts, cases.ROWS[(4, 14)])
    assert chisquare([len(first), len(new) - len(first)]).pvalue > 1e-3


GROWING = SynonymTable.build({(4,): [(5,) + (14,) * 3], (6,): [(7,)], (8, 15): [(9,)]}, cases.IS_WORD_START)


def test_replacements_that_exceed_the_bound_are_skipped_at_random_and_others_are_not():
    symbols = replace(cases.SYMBOLS, synonyms=GROWING)
    tokens = [4, 4, 6, 12]  # at ratio 0.75 three tokens more: one (4,) can grow, (6,) always fits
    results = {tuple(substitute(tokens, seed, 0.75, symbols)[0]) for seed in range(200)}
    grown = (5, 14, 14, 14)
    assert results == {(*grown, 4, 7, 12), (4, *grown, 7, 12)}
    # words that shrink make room for words that grow
    tokens = [4, 8, 15, 8, 15, 12, 12, 12]  # ratio 1/8: one token more, or three with two shrinking words
    everything = {tuple(substitute(tokens, seed, 0.125, symbols)[0]) for seed in range(100)}
    assert max(map(len, everything)) <= 9
    assert substitute([4, 8, 15], 1, 1.0, symbols)[0].tolist() == [5, 14, 14, 14, 9]


def test_counting_tells_deleted_words_from_substituted_ones():
    before = cases.array([4, 14, 12, 13, 4, 14])
    after, source = cases.array([6, cases.DELETE, 13, 4, 14]), cases.array([0, -1, 3, 4, 5])
    assert counted(before, after, source) == (4, 1)
    moved, moved_source = cases.array([13, 4, 14, 4, 14, 12]), cases.array([3, 4, 5, 0, 1, 2])
    assert counted(before, moved, moved_source) == (4, 0)
    assert counted([9], [9, 9], [0, 0]) == (1, 1)
    assert counted([], [], []) == (0, 0)
