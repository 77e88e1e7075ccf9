"""Rows of different lengths in one array, against lists."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_clear import tokens
from fairseq_clear.tokens import Ragged, as_tokens, interleave, place_rows, ranges

ROWS = st.lists(st.lists(st.integers(0, 99), max_size=6), max_size=6)


def ragged(rows):
    return Ragged.of([np.array(row, np.int64) for row in rows])


def lists(texts):
    return [texts[row].tolist() for row in range(len(texts))]


@pytest.mark.parametrize("long", [256, 0])  # with 0, rows are copied one by one
@given(rows=ROWS, data=st.data())
def test_against_lists(long, rows, data):
    original, tokens.LONG_ROW = tokens.LONG_ROW, long
    try:
        texts = ragged(rows)
        assert lists(texts) == rows and texts.lengths.tolist() == list(map(len, rows))
        assert texts.rows.tolist() == [number for number, row in enumerate(rows) for _ in row]
        chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=8)) if rows else []
        assert lists(texts.select(np.array(chosen, np.int64))) == [rows[number] for number in chosen]
        most = data.draw(st.integers(1, 7))
        assert lists(texts.cut(most)) == [row if len(row) <= most else [*row[: most - 1], row[-1]] for row in rows]
        assert lists(texts.framed(7, 8)) == [[7, *row, 8] for row in rows]
        order = data.draw(st.permutations(range(len(rows))))
        width = max(map(len, rows), default=0)
        assert texts.padded(-1).shape == (len(rows), width)
        assert texts.padded(-1).tolist() == [row + [-1] * (width - len(row)) for row in rows]
        parts = np.split(np.array(order, np.int64), [len(rows) // 2])
        assert lists(place_rows(len(rows), [(part, texts.select(part)) for part in parts])) == rows
        assert lists(interleave([texts, texts])) == [row for row in rows for _ in range(2)]
    finally:
        tokens.LONG_ROW = original


def test_ranges_and_items():
    assert ranges(np.array([5, 0, 9]), np.array([2, 0, 3])).tolist() == [5, 6, 9, 10, 11]
    for item in (np.array([1, 2], np.uint16), [1, 2]):
        assert as_tokens(item).tolist() == [1, 2] and as_tokens(item).dtype == np.int64
