"""Marked views: what is said of a view is what single steps did; lines, to the letter."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_clear.augmentations.chain import build_augmentation
from fairseq_clear.text.tokenizers import WhitespaceTokenizer
from fairseq_clear.views.inspection import ViewPrinter, draw_item, longest_ordered, mark_view
from fairseq_clear.views.view_maker import ViewMaker
from fairseq_clear.views.view_source import ViewSource
from tests.augmentations import cases

IS_SPECIAL = np.isin(np.arange(cases.DELETE + 1), [cases.BOS, cases.PAD, cases.EOS, cases.MASK, cases.DELETE])
IS_START = np.append(cases.IS_WORD_START, [True, True]) | IS_SPECIAL


def mark(text, view, source):
    begins = IS_START[text]
    begins[1:] |= IS_SPECIAL[text[:-1]]
    return mark_view(text, view, source, begins)


def view_of(spec, content, seed):
    text = cases.array([cases.BOS, *content, cases.EOS])
    augmented = cases.make_view(build_augmentation(spec, cases.SYMBOLS), text, np.random.default_rng(seed))
    return text, augmented, mark(text, augmented.tokens, augmented.source)


@given(cases.SPECS, cases.CONTENTS, cases.SEEDS)
@settings(max_examples=200, deadline=None)
def test_every_token_has_one_fate(spec, content, seed):
    text, augmented, marked = view_of(spec, content, seed)
    assert not marked.deleted[augmented.source[augmented.source >= 0]].any()
    kept = (augmented.source >= 0) & ~marked.substituted
    assert (augmented.tokens[kept] == text[augmented.source[kept]]).all()
    in_order = augmented.source[(augmented.source >= 0) & ~marked.moved]
    assert (np.diff(in_order) >= 0).all()
    assert not marked.deleted[[0, -1]].any() and not (marked.moved | marked.substituted)[[0, -1]].any()


@given(st.sampled_from(["del-word", "del-word:ratio=0.3", "del-span:spans=2,ratio=0.2"]), cases.CONTENTS, cases.SEEDS)
@settings(max_examples=60, deadline=None)
def test_deletion_deletes_and_no_more(spec, content, seed):
    text, augmented, marked = view_of(spec, content, seed)
    kept = np.isin(np.arange(len(text)), augmented.source)
    assert (marked.deleted == ~kept).all()
    assert not (marked.moved.any() or marked.substituted.any())
    assert marked.deleted.any() == (augmented.tokens == cases.DELETE).any()


@given(cases.CONTENTS, cases.SEEDS)
@settings(max_examples=60, deadline=None)
def test_reordering_moves_and_no_more(content, seed):
    text, augmented, marked = view_of("reorder:pairs=2,ratio=0.1", content, seed)
    assert not (marked.deleted.any() or marked.substituted.any())
    assert marked.moved.any() == (augmented.source != np.arange(len(text))).any()


@given(cases.CONTENTS, cases.SEEDS)
@settings(max_examples=200, deadline=None)
def test_substitution_substitutes_and_no_more(content, seed):
    """A word may also be replaced by its own first piece: then its other pieces count as deleted."""
    text, augmented, marked = view_of("subs:ratio=0.6", content, seed)
    assert not marked.moved.any()
    replaced = set(marked.word[augmented.source[marked.substituted]]) | set(marked.word[marked.deleted])
    assert len(replaced) == augmented.substituted


def test_pieces_that_stayed_and_pieces_that_came_twice():
    """``cat.`` and ``dog.``: the last piece of the word is not substituted, though its first one is."""
    text = cases.array([cases.BOS, 11, 14, 8, cases.EOS])
    marked = mark(text, cases.array([0, 12, 14, 8, 2]), cases.array([0, 1, 2, 3, 4]))
    assert marked.substituted.tolist() == [False, True, False, False, False] and not marked.deleted.any()
    # a word that is replaced by itself twice
    doubled = mark(*map(cases.array, ([cases.BOS, 4, 5, 2], [cases.BOS, 4, 4, 5, 2], [0, 1, 1, 2, 3])))
    assert doubled.substituted.tolist() == [False, True, True, False, False]


@given(st.lists(st.integers(0, 6), max_size=9))
def test_longest_ordered_against_all_subsequences(positions):
    chosen = longest_ordered(positions)
    kept = [position for position, is_kept in zip(positions, chosen, strict=True) if is_kept]
    assert kept == sorted(kept)
    parts = [part for size in range(len(positions) + 1) for part in combinations(positions, size)]
    assert len(kept) == max(len(part) for part in parts if list(part) == sorted(part))


# Lines

SYMBOLS = ["<s>", "<pad>", "</s>", "<unk>", "the", "quick", "brown", "fox", "runs", "swift", "ly", "<mask>", "<del>"]


class Pieces(WhitespaceTokenizer):
    """Words of pieces: ``ly`` is not a word of its own."""

    def decode(self, symbols):
        return super().decode(symbols).replace(" ly", "ly")

    def is_word_start(self, symbol):
        return symbol != "ly"


def ids(text):
    return np.array([SYMBOLS.index(word) for word in f"<s> {text} </s>".split()])


def lines(text, view, source):
    printer = ViewPrinter(SYMBOLS, Pieces(), colour=False)
    marked = mark_view(ids(text), ids(view), np.array(source), printer.begins(ids(text)))
    return printer.text_line(marked), printer.view_line(marked, len(source))


@pytest.mark.parametrize(
    ("text", "view", "source", "expected"),
    [
        ("the fox", "the fox", [0, 1, 2, 3], ("the fox", "the fox")),
        ("the quick fox", "the <del> fox", [0, 1, -1, 3, 4], ("the [-quick-] fox", "the <del> fox")),
        (
            "the quick brown fox runs",
            "<del> fox runs brown",
            [0, -1, 4, 5, 3, 6],
            ("[-the quick-] brown fox runs", "<del> fox runs {+brown+}"),
        ),
        ("the quick fox", "the swift ly fox", [0, 1, 2, 2, 3, 4], ("the quick fox", "the quick\u2192swiftly fox")),
        ("the swift ly fox", "the quick fox", [0, 1, 2, 4, 5], ("the swiftly fox", "the swiftly\u2192quick fox")),
        (
            "the quick brown fox",
            "fox runs the swift quick",
            [0, 4, 3, 1, 2, 2, 5],
            ("the quick brown fox", "{+fox+} {+brown\u2192runs+} the quick\u2192swift quick"),
        ),
        ("swift ly fox", "swift <del> fox", [0, 1, -1, 3, 4], ("swift[-ly-] fox", "swift <del> fox")),
        ("swift ly fox", "<del> ly fox", [0, -1, 2, 3, 4], ("[-swift-]ly fox", "<del> ly fox")),
        ("the </s> fox <unk>", "the </s> <del> <unk>", [0, 1, 2, -1, 4, 5], ("the </s> [-fox-] <unk>", "the </s> <del> <unk>")),
        ("the fox runs", "the <mask> runs", [0, 1, -1, 3, 4], ("the [-fox-] runs", "the <mask> runs")),
        ("the fox", "swift ly the quick fox", [0, -1, -1, 1, -1, 2, 3], ("the fox", "[+swiftly+] the [+quick+] fox")),
        ("the fox runs", "fox the", [0, 2, 1, 4], ("the fox [-runs-]", "{+fox+} the")),
        ("", "", [0, 1], ("(empty)", "(empty)")),
    ],
)  # fmt: skip
def test_lines(text, view, source, expected):
    assert lines(text, view, source) == expected


class WithNegative(ViewSource):
    negatives = 1
    text_lengths = np.full((1, 3), 4)

    def __call__(self, index, rng):
        return [(0, [ids("the fox"), ids("quick fox"), ids("brown fox")])]


def test_hard_negatives_of_a_source_are_shown():
    maker = ViewMaker(WithNegative(), build_augmentation("none", cases.SYMBOLS), 1, 512)
    shown = list(draw_item(0, 1, maker, ViewPrinter(SYMBOLS, Pieces(), colour=False)))
    assert shown[1:] == ["  view 1  the fox", "  view 2  quick fox", "  view 3, hard negative  brown fox"]


class Underlined(WhitespaceTokenizer):
    """As sentencepiece: a word begins with a mark, which may be a piece by itself."""

    def decode(self, symbols):
        return "".join(symbols).replace("\u2581", " ").removeprefix(" ")

    def is_word_start(self, symbol):
        return symbol.startswith("\u2581")


def test_white_space_that_is_a_piece_of_its_own():
    symbols = ["<s>", "<pad>", "</s>", "\u2581be", "\u2581", "divid", "ed", "\u2581in", "to", "<del>"]
    printer = ViewPrinter(symbols, Underlined(), colour=False)
    text = np.array([0, 3, 4, 5, 6, 7, 8, 2])  # be divided into

    def shown(*source):
        view = np.array([text[place] if place >= 0 else 9 for place in source])
        marked = mark_view(text, view, np.array(source), printer.begins(text))
        return printer.text_line(marked), printer.view_line(marked, len(view))

    assert shown(*range(8)) == ("be divided into",) * 2
    assert shown(0, 1, 2, -1, 5, 6, 7) == ("be [-divided-] into", "be <del> into")
    assert shown(0, 1, -1, 3, 4, 5, 6, 7) == ("be [-\u2581-]divided into", "be <del> divided into")
    assert shown(0, 1, 2, 3, 4, 6, 5, 7) == ("be divided into", "be divided{+to+} in")
    assert shown(0, 2, 5, 6, 1, -1, 4, 7) == ("be [-divid-]ed into", "into {+be+} <del> {+ed+}")
    text = text[[0, 3, 4, 6, 1, 2, 7]]  # "divid", "ed", "to", then "be" and a mark
    assert shown(0, 4, 5, 1, 2, 3, 6)[1] == "{+be+} dividedto"
