"""Dealing documents out: exact shares, uniform draws, parts that make up the whole; lines for the trainer."""

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fairseq_clear.preparation.staging import choose_exactly, held_out_documents, stage_rows
from fairseq_clear.preparation.tokenizer_training import TRAINER_LINE_CHARACTERS, cut_line
from tests.preparation.corpora import canonical, documents


@given(st.integers(2, 10_000), st.floats(0.0001, 0.9999))
def test_the_share_held_out_is_near_but_never_none_or_all(count: int, share: float) -> None:
    held_out = held_out_documents(count, share)
    assert 1 <= held_out <= count - 1
    assert abs(held_out - share * count) <= 1


@given(st.integers(1, 60), st.data())
def test_exactly_so_many_are_chosen(count: int, data: st.DataObject) -> None:
    chosen = data.draw(st.integers(0, count))
    draws = list(choose_exactly(chosen, count, np.random.default_rng(data.draw(st.integers(0, 99)))))
    assert len(draws) == count and sum(draws) == chosen


@given(st.integers(0, 12), st.integers(0, 9), st.integers(0, 2000))
def test_documents_are_whole_and_held_out_ones_train_nothing(held_out: int, seed: int, most_bytes: int) -> None:
    made = documents(12)
    with tempfile.TemporaryDirectory() as name:
        lines = canonical(made).split("\n")[:-1]
        staged = stage_rows(((line,) if line else () for line in lines), Path(name) / "all", ["original"], "it")
        assert (staged.lengths.total(), staged.lengths.sentences) == (12, sum(map(len, made)))
        assert staged.size == len(canonical(made).encode())
        staged = replace(staged, seed=seed, held_out=held_out)
        found = [(out, [row[0].decode()[:-1] for row in rows]) for out, rows in staged.documents()]
        assert [lines for _, lines in found] == made and sum(out for out, _ in found) == held_out
        assert [out for out, _ in staged.documents()] == [out for out, _ in found]  # the same at each call
        train = [line for out, lines in found if not out for line in lines]
        assert list(staged.training_lines(staged.size)) == train
        drawn = list(staged.training_lines(most_bytes))
        assert drawn == list(staged.training_lines(most_bytes)) and set(drawn) <= set(train)


@given(st.lists(st.integers(1, 2500), max_size=6))
def test_long_lines_are_cut_without_loss(lengths: list[int]) -> None:
    line = " ".join("x" * length for length in lengths)
    portions = list(cut_line(line))
    assert all(0 < len(portion) <= TRAINER_LINE_CHARACTERS for portion in portions)
    assert "".join(portions).replace(" ", "") == line.replace(" ", "")
    if max(lengths, default=0) <= TRAINER_LINE_CHARACTERS:  # then every cut is at a space
        assert " ".join(portions) == line


def test_the_lines_that_train_the_tokenizer_follow_the_seed_and_are_not_blank(tmp_path: Path) -> None:
    staged = stage_rows(((f"line {n}",) for n in range(200)), tmp_path / "all", ["original"], "it")
    samples = [list(replace(staged, seed=seed).training_lines(staged.size / 2)) for seed in (1, 2)]
    assert samples[0] != samples[1] and all(50 < len(sample) < 150 for sample in samples)
    staged = stage_rows([("one", ""), ("two", "zwei")], tmp_path / "pairs", ["original", "de"], "it")
    assert list(staged.training_lines(staged.size)) == ["one", "two", "zwei"]
