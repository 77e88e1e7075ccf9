"""Batches, order, long texts and failures, with a stand-in for the model."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_clear.errors import UserError
from fairseq_clear.preparation.back_translation.translating import Pass, batches
from fairseq_clear.preparation.back_translation.translation_settings import BackTranslateSettings, ModelSource
from tests.preparation.back_translation.toys import StandIn

SETTINGS = BackTranslateSettings(
    input=Path("in"), output=Path("out"), forward=ModelSource("a"), backward=ModelSource("b")
)


def translate(model: StandIn, texts: list[str], chunk: int = 0, **others: Any) -> tuple[list[str | None], Counter[str]]:
    counts: Counter[str] = Counter()
    one_pass = Pass(model, replace(SETTINGS, **others))  # type: ignore[arg-type]
    (found,) = one_pass.translate({index: [text] for index, text in enumerate(texts)}, chunk, counts)
    return [" ".join(found[index]) if index in found else None for index in range(len(texts))], +counts


@given(lengths=st.lists(st.integers(1, 50), max_size=40), most=st.integers(1, 200), size=st.integers(1, 9))
def test_batches_hold_every_position_once_within_bounds(lengths: list[int], most: int, size: int) -> None:
    groups = list(batches(lengths, most, size))
    assert sorted(position for group in groups for position in group) == list(range(len(lengths)))
    for group in groups:
        assert len(group) == 1 or len(group) * max(lengths[position] for position in group) <= most
        assert len(group) <= size
    flat = [lengths[position] for group in groups for position in group]
    assert flat == sorted(flat, reverse=True)


def test_batches_are_full() -> None:
    assert [len(group) for group in batches([2] * 10, 8, None)] == [4, 4, 2]


def test_order_is_restored() -> None:
    texts = ["ccc", "a", "dddd", "bb", "a"]
    model = StandIn()
    assert translate(model, texts, max_tokens=8)[0] == [text.upper() for text in texts]
    assert [text for batch in model.batches for text in batch] != texts


def test_failing_text_is_found_in_its_batch() -> None:
    texts = ["ab", "c!", "de", "fg"]
    results, counts = translate(StandIn(bad="!"), texts)
    assert results == ["AB", None, "DE", "FG"]
    assert counts["forward.failed"] == 1


def test_batch_that_is_too_large_is_halved() -> None:
    model = StandIn(capacity=3)
    results, counts = translate(model, list("abcdefgh"))
    assert results == list("ABCDEFGH")
    assert counts["forward.failed"] == 0 and max(map(len, model.batches)) == 2


def test_when_nothing_works_the_run_ends() -> None:
    with pytest.raises(UserError, match="not one of 3 texts"):
        translate(StandIn(capacity=0), ["a", "b", "c"])
    assert translate(StandIn(capacity=0), ["a"])[0] == [None]


def test_dead_device_ends_the_run() -> None:
    model = StandIn()

    def die(batch: object, seed: int, count: int) -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    model.translate_batch = die  # type: ignore[method-assign, assignment]
    with pytest.raises(UserError, match="device-side assert"):
        translate(model, ["a"])


def test_long_text_is_translated_sentence_by_sentence() -> None:
    texts = ["This is one. This is two. This is three.", "Short."]
    model = StandIn(limit=20)
    results, counts = translate(model, texts)
    assert results == [text.upper() for text in texts]
    assert counts["forward.split"] == 1 and counts["forward.copied"] == 0
    assert sorted(text for batch in model.batches for text in batch) == sorted(
        ["This is one.", "This is two.", "This is three.", "Short."]
    )


@pytest.mark.parametrize(
    ("texts", "others"),
    [(["One is short. " + "x" * 30, "y"], {}), (["This is one. This is two.", "y"], {"too_long": "copy"})],
)
def test_what_is_too_long_whole_is_counted(texts: list[str], others: dict[str, str]) -> None:
    results, counts = translate(StandIn(limit=20), texts, **others)
    assert results == [None, "Y"]
    assert counts["forward.copied"] == 1 and counts["forward.failed"] == 0


def test_empty_cut_and_unknown_are_counted() -> None:
    results, counts = translate(StandIn(), ["__", "a~", "b?"])
    assert results == [None, "A~", "B?"]
    names = ("empty", "cut", "unknown", "tokens", "failed")
    assert [counts[f"forward.{name}"] for name in names] == [1, 1, 1, 6, 0]


def test_text_that_cannot_be_cut_into_tokens_fails_alone() -> None:
    model = StandIn()
    encode = model.encode
    model.encode = lambda text: 1 / 0 if text == "b" else encode(text)  # type: ignore[method-assign]
    results, counts = translate(model, ["a", "b"])
    assert results == ["A", None] and counts["forward.failed"] == 1


def test_seeds_differ_by_batch_chunk_pass_and_seed_alone() -> None:
    seeds = []
    for which, chunk, seed in (("forward", 0, 1), ("forward", 1, 1), ("forward", 0, 2), ("backward", 0, 1)):
        model = StandIn(which=which)
        translate(model, ["aa", "b"], chunk, batch_size=1, seed=seed)
        seeds += model.seeds
    assert len(set(seeds)) == len(seeds) == 8
    again = StandIn()
    translate(again, ["aa", "b"], 0, batch_size=1)
    assert again.seeds == seeds[:2]
