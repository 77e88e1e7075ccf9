"""What all kinds of models share: batches, order, long texts, failures; with a stand-in for the model."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_clear.errors import UserError
from fairseq_clear.preparation.back_translation.translation_settings import OneDirection
from fairseq_clear.preparation.back_translation.translator import batches
from tests.preparation.back_translation.toys import StandIn


def stand_in(limit: int = 1000, alternatives: int = 1, capacity: int = 10**9, **others: Any) -> StandIn:
    settings = OneDirection(input=Path("in"), output=Path("out"), model="a:b", **others)
    model = StandIn(replace(settings.models[0], alternatives=alternatives))
    model.max_source, model.capacity = limit, capacity
    return model


def texts_of(model: StandIn, texts: list[str]) -> list[str]:
    return [one.text for one in model.translate(texts)]


@given(lengths=st.lists(st.integers(1, 50), max_size=40), most=st.integers(1, 200))
def test_batches_hold_every_position_once_within_bounds(lengths: list[int], most: int) -> None:
    groups = list(batches(lengths, most))
    assert sorted(position for group in groups for position in group) == list(range(len(lengths)))
    for group in groups:
        assert len(group) == 1 or len(group) * max(lengths[position] for position in group) <= most
    flat = [lengths[position] for group in groups for position in group]
    assert flat == sorted(flat, reverse=True)
    assert [len(group) for group in batches([2] * 10, 8)] == [4, 4, 2]


def test_order_is_restored() -> None:
    texts = ["ccc", "a", "dddd", "bb", "a"]
    model = stand_in(max_tokens=8)
    assert texts_of(model, texts) == [text.upper() for text in texts]
    assert [text for batch in model.batches for text in batch] != texts


def test_failing_text_is_found_in_its_batch() -> None:
    found = stand_in().translate(["ab", "c!", "de", "fg"])
    assert [(one.text, one.problem) for one in found] == [("AB", ""), ("", "failed"), ("DE", ""), ("FG", "")]


def test_batch_that_is_too_large_is_halved() -> None:
    model = stand_in(capacity=3)
    assert texts_of(model, list("abcdefgh")) == list("ABCDEFGH")
    assert max(map(len, model.batches)) == 2


def test_when_nothing_works_the_run_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="not one of 3 texts"):
        stand_in(capacity=0).translate(["a", "b", "c"])
    assert texts_of(stand_in(capacity=0), ["a"]) == [""]

    def die(*args: object) -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(StandIn, "search", die)
    with pytest.raises(UserError, match="device-side assert"):
        stand_in().translate(["a"])


def test_long_text_is_translated_sentence_by_sentence() -> None:
    """Each sentence of the translation is on a line of its own, which the next model translates by itself."""
    model = stand_in(limit=20)
    (long, short) = texts_of(model, ["This is one. This is two. This is three.", "Short."])
    assert (long, short) == ("THIS IS ONE.\nTHIS IS TWO.\nTHIS IS THREE.", "SHORT.")
    expected = ["Short.", "This is one.", "This is three.", "This is two."]
    assert sorted(text for batch in model.batches for text in batch) == expected
    assert texts_of(stand_in(limit=20), [long.replace(".", "")]) == [long.replace(".", "")]


@pytest.mark.parametrize(
    ("text", "too_long"), [("One is short. " + "x" * 30, "split"), ("This is one. This is two.", "copy")]
)
def test_text_that_is_too_long_has_no_translation(text: str, too_long: str) -> None:
    found = stand_in(limit=20, too_long=too_long).translate([text, "y"])
    assert [(one.text, one.problem) for one in found] == [("", "too_long"), ("Y", "")]


def test_empty_cut_and_unknown_are_told() -> None:
    found = stand_in().translate(["__", "a~", "b?c?"])
    assert [(one.text, one.is_cut, one.unknown, one.problem) for one in found] == [
        ("", False, 0, "empty"),
        ("A~", True, 0, ""),
        ("B?C?", False, 2, ""),
    ]


def test_text_that_cannot_be_encoded_fails_alone() -> None:
    model = stand_in()
    encode = model.encode
    model.encode = lambda text: 1 / 0 if text == "b" else encode(text)  # type: ignore[method-assign]
    assert [(one.text, one.problem) for one in model.translate(["a", "b"])] == [("A", ""), ("", "failed")]


def test_alternatives_are_different_and_joined_by_rank() -> None:
    """The beam of 5 finds each hypothesis twice; the sentences of a long text are joined by their rank."""
    (short, long) = stand_in(limit=20, alternatives=2).translate(["a", "This is one. This is two."])
    assert (short.text, *short.others) == ("A", "A1", "A2")
    assert (long.text, *long.others)[:2] == ("THIS IS ONE.\nTHIS IS TWO.", "THIS IS ONE.1\nTHIS IS TWO.1")


def test_samples_depend_on_seed_and_place_alone() -> None:
    model = stand_in(sampling=True, max_tokens=2)
    first = [one.text for one in model.translate(["a", "a"], 1)]
    assert first[0] != first[1]
    assert first == [one.text for one in model.translate(["a", "a"], 1)] != texts_of(model, ["a", "a"])
