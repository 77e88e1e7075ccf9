"""Lines of data files: their ends, their encodings, their columns."""

import pytest

from fairseq_clear.data.lines import read_columns, read_text_lines
from fairseq_clear.errors import UserError


def test_only_line_feeds_end_lines(tmp_path):
    path = tmp_path / "x.txt"
    path.write_bytes(b"\xef\xbb\xbfa \x0c b\r\n\r\nc\xe2\x80\xa8d\n\xef\xbb\xbfe")
    assert read_text_lines(path) == ["a \x0c b", "", "c\u2028d", "\ufeffe"]
    path.write_bytes(b"")
    assert read_text_lines(path) == []


def test_latin_1_is_read_where_it_is_asked_for(tmp_path):
    path = tmp_path / "x.label"
    path.write_bytes(b"ok\ncaf\xe9 \xf0\n")
    assert read_text_lines(path, "latin-1") == ["ok", "caf\u00e9 \u00f0"]
    with pytest.raises(UserError, match=r"x.label:2: byte 0xe9 is not UTF-8"):
        read_text_lines(path)


def test_columns_are_stripped_and_counted():
    assert read_columns("f", ' a \t"b\tc', 3, (2, 0)) == ("c", "a")
    with pytest.raises(UserError, match="f:3: 2 tab-separated columns, but column 3 is needed"):
        read_columns("f", "a\tb", 3, (2, 0))
