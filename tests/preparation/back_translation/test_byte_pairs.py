"""Byte pairs against a replay of all merges in their order."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_clear.errors import UserError
from fairseq_clear.preparation.back_translation.byte_pairs import BytePairs

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


LEARNED = learn(TEXT, 25)


@pytest.fixture(scope="module", params=["fastbpe", "subword-nmt"])
def codes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("codes") / "bpecodes"
    if request.param == "fastbpe":
        path.write_text("".join(f"{left} {right} 7\n" for left, right in LEARNED))
    else:
        path.write_text("#version: 0.2\n" + "".join(f"{left} {right}\n" for left, right in LEARNED))
    return path


@given(words=st.lists(st.text(alphabet="lowernstidbaé", min_size=1, max_size=12), max_size=6))
@settings(max_examples=200, deadline=None)
def test_pieces_equal_a_replay(codes: Path, words: list[str]) -> None:
    expected = []
    for word in words:
        pieces = replay((*word[:-1], word[-1] + "</w>"), LEARNED)
        expected += [f"{piece}@@" for piece in pieces[:-1]] + [pieces[-1].removesuffix("</w>")]
    pairs = BytePairs(codes)
    assert pairs.encode(" ".join(words)) == expected
    assert pairs.decode(pairs.encode(" ".join(words))) == " ".join(words)


def test_merges_happen_at_all(codes: Path) -> None:
    assert BytePairs(codes).encode("lowest newest low") == ["low@@", "est", "newest", "low"]


def test_first_of_equal_merges_counts(tmp_path: Path) -> None:
    (tmp_path / "codes").write_text("a b 9\nb c</w> 8\na b 1\n")
    assert BytePairs(tmp_path / "codes").encode("abc") == ["ab@@", "c"]


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ("a b 3\na\n", ":2:"),
        ("a b c\n", ":1:"),
        ("a b\n", ":1:"),
        ("#version: 0.1\na b\n", ":1:"),
        ("#version: 0.2\n{}\n", ":2:"),
        ("", "no merge"),
    ],
)
def test_a_line_that_is_not_a_merge_is_named(tmp_path: Path, content: str, place: str) -> None:
    (tmp_path / "bpecodes").write_text(content)
    with pytest.raises(UserError, match=place):
        BytePairs(tmp_path / "bpecodes")
