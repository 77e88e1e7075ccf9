"""Reading and canonicalising: formats agree, borders survive, complaints name file and line, nothing is held."""

import gzip
import json
import lzma
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_clear.errors import UserError
from fairseq_clear.files import corpus_file, corpus_files, read_lines
from fairseq_clear.preparation import corpus_reading
from fairseq_clear.preparation.corpus_reading import TextSource, canonical_rows, is_visible, split_rows, warn_if_wrapped
from fairseq_clear.preparation.prepare_settings import PrepareSettings
from tests.preparation.corpora import canonical, documents


def lines_of(*paths: Path, **options: object) -> list[str]:
    chosen = PrepareSettings(inputs=paths, dest=Path("unused"), **options)  # type: ignore[arg-type]
    rows = TextSource([corpus_file(path) for path in paths], chosen).rows()
    return [row[0] if row else "" for row in rows]


def test_a_record_is_a_document_and_its_title_the_first_line(tmp_path: Path) -> None:
    records = [
        {"title": "One.\0Of two\nparts.", "text": "He left. It rained.\n\nThen."},
        {"title": None, "text": "Go on. She did."},
        {"text": "H."},
        {"title": "Only a title", "text": ""},
    ]
    path = write(tmp_path / "a.jsonl", "".join(json.dumps(record) + "\n" for record in records).encode())
    split = lines_of(path, title_field="title", split_sentences="lines")
    expected = "One. Of two parts.|He left.|It rained.|Then.||Go on.|She did.||H.||Only a title"
    assert split == expected.split("|")
    assert lines_of(path, title_field="title")[:3] == ["One. Of two parts.", "He left. It rained.", "Then."]
    assert lines_of(path)[:2] == ["He left. It rained.", "Then."]
    # blank lines stay inside the document
    path = write(tmp_path / "a.jsonl", b'{"body": "a\\n\\nb\\u0000c\\r\\nd"}\n\n{"body": ""}\n{"body": "e"}\n')
    assert lines_of(path, text_field="body") == ["a", "b c", "d", "", "e"]


def test_a_line_without_visible_characters_is_blank(tmp_path: Path) -> None:
    for mark in ("\u200b", "\ufeff", "\u00ad \t"):
        path = write(tmp_path / "a.txt", f"One is\n{mark}\ntwo.\n".encode())
        assert lines_of(path) == ["One is", "", "two."]
        assert lines_of(path, split_sentences="paragraphs") == ["One is", "", "two."]


def rows_of(units: Iterable[str | None]) -> Iterator[tuple[str] | None]:
    return (None if unit is None else (unit,) for unit in units)


def canonical_lines(units: Iterable[str | None]) -> Iterator[str]:
    return (row[0] if row else "" for row in canonical_rows(rows_of(units)))


def write(path: Path, data: bytes) -> Path:
    opener = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)
    with opener(path, "wb") as stream:
        stream.write(data)
    return path


def test_every_format_gives_the_same_lines(tmp_path: Path) -> None:
    made = documents(30)
    text = canonical(made).encode()
    records = "".join(json.dumps({"id": 1, "text": "\n".join(lines)}) + "\n" for lines in made).encode()
    files = {
        **dict.fromkeys(["a.txt", "a.txt.gz", "a.txt.xz", "b.gz", "b.en.xz", "UPPER.TXT"], text),
        **dict.fromkeys(["a.jsonl", "a.jsonl.gz", "a.jsonl.xz"], records),
        "crlf.txt": text.replace(b"\n", b"\r\n"),
        "mac.txt": text.replace(b"\n", b"\r"),
        "bom.txt": b"\xef\xbb\xbf" + text,
        "noend.txt": text.rstrip(b"\n"),
        "blanks.txt": b"\n \n" + text.replace(b"\n\n", b"\n \n\t\n\xe2\x80\x8b\n\n") + b"\n\n",
    }
    for name, data in files.items():
        assert lines_of(write(tmp_path / name, data)) == canonical(made).split("\n")[:-1], name


