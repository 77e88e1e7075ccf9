"""The arrays of a table, and the lookup of all words of a text at once against one of each word in a dictionary."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fairseq_clear.augmentations import SynonymTable
from tests.augmentations.cases import IS_WORD_START, TABLE, array, every_row

WORDS = st.lists(st.integers(4, 8), min_size=1, max_size=4).map(tuple)


@given(st.dictionaries(WORDS, st.lists(WORDS, max_size=3), max_size=8))
def test_rows_come_back(rows):
    assert every_row(SynonymTable.build(rows, IS_WORD_START)) == {
        word: others for word, others in rows.items() if others
    }


def test_an_empty_table_and_an_empty_text_find_nothing():
    empty = SynonymTable.build({}, IS_WORD_START)
    assert len(empty) == 0
    assert empty.find(array([4, 5]), array([0, 1])).tolist() == [-1, -1]
    assert TABLE.find(array([]), array([])).tolist() == []


@given(st.lists(WORDS, min_size=1, max_size=20))
@example([(4, 4, 4), (5, 8), (4, 9), (9, 4)])
def test_words_of_several_pieces_are_found(words):
    rows = {(4, 8): [(5,)], (6,): [(5,)], (5, 5, 6): [(4,)], (5, 8): [(4,)]}
    table = SynonymTable.build(rows, IS_WORD_START)
    tokens = array([piece for word in words for piece in word])
    starts = array(np.cumsum([0, *map(len, words[:-1])]))
    assert table.find(tokens, starts).tolist() == [list(rows).index(word) if word in rows else -1 for word in words]


@pytest.mark.parametrize("pieces", [[4, 4], [4, 5, 4, 5], [4, 5, 6, 4, 5, 6]])
def test_a_word_that_stands_twice_is_an_error(pieces):
    offsets = array([0, len(pieces) // 2, len(pieces)])

    def table(pieces):
        return SynonymTable(IS_WORD_START, array(pieces), offsets, array([0, 1, 2]), array([6, 7]), array([0, 1, 2]))

    with pytest.raises(ValueError, match="stands twice"):
        table(pieces)
    assert len(table([*pieces[:-1], 8])) == 2


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("word_offsets", [0, 1, 2, 4, 7, 8, 9], "do not fit"),
        ("word_offsets", [1, 2, 3, 4, 7, 8, 10], "do not fit"),
        ("row_offsets", [0, 1, 4, 7, 9, 10, 12], "do not fit"),
        ("row_offsets", [0, 1, 4, 7, 9, 11], "not one row"),
        ("alternative_offsets", [0, 1], "do not fit"),
        ("word_pieces", [4, 5, 4, 14, 8, 15, 16, 10, 11, 24], "not in its vocabulary"),
        ("is_word_start", [True] * 4, "not in its vocabulary"),
    ],
)
def test_inconsistent_arrays_are_an_error(field, value, said):
    dtype = np.bool_ if field == "is_word_start" else np.int64
    with pytest.raises(ValueError, match=said):
        replace(TABLE, **{field: np.array(value, dtype)})
    arrays = {f.name: getattr(TABLE, f.name) for f in fields(TABLE) if f.init}
    assert len(SynonymTable(**arrays)) == len(TABLE), "the arrays that this test changes fit as they are"
