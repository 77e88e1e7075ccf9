"""Dealing documents out: exact shares, uniform draws, parts that make up the whole; lines for the trainer."""

import hashlib
from itertools import repeat
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_clear.errors import UserError
from fairseq_clear.preparation.staging import SplitParts, choose_exactly, deal_out, held_out_documents, stage_rows
from fairseq_clear.preparation.tokenizer_training import TRAINER_LINE_CHARACTERS, cut_line, explain_trainer
from tests.preparation.corpora import canonical, documents


@given(st.integers(2, 10_000), st.floats(0.0001, 0.9999))
def test_the_share_held_out_is_near_but_never_none_or_all(count: int, share: float) -> None:
    held_out = held_out_documents(count, share)
    assert 1 <= held_out <= count - 1
    assert abs(held_out - share * count) <= 1


def test_one_document_cannot_be_shared_out() -> None:
    with pytest.raises(UserError, match="single document"):
        held_out_documents(1, 0.5)


@given(st.integers(1, 60), st.data())
def test_exactly_so_many_are_chosen(count: int, data: st.DataObject) -> None:
    chosen = data.draw(st.integers(0, count))
    draws = list(choose_exactly(chosen, count, np.random.default_rng(data.draw(st.integers(0, 99)))))
    assert len(draws) == count and sum(draws) == chosen


def test_every_document_is_as_likely() -> None:
    rng = np.random.default_rng(5)
    counts = np.sum([list(choose_exactly(3, 10, rng)) for _ in range(4000)], axis=0)
    assert np.all(np.abs(counts - 1200) < 5 * np.sqrt(4000 * 0.3 * 0.7))  # five standard deviations


@given(st.integers(1, 400), st.integers(1, 4))
def test_parts_make_up_the_whole(part_bytes: int, shards: int) -> None:
    import tempfile

    made = documents(12)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lines = canonical(made).split("\n")[:-1]
        staged = stage_rows(((line,) if line else () for line in lines), folder / "all", ["original"], "it")
        assert (staged.lengths.documents, staged.lengths.sentences) == (12, sum(map(len, made)))
        assert staged.size == staged.paths["original"].stat().st_size == len(canonical(made).encode())
        splits = [SplitParts(folder / f"train{shard}", part_bytes) for shard in range(shards)]
        deal_out(staged, splits, None, repeat(False))
        targets = [split.original for split in splits]
        texts = [b"".join(part.read_bytes() for part in target.parts).decode() for target in targets]
        for target, text in zip(targets, texts, strict=True):
            assert target.digest.hexdigest() == hashlib.sha256(text.encode()).hexdigest()
            assert target.size == len(text.encode()) and target.counts.lengths.documents == len(text.split("\n\n"))
            assert target.counts.sentences == sum(1 for line in text.split("\n") if line)
            sizes = [part.read_bytes() for part in target.parts]
            assert all(len(part) - len(part.splitlines(True)[-1]) < part_bytes for part in sizes)
            assert all(len(part) >= part_bytes for part in sizes[:-1])
        dealt = sorted(part for text in texts for part in text.rstrip("\n").split("\n\n"))
        assert dealt == sorted("\n".join(lines) for lines in made)


@given(st.lists(st.integers(1, 2500), max_size=6))
def test_long_lines_are_cut_without_loss(lengths: list[int]) -> None:
    line = " ".join("x" * length for length in lengths)
    portions = list(cut_line(line))
    assert all(0 < len(portion) <= TRAINER_LINE_CHARACTERS for portion in portions)
    assert "".join(portions).replace(" ", "") == line.replace(" ", "")
    if max(lengths, default=0) <= TRAINER_LINE_CHARACTERS:  # then every cut is at a space
        assert " ".join(portions) == line


def test_other_complaints_of_the_trainer_keep_their_words() -> None:
    assert "cannot train on this corpus: INTERNAL: odd" in explain_trainer("INTERNAL: odd", 7)