def test_document_start_file_makes_each_file_a_document(tmp_path: Path) -> None:
    files = [
        write(tmp_path / "1.txt", b"a file\n\n\nb"),
        write(tmp_path / "2.txt.gz", b"\n \nc\n\nd file\n\n"),
        write(tmp_path / "3.txt", b""),
        write(tmp_path / "4.txt", b"\n\n"),
        write(tmp_path / "5.jsonl", b'{"text": "e\\n\\nf"}\n{"text": "g"}\n'),
        write(tmp_path / "6.txt.xz", b"He left. It rained."),
    ]
    expected = ["a file", "b", "", "c", "d file", "", "e", "f", "", "g", "", "He left. It rained."]
    assert lines_of(*files, document_start="file") == expected
    split = lines_of(*files, document_start="file", split_sentences="paragraphs")
    assert split == [*expected[:-1], "He left.", "It rained."]
    assert lines_of(*files[:2]) == ["a file", "", "b", "", "c", "", "d file"]
    assert lines_of(*files[:2], document_start="file$") == ["a file", "b", "", "c", "", "d file"]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.txt", b"good\n\nbad \xe9\n", r"a.txt:3: byte 0xe9 at position 5 .*iconv"),
        ("a.txt", "ok\nhi".encode("utf-16-le"), r"a.txt:1: a NUL character"),
        ("a.jsonl", b'{"text": "a"}\n{"text"\n', r"a.jsonl:2: not JSON"),
        ("a.jsonl", b'{"text": "a"}\n{"body": "b", "id": 1}\n', r"a.jsonl:2: no field 'text' \(fields: body, id\)"),
        ("a.jsonl", b'{"text": 3.5}\n', r"a.jsonl:1: field 'text' is float"),
        ("a.jsonl", b'["text"]\n', r"a.jsonl:1: a list, not an object"),
        ("a.jsonl", b'{"text": "\\ud800"}\n', r"a.jsonl:1: an unpaired surrogate"),
        ("a.txt.gz", b"\n".join(b"%d" % i for i in range(9)) + b"\n\xff\n", r"a.txt.gz:10: byte 0xff"),
    ],
)
def test_bad_content_names_file_and_line(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    with pytest.raises(UserError, match=message):
        lines_of(write(tmp_path / name, data))


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
@pytest.mark.parametrize("damage", [slice(500, None), slice(2), slice(500, 540)], ids=["cut", "header", "middle"])
def test_damaged_archives(tmp_path: Path, suffix: str, damage: slice) -> None:
    path = write(tmp_path / f"a.txt{suffix}", canonical(documents(400)).encode())
    data = bytearray(path.read_bytes())
    data[damage] = b"x" * (damage.stop - (damage.start or 0)) if damage.stop else b""
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"a.txt\.(gz|xz):\d+: (the .* archive is damaged|byte|a NUL)"):
        lines_of(path)


def test_missing_file_folder_and_overlong_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.tar.gz").touch()
    (tmp_path / "a.pdf").write_bytes(b"%PDF")
    (tmp_path / ".hidden").mkdir()
    write(tmp_path / ".hidden" / "copy.txt", b"a")
    write(tmp_path / ".also.txt", b"a")
    for name, said in (
        ("gone.txt", "gone.txt: no such file"),
        (f"{300 * 'x'}.txt", r"xx.txt: cannot read it \(File name too long\)"),
        ("a.tar.gz", "a.tar.gz: unknown suffix"),
        ("", f"{tmp_path}: there is no .txt or .jsonl file"),
    ):
        with pytest.raises(UserError, match=said):
            corpus_files([tmp_path / name])
    with pytest.raises(UserError, match="is a folder"):
        corpus_file(tmp_path)
    write(tmp_path / "sub.txt", b"a")
    (tmp_path / "data-bin" / "paraphrase" / "de").mkdir(parents=True)
    write(tmp_path / "data-bin" / "clear.json", b"{}")
    write(tmp_path / "data-bin" / "paraphrase" / "de" / "dict.txt", b"a 1")  # no text
    assert [file.path.name for file in corpus_files([tmp_path])] == ["sub.txt"]
    with pytest.raises(UserError, match=f"is given twice, also as {tmp_path}/sub.txt;"):
        corpus_files([tmp_path, tmp_path / ".hidden" / ".." / "sub.txt"])
    unassigned = write(tmp_path / "new.txt", "\U000e0fff\n\u200b\n".encode())  # as a newer emoji is for an older Python
    assert lines_of(unassigned) == ["\U000e0fff"]
    monkeypatch.setattr("fairseq_clear.files.MAX_LINE_BYTES", 10)
    assert lines_of(write(tmp_path / "a.txt", b"123456789\n123456789\n")) == ["123456789"] * 2
    with pytest.raises(UserError, match=r"b.txt:2: more than"):
        lines_of(write(tmp_path / "b.txt", b"1\n1234567890\n"))


