"""The blocks against all pairs at once in float64, and the rules of exclusion against the matrix that they stand for."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import accumulate
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from fairseq_clear.objectives import negatives as module
from fairseq_clear.objectives import nt_xent
from fairseq_clear.objectives.exclusion import Exclusion
from fairseq_clear.objectives.negatives import contrast_with_negatives

SIZES = st.tuples(st.integers(0, 9), st.integers(0, 11))


def unit(rows: int, generator: torch.Generator, width: int = 5) -> Tensor:
    return F.normalize(torch.randn(rows, width, generator=generator), dim=-1)


def in_blocks(block: int, rows: int) -> AbstractContextManager[Any]:
    return mock.patch.multiple(module, BLOCK=block, BLOCK_ROWS=rows)


def dense(q: Tensor, k: Tensor, tau: float, excluded: Tensor) -> tuple[Tensor, ...]:
    cosine = q @ k.T
    pairs = cosine[~excluded]
    log_sum = torch.logsumexp((cosine / tau).masked_fill(excluded, -math.inf), dim=1)
    hardest = [max(row[~out].tolist(), default=-math.inf) for row, out in zip(cosine, excluded, strict=True)]
    distances = 2 - 2 * pairs
    return log_sum, torch.tensor(hardest), (~excluded).sum(1).float(), pairs.sum(), torch.exp(-2 * distances).sum()


@given(SIZES, st.integers(1, 30), st.integers(1, 5), st.sampled_from([0.01, 0.1, 1.0]), st.integers(0, 10**6))
def test_blocks_are_all_pairs_at_once(sizes, block, rows, tau, seed):
    generator = torch.Generator().manual_seed(seed)
    q, k = unit(sizes[0], generator).requires_grad_(), unit(sizes[1], generator).requires_grad_()
    excluded = torch.rand(sizes, generator=generator) < 0.4
    upstream = torch.rand(sizes[0], generator=generator)
    with in_blocks(block, rows):
        found = contrast_with_negatives(q, k, tau, Exclusion(matrix=excluded))
        ours = torch.autograd.grad((torch.where(found.number > 0, found.log_sum, 0.0) * upstream).sum(), (q, k))
    q64, k64 = q.detach().double().requires_grad_(), k.detach().double().requires_grad_()
    expected = dense(q64, k64, tau, excluded)
    has_any = expected[2] > 0
    total = (expected[0][has_any] * upstream.double()[has_any]).sum()
    theirs = torch.autograd.grad(total, (q64, k64), allow_unused=True, materialize_grads=True)
    for mine, other in zip((*found, *ours), (*expected, *theirs), strict=True):
        torch.testing.assert_close(mine.double(), other.double(), rtol=2e-4, atol=2e-5)


def test_keys_may_change_before_the_backward_pass_and_then_have_no_gradient():
    generator = torch.Generator().manual_seed(1)
    q, k = unit(4, generator).requires_grad_(), unit(9, generator)
    (kept,) = torch.autograd.grad(contrast_with_negatives(q, k, 0.1, Exclusion()).log_sum.sum(), q)
    log_sum = contrast_with_negatives(q, k, 0.1, Exclusion()).log_sum.sum()
    k.zero_()
    (after,) = torch.autograd.grad(log_sum, q)
    assert torch.equal(kept, after) and kept.abs().max() > 0.1
    with torch.no_grad():
        assert not contrast_with_negatives(q, k, 0.1, Exclusion()).log_sum.requires_grad


def peak(work: Callable[[], object]) -> float:
    """MiB that it holds at most."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    return max(accumulate(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns()))) / 2**20


