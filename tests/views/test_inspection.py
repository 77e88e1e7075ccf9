"""Marked views as lines, to the letter."""

import numpy as np
import pytest

from fairseq_clear.text.tokenizers import WhitespaceTokenizer
from fairseq_clear.views.inspection import ViewPrinter, mark_view

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