def test_progress_adds_up_to_the_bytes_on_disk(tmp_path: Path) -> None:
    for suffix in ("", ".gz"):
        path = write(tmp_path / f"a.txt{suffix}", b"line\n" * 5500)
        steps: list[int] = []
        assert sum(1 for _ in read_lines(corpus_file(path), steps.append)) == 5500
        assert sum(steps) == path.stat().st_size and len(steps) > 3


def test_readers_stream(tmp_path: Path) -> None:
    """One line in, one line out: reading is never ahead of what is asked for."""
    drawn = 0

    def endless() -> Iterator[str | None]:
        nonlocal drawn
        while True:
            drawn += 1
            yield None if drawn % 4 == 0 else "Some words. More words."

    for source in (canonical_lines(endless()), split_rows(rows_of(endless()), "paragraphs", "en")):
        drawn = 0
        for _ in range(100):
            next(source)
        assert drawn <= 200


UNITS = st.lists(st.none() | st.sampled_from(["", "a", "b c", " \u200b", "\u00ad"]), max_size=30)


@given(UNITS)
def test_canonical_lines_keep_text_and_borders_and_are_stable(units: list[str | None]) -> None:
    lines = list(canonical_lines(units))
    assert [line for line in lines if line] == [unit for unit in units if unit and is_visible(unit)]
    text = "\n".join(lines)
    assert not text.startswith("\n") and not text.endswith("\n") and "\n\n\n" not in text
    expected, current = [], []
    for unit in [*units, None]:
        if unit is None:
            expected += [current] if current else []
            current = []
        elif is_visible(unit):
            current.append(unit)
    assert [part.split("\n") for part in text.split("\n\n")] == (expected or [[""]])
    assert list(canonical_lines(line or None for line in lines)) == lines


@settings(max_examples=30)
@given(st.lists(st.text(max_size=4) | st.just("Mr. A b. C d?"), max_size=6), st.sampled_from(["lines", "paragraphs"]))
def test_splitting_moves_no_character(lines: list[str], mode: str) -> None:
    units = [line.strip() or None for line in lines]
    split = [row and row[0] for row in split_rows(rows_of(units), mode, "en")]
    assert "".join("".join(unit.split()) for unit in split if unit) == "".join("".join(line.split()) for line in lines)
    assert all(unit is None or (unit == unit.strip() and len(unit.splitlines()) <= 1) for unit in split)
    assert split.count(None) == units.count(None)


@pytest.mark.parametrize(
    ("line", "share"),
    [
        ("The first line of a text that is\nwrapped at some width, so that\nit goes on here. And then", "68 % of"),
        ("When it rained,\nthey stayed at home.", "51 % of"),
        ("A sentence of its own.\nAnother one.\nand a third, in small letters.", None),
        ("no capitals and no full stops here\nas some corpora are\nbut one sentence per line", None),
        ("Title without a full stop\nAnother Title\nThird", None),
    ],
)
def test_hard_wrapped_lines_are_noticed(line: str, share: str | None, caplog: pytest.LogCaptureFixture) -> None:
    rows = [(text,) for text in line.splitlines()] * 20
    assert list(warn_if_wrapped(rows)) == rows
    assert len(caplog.messages) == (share is not None)
    assert all(str(share) in text and "--split-sentences paragraphs" in text for text in caplog.messages)
    caplog.clear()
    assert list(warn_if_wrapped([*rows[:6], ()])) == [*rows[:6], ()] and not caplog.messages


def test_a_long_paragraph_is_joined_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_reading, "MAX_PARAGRAPH_LINES", 2)
    rows: list[Any] = [("a",), ("b",), ("c",), ("",), ("d",), None, ("e",)]
    assert list(corpus_reading.join_paragraphs(rows)) == [("a b",), ("c",), ("",), ("d",), None, ("e",)]