def test_memory_is_that_of_a_block():
    def held(rows: int) -> float:
        z, own = torch.randn(rows, 8, requires_grad=True), torch.arange(rows)
        rules = {"temperature": 0.1, "excluded": Exclusion(own.unsqueeze(1), (own, own))}
        return peak(lambda: nt_xent(z, z, own.roll(rows // 2), **rules)[0].backward())

    small, large = held(2048), held(4096)  # 16 and 64 MiB would be one matrix of all pairs
    assert large < 1.3 * small < 40


@given(
    seed=st.integers(0, 10**6),
    sizes=st.tuples(st.integers(1, 7), st.integers(1, 8)),
    rules=st.sets(st.sampled_from(["own", "identities", "absent", "matrix"])),
    change=st.sampled_from(["none", "tile", "spread"]),
    cut=st.tuples(st.integers(0, 6), st.integers(0, 6)),
)
def test_rules_are_the_matrix_they_stand_for(seed, sizes, rules, change, cut):
    generator = torch.Generator().manual_seed(seed)
    queries, keys = sizes
    own = torch.randint(keys, (queries, 2), generator=generator)
    mine, theirs = (torch.randint(9, (count, 2), generator=generator) for count in (queries, keys))
    if seed % 2:
        mine, theirs = mine[:, 0], theirs[:, 0]
    absent = torch.rand(keys, generator=generator) < 0.3
    matrix = torch.rand(queries, keys, generator=generator) < 0.3
    rules -= {"absent"} if change != "none" else set()  # of a queue, whose keys are not copied
    every = {"own": own, "identities": (mine, theirs), "absent": absent, "matrix": matrix}
    exclusion = Exclusion(**{name: value for name, value in every.items() if name in rules})
    expected = torch.zeros(queries, keys, dtype=torch.bool)
    for i in range(queries):
        for j in range(keys):
            expected[i, j] = (
                ("own" in rules and j in own[i])
                or ("identities" in rules and bool(torch.isin(mine[i], theirs[j]).any()))
                or ("absent" in rules and absent[j])
                or ("matrix" in rules and matrix[i, j])
            )
    if change == "tile":
        exclusion, expected = exclusion.tile(2, 3, keys), expected.repeat(2, 3)
    elif change == "spread":
        exclusion, expected = exclusion.spread(3), expected.repeat_interleave(3, dim=1)
    rows, columns = (slice(min(part, size), size) for part, size in zip(cut, expected.shape, strict=True))
    assert torch.equal(exclusion.block(rows, columns, torch.device("cpu")), expected[rows, columns])


@pytest.mark.parametrize("blocks", [(2**20, 512), (60, 7)], ids=["one block", "several"])
def test_autocast_changes_nothing(blocks: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(1)
    q, k = unit(20, generator, 64).requires_grad_(), unit(30, generator, 64).requires_grad_()
    excluded = Exclusion(matrix=torch.rand(20, 30, generator=generator) < 0.3)
    results = []
    for enabled in (False, True):
        with in_blocks(*blocks), torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            assert ((q @ k.T).dtype == torch.bfloat16) == enabled
            found = contrast_with_negatives(q, k, 0.05, excluded)
            results.append((*found, *torch.autograd.grad(found.log_sum.sum(), (q, k))))
    assert all(torch.equal(mine, other) for mine, other in zip(*results, strict=True))


@pytest.mark.slow
@given(
    sizes=SIZES,
    blocks=st.sampled_from([(2**20, 512), (12, 3)]),
    exponent=st.floats(-8, 3),
    flush=st.booleans(),
    share=st.sampled_from([0.0, 0.4, 0.9]),
    seed=st.integers(0, 10**6),
)
def test_every_temperature_gives_finite_gradients(sizes, blocks, exponent, flush, share, seed):
    """Also of queries that have no negatives, of vectors that are zero, and of vectors that are equal."""
    generator = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(rows + 1, 5, generator=generator) for rows in sizes)
    q[:2], k[-1] = 0.0, k[0]
    excluded = torch.rand(len(q), len(k), generator=generator) < share
    excluded[-1] = True
    q.requires_grad_()
    k.requires_grad_()
    positive = torch.randint(len(k), (len(q),), generator=generator)
    torch.set_flush_denormal(flush)
    try:
        with in_blocks(*blocks):
            loss, _, statistics = nt_xent(q, k, positive, temperature=10**exponent, excluded=excluded)
            gradients = torch.autograd.grad(loss, (q, k))
    finally:
        torch.set_flush_denormal(False)
    assert all(bool(number.isfinite().all()) for number in (loss, *gradients, *statistics.values()))
    assert gradients[0][-1].abs().max() == 0


@pytest.mark.parametrize("temperature", [1e-4, 1e-8])
def test_several_blocks_are_as_exact_as_one_at_small_temperatures(temperature: float) -> None:
    """Of two equal keys each gets half the gradient; the log 2 between them is lost in a log-sum of 1e8."""
    generator = torch.Generator().manual_seed(1)
    q, k = unit(9, generator).requires_grad_(), unit(6, generator).repeat(2, 1).requires_grad_()
    gradients = []
    for blocks in ((2**20, 512), (12, 3)):
        with in_blocks(*blocks):
            log_sum = contrast_with_negatives(q, k, temperature, Exclusion()).log_sum
            gradients.append(torch.autograd.grad(log_sum.sum(), k)[0])
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4 / temperature)
