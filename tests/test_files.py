"""Lines of data files: their ends, their encodings."""

import gzip
import lzma
import os

import pytest

from fairseq_clear import files
from fairseq_clear.errors import UserError
from fairseq_clear.files import check_output_file, corpus_file, read_lines, read_text_lines, record_texts, write_errors


def test_only_line_feeds_end_lines_and_latin_1_is_read_where_it_is_asked_for(tmp_path):
    path = tmp_path / "x.txt"
    path.write_bytes(b"\xef\xbb\xbfa \x0c b\r\n\r\nr\rc\xe2\x80\xa8d\n\xef\xbb\xbfe")
    assert read_text_lines(path) == ["a \x0c b", "", "r\rc\u2028d", "\ufeffe"]
    path.write_bytes(b"")
    assert read_text_lines(path) == []
    path.write_bytes(b"ok\ncaf\xe9 \xf0\n")
    assert read_text_lines(path, "latin-1") == ["ok", "caf\u00e9 \u00f0"]
    with pytest.raises(UserError, match=r"x.txt:2: byte 0xe9 at position 4 of the line is not UTF-8"):
        read_text_lines(path)


BINARIES = {
    b"%PDF-1.7\n%\xe2\xe3\n": "a PDF; extract its text first: pdftotext",
    b"PK\x03\x04\x14\0\x06\0": "a zip archive, as .docx",
    gzip.compress(b"text\n"): r"gzip-compressed; .* ends in \.gz",
    lzma.compress(b"text\n"): r"xz-compressed; .* ends in \.xz",
    "text".encode("utf-16"): "UTF-16; convert it first: iconv -f utf-16 -t utf-8",
}


@pytest.mark.parametrize("content", BINARIES, ids=[name.split(";")[0] for name in BINARIES.values()])
def test_every_reader_of_text_names_what_is_not_text(tmp_path, content):
    path = tmp_path / "x.txt"
    path.write_bytes(content)
    readers = (
        read_text_lines,
        lambda path: read_text_lines(path, "latin-1"),
        lambda path: [*read_lines(corpus_file(path))],
    )
    for read in readers:
        with pytest.raises(UserError, match=rf"x.txt:1: this is {BINARIES[content]}"):
            read(path)


def test_errors_of_writing_name_the_file_but_not_those_of_a_closed_pipe():
    said = r"^--dest train.log: cannot write it \(No space left on device\)$"
    with pytest.raises(UserError, match=said), write_errors("train.log", "--dest"):
        raise OSError(28, "No space left on device")
    with pytest.raises(BrokenPipeError, match="Broken pipe"), write_errors("train.log", "--dest"):
        raise BrokenPipeError(32, "Broken pipe")


@pytest.mark.parametrize("content", ["{", "[" * 100_000], ids=["cut off", "nested"])
def test_json_that_cannot_be_read_is_one_line(tmp_path, content):
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(UserError, match=r"x.json: not valid JSON \(.*\); copy it again$"):
        files.read_json(path, "copy it again")


def test_a_pipe_is_neither_hashed_nor_replaced(tmp_path):
    """Its content is gone when it was read, so the hash would be of nothing."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="pipe: is not a file but a pipe or folder"):
        files.hash_file(tmp_path / "pipe")
    for overwrite in (False, True):
        with pytest.raises(UserError, match="--output .*pipe: is a pipe or a device"):
            check_output_file(tmp_path / "pipe", overwrite)


def test_a_folder_that_may_not_be_written_to_is_said_to_be_one_at_the_start(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)  # root may write everywhere
    with pytest.raises(UserError, match="--output .*a.json: .* may not be written to"):
        check_output_file(tmp_path / "a.json", overwrite=False)


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "big").mkdir()
    link = tmp_path / "out.txt"
    link.symlink_to(tmp_path / "big" / "out.txt")
    for text in (b"a", b"b"):
        with files.write_whole(link) as stream:
            stream.write(text)
        assert link.is_symlink() and (tmp_path / "big" / "out.txt").read_bytes() == text
    assert [path.name for path in tmp_path.iterdir() if path.name != "big"] == ["out.txt"]


def test_whole_numbers_are_texts(tmp_path):
    line = '{"_id": 7, "title": 1984, "text": "a", "seen": true}'
    assert record_texts(line, ("_id", "title", "text"), tmp_path, 1) == ("7", "1984", "a")
    with pytest.raises(UserError, match="'seen' is bool, not text"):
        record_texts(line, ("seen",), tmp_path, 1)
