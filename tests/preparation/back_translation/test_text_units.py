"""Lines are what ``wc -l`` counts, whatever is in them; byte pairs against a replay of all merges in their order."""

import gzip
import lzma
import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_clear.errors import UserError
from fairseq_clear.preparation.back_translation.fairseq_translator import BytePairs, read_codes
from fairseq_clear.preparation.back_translation.round_trip import read_chunks, scan
from fairseq_clear.preparation.back_translation.translator import clean_line

TEXT = "low low low low low lower lower newest newest newest newest newest newest widest widest widest banana bandana"


def learn(text: str, merges: int) -> list[tuple[str, str]]:
    """The merges of Sennrich et al. 2016, algorithm 1; ties by the alphabet."""
    words = Counter((*word[:-1], word[-1] + "</w>") for word in text.split())
    learned: list[tuple[str, str]] = []
    for _ in range(merges):
        pairs: Counter[tuple[str, str]] = Counter()
        for word, count in words.items():
            for pair in zip(word, word[1:], strict=False):
                pairs[pair] += count
        if not pairs:
            break
        learned.append(min(pairs, key=lambda pair: (-pairs[pair], pair)))
        words = Counter({replay(word, learned[-1:]): count for word, count in words.items()})
    return learned


def replay(word: tuple[str, ...], learned: list[tuple[str, str]]) -> tuple[str, ...]:
    """Every merge in turn, everywhere in the word; no ranks are compared."""
    for left, right in learned:
        text = "\n" + "\n".join(word) + "\n"
        while f"\n{left}\n{right}\n" in text:
            text = text.replace(f"\n{left}\n{right}\n", f"\n{left}{right}\n", 1)
        word = tuple(text.strip("\n").split("\n"))
    return word


@pytest.fixture(scope="module")
def learned() -> list[tuple[str, str]]:
    return learn(TEXT, 25)


@pytest.fixture(scope="module", params=["fastbpe", "subword-nmt"])
def codes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, learned) -> Path:
    path = tmp_path_factory.mktemp("codes") / "bpecodes"
    if request.param == "fastbpe":
        path.write_text("".join(f"{left} {right} 7\n" for left, right in learned))
    else:
        path.write_text("#version: 0.2\n" + "".join(f"{left} {right}\n" for left, right in learned))
    return path


@given(words=st.lists(st.text(alphabet="lowernstidbaé", min_size=1, max_size=12), max_size=6))
@settings(max_examples=200, deadline=None)
def test_pieces_are_those_of_a_replay(codes: Path, learned, words: list[str]) -> None:
    expected = []
    for word in words:
        pieces = replay((*word[:-1], word[-1] + "</w>"), learned)
        expected += [f"{piece}@@" for piece in pieces[:-1]] + [pieces[-1].removesuffix("</w>")]
    bpe = BytePairs(codes)
    assert bpe.encode(" ".join(words)).split() == expected
    assert bpe.decode(bpe.encode(" ".join(words))) == " ".join(words)


def test_merges_happen_at_all(codes: Path) -> None:
    assert BytePairs(codes).encode("lowest newest low") == "low@@ est newest low"


def test_of_version_0_1_the_end_is_a_symbol(tmp_path: Path) -> None:
    path = tmp_path / "codes"
    path.write_text("l o\nlo w\nlow </w>\n")
    assert read_codes(path)[1] is False
    assert BytePairs(path).encode("low lows") == "low low@@ s"


def test_first_of_equal_merges_counts(tmp_path: Path) -> None:
    path = tmp_path / "codes"
    path.write_text("a b 9\nb c</w> 8\na b 1\n")
    assert BytePairs(path).encode("abc") == "ab@@ c"


@pytest.mark.parametrize(
    ("content", "place"), [("a b 3\na\n", ":2:"), ("a b c\n", ":1:"), ("#version: 0.2\n{}\n", ":2:"), ("", "no merge")]
)
def test_what_is_no_code_is_named(tmp_path: Path, content: str, place: str) -> None:
    path = tmp_path / "bpecodes"
    path.write_text(content)
    with pytest.raises(UserError, match=place):
        BytePairs(path)


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
    os.mkfifo(tmp_path / "pipe")  # can be read only once
    wrong = {
        packed: "damaged",
        tmp_path / "none": "no such file",
        tmp_path: "is a folder",
        tmp_path / "pipe": "not a regular",
    }
    for path, told in wrong.items():
        with pytest.raises(UserError, match=told):
            scan(path)
