"""Wei and Zou's operations on words: what each changes, how often, and what it never does."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from fairseq_clear.augmentations import AUGMENTATIONS, SynonymTable
from fairseq_clear.augmentations.chain import build_augmentation
from fairseq_clear.augmentations.eda import apply_eda
from fairseq_clear.errors import UserError
from tests.augmentations import cases

ALPHAS = st.integers(1, 20).map(lambda twentieths: twentieths / 20)


def eda(tokens, seed, symbols=cases.SYMBOLS, **knobs):
    return cases.one(apply_eda)(tokens, np.random.default_rng(seed), symbols=symbols, **knobs)


def proper(tokens):
    return sum(cases.is_word(tokens, start) for start, _ in cases.split_words(tokens))


def lone(length):
    """Words of one piece without synonyms, each different from its neighbours."""
    return [(12, 13, 7, 9)[place % 4] for place in range(length)]


@given(cases.CONTENTS, cases.SEEDS, ALPHAS)
def test_replacement(tokens, seed, alpha):
    result, source = eda(tokens, seed, alpha=alpha, ops="sr")
    changed = 0
    assert (np.diff(source) >= 0).all(), "words keep their order"
    for start, end in cases.split_words(tokens):
        old, new = tuple(tokens[start:end]), tuple(result[(start <= source) & (source < end)].tolist())
        assert new == old or new in cases.ROWS[old]
        changed += new != old
    assert changed <= max(1, np.floor(alpha * proper(tokens)) + 1)


@given(cases.CONTENTS, cases.SEEDS, ALPHAS)
def test_insertion(tokens, seed, alpha):
    result, source = eda(tokens, seed, alpha=alpha, ops="ri")
    old = source >= 0
    assert source[old].tolist() == list(range(len(tokens))) and result[old].tolist() == tokens
    assert len(result) - len(tokens) <= max(4, np.ceil(alpha * len(tokens)))
    words = cases.split_words(tokens)
    new = np.flatnonzero(~old)
    # between words, never within one
    after = np.append(source, len(tokens))
    assert {min(place for place in after[i:] if place >= 0) for i in new} <= {start for start, _ in words} | {
        len(tokens)
    }
    alternatives = {new for start, end in words for new in cases.ROWS.get(tuple(tokens[start:end]), [])}
    assert set(result[new].tolist()) <= {piece for word in alternatives for piece in word}
    if any(len(word) <= 4 for word in alternatives):
        assert len(new) > 0


@given(cases.CONTENTS, cases.SEEDS, ALPHAS)
def test_swap(tokens, seed, alpha):
    result, source = eda(tokens, seed, alpha=alpha, ops="rs")
    assert sorted(source.tolist()) == list(range(len(tokens))) and (result == cases.array(tokens)[source]).all()
    spans = cases.split_words(tokens)
    starts = dict(spans)
    place, order = 0, []
    while place < len(source):
        start = int(source[place])
        assert start in starts, "words move whole"
        length = starts[start] - start
        assert source[place : place + length].tolist() == list(range(start, start + length))
        order.append(start)
        place += length
    fixed = [not cases.is_word(tokens, start) for start, _ in spans]
    assert all(order[i] == spans[i][0] for i in range(len(spans)) if fixed[i])
    moved = sum(order[i] != spans[i][0] for i in range(len(spans)))
    assert moved <= 2 * max(1, np.floor(alpha * proper(tokens)) + 1)


@given(cases.CONTENTS, cases.SEEDS, ALPHAS)
def test_deletion(tokens, seed, alpha):
    result, source = eda(tokens, seed, alpha=alpha, ops="rd")
    assert (np.diff(source) > 0).all() and (result == cases.array(tokens)[source]).all()
    kept = set(source.tolist())
    for start, end in cases.split_words(tokens):
        assert len(kept & set(range(start, end))) in (0, end - start), "words go whole"
        assert cases.is_word(tokens, start) or start in kept
    starts = {start for start, _ in cases.split_words(tokens) if cases.is_word(tokens, start)}
    assert not starts or starts & kept, "never all"


def test_each_word_is_deleted_with_probability_alpha():
    length = 40
    left = np.array([len(eda(lone(length), seed, alpha=0.25, ops="rd")[0]) for seed in range(3000)])
    assert abs(left.mean() - 30) < 4 * (length * 0.25 * 0.75 / len(left)) ** 0.5
    assert abs(left.var() - length * 0.25 * 0.75) < 1


def test_the_word_that_stays_alone_is_drawn_uniformly():
    results = (eda([12, 13, cases.EOS, 7, 14], seed, alpha=1.0, ops="rd")[0] for seed in range(1500))
    expected = [(12, cases.EOS), (13, cases.EOS), (cases.EOS, 7, 14)]
    assert cases.are_alike(Counter(tuple(result.tolist()) for result in results), expected)


@pytest.mark.parametrize(("length", "alpha", "expected"), [(3, 0.1, 1), (15, 0.1, 1.5), (40, 0.25, 10)])
def test_at_least_one_word_and_the_share_on_average(length, alpha, expected):
    tokens = [4] * length
    changed = [(eda(tokens, seed, alpha=alpha, ops="sr")[0] == 5).sum() for seed in range(2000)]
    inserted = [len(eda(tokens, seed, alpha=alpha, ops="ri")[0]) - length for seed in range(2000)]
    for counts in (changed, inserted):
        assert min(counts) >= 1 and abs(np.mean(counts) - expected) < 0.05


def test_one_operation_a_text_or_all():
    tokens = [5, 12, 4, 7, 13] * 4
    kinds = Counter()
    for seed in range(2000):
        result, source = eda(tokens, seed)
        if sorted(source.tolist()) == list(range(len(tokens))) and (result == cases.array(tokens)[source]).all():
            kinds["rs or nothing"] += 1
        elif (source < 0).any():
            kinds["ri"] += 1
        elif len(set(source.tolist())) < len(tokens) and (result == cases.array(tokens)[source]).all():
            kinds["rd"] += 1
        else:
            kinds["sr"] += 1
    # a deletion of nothing looks like a swap: .9^20 of a quarter
    expected = {"ri": 500, "sr": 500, "rd": 500 * (1 - 0.9**20), "rs or nothing": 500 * (1 + 0.9**20)}
    assert chisquare([kinds[kind] for kind in expected], list(expected.values())).pvalue > 1e-3
    result, source = eda(tokens, 3, alpha=0.3, draw="all")
    old = source[source >= 0]
    assert (source < 0).any() and len(set(old.tolist())) < len(tokens) and (np.diff(old) < 0).any()


def test_two_different_words_are_swapped_and_every_pair_alike():
    results = Counter(tuple(eda([12, 13, 7], seed, ops="rs")[0].tolist()) for seed in range(1500))
    assert cases.are_alike(results, [(13, 12, 7), (7, 13, 12), (12, 7, 13)])


def test_operations_one_after_the_other_draw_independently():
    """1.5 of 15 words are changed by each on average, that is 1 or 2: the two numbers are equal in half of the texts."""
    equal = 0
    for seed in range(1000):
        result, source = eda([4] * 15, seed, alpha=0.1, ops="sr-ri", draw="all")
        replaced, inserted = ((result == 5) & (source >= 0)).sum(), (source < 0).sum()
        equal += replaced == inserted
    assert abs(equal - 500) < 5 * 1000**0.5 / 2


@given(cases.CONTENTS, cases.SEEDS, st.sampled_from(["rs", "rd", "rs-rd", "rd-rs"]))
@settings(max_examples=80, deadline=None)
def test_swap_and_deletion_need_no_rows(tokens, seed, ops):
    without = replace(cases.SYMBOLS, synonyms=SynonymTable.build({}, cases.IS_WORD_START))
    views = []
    for symbols in (cases.SYMBOLS, without):
        chain = build_augmentation(f"eda:alpha=0.5,draw=all,ops={ops}", symbols)
        assert chain.needs_words and not chain.needs_synonyms
        view = cases.make_view(chain, tokens, np.random.default_rng(seed))
        assert (view.words, view.substituted) == (0, 0), "nothing is counted that cannot be substituted"
        views.append((view.tokens.tolist(), view.source.tolist()))
    assert views[0] == views[1]


def test_an_operation_that_draws_synonyms_needs_the_table():
    for ops, needs in {"sr": True, "rs-ri": True, "sr-ri-rs-rd": True, "rs-rd": False, "rd": False}.items():
        bare = replace(cases.SYMBOLS, synonyms=None)
        chain = build_augmentation(f"del-word/eda:ops={ops}", bare)
        assert (chain.needs_words, chain.needs_synonyms) == (True, needs)
    chain = build_augmentation("subs:ratio=0+eda:ops=rd,alpha=0", cases.SYMBOLS)
    mixed = cases.make_view(chain, [4, 12], np.random.default_rng(1))
    assert mixed.words == 4, "with steps that draw synonyms, its words count as before"


def test_a_synonym_over_the_budget_is_left_out():
    long = SynonymTable.build({(4,): [(5, 14, 14, 14, 14, 14)]}, cases.IS_WORD_START)
    symbols = replace(cases.SYMBOLS, synonyms=long)
    for ops in ("sr", "ri"):
        assert eda([4, 4], 1, symbols, alpha=1.0, ops=ops)[0].tolist() == [4, 4]
        assert len(eda([4] * 6, 1, symbols, alpha=1.0, ops=ops)[0]) <= 12


def test_the_spec_says_which_operations():
    spec = build_augmentation("eda:ops=rs-rd", cases.SYMBOLS).spec
    assert spec == "eda:alpha=0.1,ops=rs-rd,draw=one"
    for bad in ("eda:ops=sr-xx", "eda:ops=sr-sr", "eda:ops=sr.ri", "eda:draw=two"):
        with pytest.raises(UserError, match="sr, ri, rs, rd, joined by '-'"):
            build_augmentation(bad, cases.SYMBOLS)
    bound = AUGMENTATIONS["eda"].bound
    assert bound(100, {"alpha": 0.1, "ops": "rs-rd", "draw": "all"}) == 100
    assert bound(100, {"alpha": 0.1, "ops": "sr-ri", "draw": "one"}) == 110
    assert bound(100, {"alpha": 0.1, "ops": "sr-ri", "draw": "all"}) == 121


def test_the_operation_does_not_depend_on_the_rounding() -> None:
    """1.5 words are replaced, or 1.5 inserted: 1 or 2 by each operation, alike."""
    found = Counter()
    for seed in range(2000):
        result, source = eda([4] * 15, seed, alpha=0.1, ops="sr-ri")
        inserted = int((source < 0).sum())
        found["ri" if inserted else "sr", inserted or int((result == 5).sum())] += 1
    assert cases.are_alike(found, [(name, count) for name in ("sr", "ri") for count in (1, 2)])


def test_the_place_does_not_depend_on_the_word() -> None:
    """One synonym of 4 or of 10, before, between or after them."""
    found = Counter()
    for seed in range(3000):
        result, source = eda([4, 10], seed, ops="ri")
        new = source < 0
        found[int(np.flatnonzero(new)[0]), int(new.sum())] += 1
    assert cases.are_alike(found, [(place, pieces) for place in range(3) for pieces in (1, 2)])
