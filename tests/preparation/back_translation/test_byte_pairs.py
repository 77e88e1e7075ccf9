"""Byte pairs against a replay of all merges in their order."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_clear.errors import UserError
from fairseq_clear.preparation.back_translation.fairseq_translator import BytePairs

# of equal merges, such as the last one, the first counts
TEXT = "e s|es t</w>|l o|lo w|w est</w>|n e|ne west</w>|lo w</w>|a n|an a|d est</w>|i dest</w>|e r</w>|w er</w>|e s"
MERGES = [tuple(pair.split(" ")) for pair in TEXT.split("|")]


def replay(word: tuple[str, ...]) -> tuple[str, ...]:
    """Every merge in turn, everywhere in the word; no ranks are compared."""
    for left, right in MERGES:
        text = "\n" + "\n".join(word) + "\n"
        while f"\n{left}\n{right}\n" in text:
            text = text.replace(f"\n{left}\n{right}\n", f"\n{left}{right}\n", 1)
        word = tuple(text.strip("\n").split("\n"))
    return word


@pytest.fixture(scope="module", params=["", "#version: 0.2\n"], ids=["fastbpe", "subword-nmt"])
def codes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("codes") / "bpecodes"
    count = "" if request.param else " 7"
    path.write_text(request.param + "".join(f"{left} {right}{count}\n" for left, right in MERGES))
    return path


@given(words=st.lists(st.text(alphabet="lowernstidbaé", min_size=1, max_size=12), max_size=6))
@settings(max_examples=200, deadline=None)
def test_pieces_equal_a_replay(codes: Path, words: list[str]) -> None:
    expected = []
    for word in words:
        pieces = replay((*word[:-1], word[-1] + "</w>"))
        expected += [f"{piece}@@" for piece in pieces[:-1]] + [pieces[-1].removesuffix("</w>")]
    pairs = BytePairs(codes)
    assert pairs.encode(" ".join(words)) == expected
    assert pairs.decode(pairs.encode(" ".join(words))) == " ".join(words)


@pytest.mark.parametrize(
    ("content", "place"), [("a b 3\na\n", ":2:"), ("#version: 0.2\n{}\n", ":2:"), ("", "no merge")]
)
def test_a_line_that_is_not_a_merge_is_named(tmp_path: Path, content: str, place: str) -> None:
    (tmp_path / "bpecodes").write_text(content)
    with pytest.raises(UserError, match=f"bpecodes.*{place}"):
        BytePairs(tmp_path / "bpecodes")
