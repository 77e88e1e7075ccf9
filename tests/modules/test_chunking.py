"""Splitting a batch into parts: every row once, similar lengths, at most the allowed cells, results in the rows' order."""

from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fairseq_clear.modules import chunking
from fairseq_clear.modules.chunking import ALIKE, Parts, alike, has_parts, trim_padding

PADDING = 1
LENGTHS = st.lists(st.integers(1, 60), min_size=1, max_size=40)


def padded(lengths: list[int]) -> torch.Tensor:
    """(R, T + 2) distinct ids; the last two columns are padding only."""
    tokens = torch.full((len(lengths), max(lengths) + 2), PADDING)
    ids = iter(range(100, 100 + sum(lengths)))
    for row, length in zip(tokens, lengths, strict=True):
        row[:length] = torch.tensor([next(ids) for _ in range(length)])
    return tokens


def test_trimming_keeps_every_token_and_one_column() -> None:
    tokens = torch.tensor([[5, 6, 1, 1], [7, 1, 1, 1]])
    assert trim_padding(tokens, 1).tolist() == [[5, 6], [7, 1]]
    assert trim_padding(torch.ones(2, 3, dtype=torch.long), 1).shape == (2, 1)
    assert trim_padding(torch.ones(0, 3, dtype=torch.long), 1).shape == (0, 1)


@given(LENGTHS, st.one_of(st.none(), st.integers(1, 300)), st.integers(1, 300))
def test_parts_of_similar_rows(lengths: list[int], budget: int | None, enough: int) -> None:
    ordered = np.sort(np.array(lengths))[::-1]
    parts = list(alike(ordered, budget, enough))
    assert [row for part in parts for row in range(part.start, part.stop)] == list(range(len(lengths)))
    for part, following in zip(parts, [*parts[1:], None], strict=True):
        rows = ordered[part]
        assert budget is None or len(rows) == 1 or len(rows) * rows[0] <= budget
        # a row that is mostly padding was needed to fill the part
        mostly_padding = [place for place, length in enumerate(rows) if length < ALIKE * rows[0]]
        assert not mostly_padding or mostly_padding[-1] * rows[0] < enough
        # a part ends where one more row would exceed the budget or is not needed
        if following is not None:
            is_full = budget is not None and (len(rows) + 1) * rows[0] > budget
            assert is_full or (len(rows) * rows[0] >= enough and ordered[part.stop] < ALIKE * rows[0])


@given(LENGTHS, st.integers(0, 400), st.integers(1, 400), st.booleans())
def test_parts_hold_every_row_once_trimmed_and_come_back_in_order(lengths, size, enough, are_known) -> None:
    tokens = padded(lengths)
    cells, seen = [], []

    def first_and_last(part: torch.Tensor, number: torch.Tensor, lengths: tuple[int, ...]) -> torch.Tensor:
        if lengths:
            assert part.ne(PADDING).sum(1).tolist() == list(lengths)
            assert part.shape[1] == max(lengths)
        cells.append(part.numel())
        seen.extend(number.tolist())
        return torch.stack([part[:, 0], number, part.ne(PADDING).sum(1)], dim=1)

    numbers = torch.arange(len(lengths))
    with mock.patch.dict(chunking.ENOUGH_CELLS, cpu=enough):
        parts = Parts(tokens, PADDING, lengths if are_known else None, size)
        vectors = parts.in_order(parts.map(first_and_last, numbers))
    assert sorted(seen) == numbers.tolist()
    assert vectors.tolist() == [[int(tokens[row, 0]), row, length] for row, length in enumerate(lengths)]
    if size:
        assert all(part <= max(size, max(lengths)) for part in cells)
    if not size and not are_known:
        assert cells == [tokens.numel()], "without lengths and size there is one part"


def test_no_rows_are_one_part_or_none() -> None:
    nothing = torch.zeros(0, 5, dtype=torch.long)
    for lengths in (None, []):
        for size in (0, 3):
            parts = Parts(nothing, PADDING, lengths, size)
            sums = parts.in_order(parts.map(lambda part, lengths: part.sum(1)))
            assert sums.shape == (0,)
    assert not has_parts([], torch.device("cpu"))


def test_mixed_lengths_need_little_padding_and_similar_ones_keep_their_order() -> None:
    rng = np.random.default_rng(1)
    lengths = rng.integers(32, 512, 96).tolist()
    parts = Parts(padded(lengths), PADDING, lengths)
    cells = sum(len(part) * max(part) for _, part in parts.parts)
    assert sum(lengths) > 0.9 * cells
    assert sum(lengths) < 0.6 * len(lengths) * max(lengths), "the negative control: one part has far more padding"
    like = rng.integers(90, 101, 96).tolist()
    assert Parts(padded(like), PADDING, like).order is None
    few = rng.integers(3, 60, 10).tolist()
    assert Parts(padded(few), PADDING, few).order is None, "too few cells for two parts"


@pytest.mark.parametrize("lengths", [[3], [3, 2, 1]])
def test_every_row_has_a_length(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match=f"{len(lengths)} lengths for 2 rows"):
        Parts(padded([3, 2]), PADDING, lengths)


@pytest.mark.parametrize("size", [0, 20])
def test_gradients_reach_every_row(size: int) -> None:
    lengths = [9, 2, 5, 9, 1, 4, 7]
    weights = torch.arange(200.0).requires_grad_()
    tokens = padded(lengths)
    factors = torch.arange(1.0, 8.0)
    with mock.patch.dict(chunking.ENOUGH_CELLS, cpu=1):
        parts = Parts(tokens, PADDING, lengths, size)
        assert len(parts.parts) > 2
        sums = parts.in_order(parts.map(lambda part, lengths: (weights[part] * part.ne(PADDING)).sum(1)))
    (sums * factors).sum().backward()
    expected = torch.zeros(200)
    for row, length in enumerate(lengths):
        expected[tokens[row, :length]] = factors[row]
    assert weights.grad is not None
    torch.testing.assert_close(weights.grad, expected)
