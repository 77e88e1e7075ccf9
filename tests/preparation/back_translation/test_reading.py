"""Lines are what ``wc -l`` counts, whatever is in them."""

import gzip
import lzma
from pathlib import Path

import pytest

from fairseq_clear.errors import UserError
from fairseq_clear.preparation.back_translation.round_trip import read_chunks, scan
from fairseq_clear.preparation.back_translation.segmentation import clean_line

AWKWARD = ["a\rb", "tab\there", "nul\0byte", "line\u2028separator", "next\x85line", "form\x0cfeed", "", " \t", "end\r"]


def chunks(path: Path, lines: int, first: int = 0, end: int | None = None) -> list[tuple[int, list[str]]]:
    count = -(-scan(path)[0] // lines)
    return list(read_chunks(path, lines, first, count if end is None else end))


@pytest.mark.parametrize("end", ["\n", ""])
@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_only_line_feeds_end_lines(tmp_path: Path, suffix: str, end: str) -> None:
    path = tmp_path / f"text{suffix}"
    content = ("\n".join(AWKWARD) + end).encode()
    path.write_bytes({"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}[suffix](content))
    assert scan(path)[0] == len(AWKWARD)
    read = [line for _, part in chunks(path, 4) for line in part]
    assert [clean_line(line) for line in read] == [clean_line(line) for line in AWKWARD]
    assert read[:-1] == AWKWARD[:-1]


def test_what_is_written_is_one_line_for_any_reader() -> None:
    for text in AWKWARD:
        assert len(clean_line(text).splitlines()) == bool(clean_line(text))
        assert "\0" not in clean_line(text)
    assert clean_line("a\r b\u2028\u2029c\0\td") == "a b c d"
    assert [clean_line(text) for text in ("", " \t", "\0", "\u3000")] == ["", "", "", ""]


def test_chunks_are_numbered_from_the_start_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("\n".join("abcdefg") + "\n")
    assert chunks(path, 3) == [(0, ["a", "b", "c"]), (1, ["d", "e", "f"]), (2, ["g"])]
    assert chunks(path, 3, 1, 2) == [(1, ["d", "e", "f"])]


def test_hash_is_of_the_unpacked_text(tmp_path: Path) -> None:
    plain, packed, other = tmp_path / "a", tmp_path / "a.gz", tmp_path / "b"
    plain.write_text("x\n")
    packed.write_bytes(gzip.compress(b"x\n"))
    other.write_text("y\n")
    assert scan(plain) == scan(packed) != scan(other)


def test_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"\xef\xbb\xbfx\n")
    assert chunks(path, 3) == [(0, ["x"])]


@pytest.mark.parametrize(
    ("content", "told"),
    [(b"", "no line"), (b"a\nb\xff\n", ":2: byte 0xff at position 2"), ("a\n".encode("utf-16"), "UTF-16")],
)
def test_bad_input_is_refused_by_line(tmp_path: Path, content: bytes, told: str) -> None:
    path = tmp_path / "text"
    path.write_bytes(content)
    with pytest.raises(UserError, match=told):
        scan(path)


def test_damaged_archive_missing_file_and_folder(tmp_path: Path) -> None:
    packed = tmp_path / "text.gz"
    packed.write_bytes(gzip.compress(b"some text\n" * 100)[:-9])
    for path, told in ((packed, "damaged"), (tmp_path / "none", "no such file"), (tmp_path, "is a folder")):
        with pytest.raises(UserError, match=told):
            scan(path)
