"""Dealing documents out: exact shares, uniform draws, parts that make up the whole; lines for the trainer."""

import hashlib
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import MMapIndexedDataset
from hypothesis import given
from hypothesis import strategies as st

from fairseq_clear.preparation import binarize
from fairseq_clear.preparation.binarize import Dataset, Encoder
from fairseq_clear.preparation.staging import choose_exactly, held_out_documents, stage_rows
from fairseq_clear.preparation.tokenizer_training import TRAINER_LINE_CHARACTERS, cut_line
from fairseq_clear.text.tokenizers import WhitespaceTokenizer
from tests.preparation.corpora import WORDS, canonical, documents


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


@pytest.mark.parametrize("part_bytes", [1, 100, 1 << 17])
@pytest.mark.parametrize("workers", [1, 2])
def test_parts_make_up_the_whole(tmp_path, monkeypatch, part_bytes, workers) -> None:
    monkeypatch.setattr(binarize, "PART_BYTES", part_bytes)
    monkeypatch.setattr(binarize, "LINES", 5)  # addresses are written in portions of 5 lines
    dictionary = Dictionary()
    for word in WORDS:
        dictionary.add_symbol(word)
    encoder, made = Encoder(WhitespaceTokenizer(), dictionary), documents(12)
    counts, progress = np.zeros(len(dictionary), np.int64), list[int]()
    datasets = [Dataset(tmp_path / "one", encoder, counts), Dataset(tmp_path / "two", encoder, None)]
    rows = ([(f"{line}\n".encode(), b"\n") for line in lines] for lines in made)
    binarize.binarize(((datasets, one) for one in rows), encoder, 10**6, workers, progress.append)
    text = canonical(made)
    first, second = datasets
    assert first.digest.hexdigest() == hashlib.sha256(text.encode()).hexdigest() and first.size == len(text.encode())
    assert first.counts.lengths.sentences == second.counts.blank == sum(map(len, made)) and first.counts.blank == 0
    assert first.counts.lengths.total() == 12 and sum(progress) == first.size + second.size
    expected = [
        [*(dictionary.index(word) for word in line.split()), dictionary.eos()] for line in text.split("\n")[:-1]
    ]
    data = MMapIndexedDataset(str(tmp_path / "one"))
    assert [data[index].tolist() for index in range(len(data))] == expected
    assert counts.tolist() == np.bincount(np.concatenate(expected), minlength=len(dictionary)).tolist()
    assert first.counts.tokens == counts.sum() and first.counts.unknown == counts[dictionary.unk()] > 0
    assert len(MMapIndexedDataset(str(tmp_path / "two"))) == len(expected)


@given(st.lists(st.integers(1, 2500), max_size=6))
def test_long_lines_are_cut_without_loss(lengths: list[int]) -> None:
    line = " ".join("x" * length for length in lengths)
    portions = list(cut_line(line))
    assert all(0 < len(portion) <= TRAINER_LINE_CHARACTERS for portion in portions)
    assert "".join(portions).replace(" ", "") == line.replace(" ", "")
    if max(lengths, default=0) <= TRAINER_LINE_CHARACTERS:  # then every cut is at a space
        assert " ".join(portions) == line
