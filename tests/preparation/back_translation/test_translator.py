"""What all kinds of models share: batches, order, failures; with a stand-in for the model."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_clear.errors import UserError
from fairseq_clear.preparation.back_translation.translation_settings import OneDirection
from fairseq_clear.preparation.back_translation.translator import SHOWN, batches
from tests.preparation.back_translation.toys import StandIn


def stand_in(limit: int = 1000, capacity: int = 10**9, **others: Any) -> StandIn:
    model = StandIn(OneDirection(input=Path("in"), output=Path("out"), model="a:b", **others).models[0])
    model.max_source, model.capacity = limit, capacity
    return model


def texts_of(model: StandIn, texts: list[str]) -> list[str]:
    return [one.text for one in model.translate(texts)]


@given(lengths=st.dictionaries(st.integers(0, 99), st.integers(1, 50), max_size=40), most=st.integers(1, 200))
def test_batches_hold_every_index_once_within_bounds(lengths: dict[int, int], most: int) -> None:
    groups = list(batches(lengths, most))
    assert sorted(index for group in groups for index in group) == sorted(lengths)
    for group in groups:
        assert len(group) == 1 or len(group) * max(lengths[index] for index in group) <= most
    flat = [lengths[index] for group in groups for index in group]
    assert flat == sorted(flat, reverse=True)
    assert [len(group) for group in batches(dict.fromkeys(range(10), 2), 8)] == [4, 4, 2]


def test_a_text_that_fails_or_is_too_long_is_alone(caplog: pytest.LogCaptureFixture) -> None:
    model = stand_in(limit=4)
    encode = model.encode
    model.encode = lambda text: 1 / 0 if text == "x" else encode(text)  # type: ignore[method-assign]
    assert texts_of(model, ["ab", "c!", "x", "defg", "hi"]) == ["AB", "", "", "", "HI"]
    assert "'x' is kept unchanged" in caplog.text and "5 tokens, and the model takes at most 4" in caplog.text
    assert texts_of(model, ["ab", *["long text"] * 30]) == ["AB", *[""] * 30]
    assert len(caplog.records) == SHOWN + 1 and "further failures are not shown" in caplog.records[-1].message


def test_batch_that_is_too_large_is_halved() -> None:
    model = stand_in(capacity=3)
    assert texts_of(model, list("abcdefgh")) == list("ABCDEFGH")
    assert max(map(len, model.batches)) == 2


def test_when_nothing_works_the_run_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="--model a:b: none of 3 texts"):
        stand_in(capacity=0).translate(["a", "b", "c"])
    assert texts_of(stand_in(capacity=0), ["a"]) == [""]
    assert texts_of(stand_in(), ["a!", "b!"]) == ["", ""]  # the texts are the cause, as at the end of a long job

    def die(*args: object) -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(StandIn, "search", die)
    with pytest.raises(UserError, match="--device cpu: .*device-side assert"):
        stand_in().translate(["a"])


def test_samples_depend_on_seed_and_place_alone() -> None:
    model = stand_in(sampling=0, max_tokens=2)
    first = [one.text for one in model.translate(["a", "a"], 1)]
    assert first[0] != first[1]
    assert first == [one.text for one in model.translate(["a", "a"], 1)] != texts_of(model, ["a", "a"])
