"""NT-Xent, and InfoNCE over a queue, against loops written from the papers, and what must hold whatever the numbers."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fairseq_clear.objectives import info_nce, nt_xent
from tests.objectives import oracles


def symmetric(rows: int) -> tuple[Tensor, Tensor]:
    """Positive of each of 2N views, and the exclusion of each from its own candidates."""
    return torch.arange(rows).roll(rows // 2), torch.eye(rows, dtype=torch.bool)


@pytest.mark.parametrize("tau", [0.01, 0.1, 1.0])
@pytest.mark.parametrize("texts", [2, 5])
def test_equals_the_papers_loops(texts: int, tau: float) -> None:
    z = torch.randn(2 * texts, 6, generator=torch.Generator().manual_seed(texts))
    positive, excluded = symmetric(2 * texts)
    loss, queries, _ = nt_xent(z, z, positive, temperature=tau, excluded=excluded)
    assert queries == 2 * texts
    expected = oracles.clear_equation_2(z.double().numpy(), tau)
    torch.testing.assert_close(loss.double(), torch.tensor(expected, dtype=torch.float64), rtol=2e-5, atol=2e-5)
    wrong = oracles.clear_equation_2(z.double().numpy(), tau * 1.1)
    assert abs(loss.item() - wrong) > 1e-3


@settings(max_examples=60, deadline=None)
@given(
    queries=st.integers(1, 6), keys=st.integers(1, 7), seed=st.integers(0, 10**6), tau=st.sampled_from([0.05, 0.3, 2.0])
)
def test_any_exclusions(queries: int, keys: int, seed: int, tau: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    q, k = torch.randn(queries, 4, generator=generator), torch.randn(keys, 4, generator=generator)
    positive = torch.randint(keys, (queries,), generator=generator)
    excluded = torch.rand(queries, keys, generator=generator) < 0.5
    loss, counted, statistics = nt_xent(q, k, positive, temperature=tau, excluded=excluded)
    inputs = q.double().numpy(), k.double().numpy(), positive.tolist()
    expected = oracles.nt_xent_with_exclusions(*inputs, tau, excluded.numpy())
    torch.testing.assert_close(loss.double(), torch.tensor(expected, dtype=torch.float64), rtol=1e-4, atol=1e-4)
    candidates = ~excluded
    candidates[torch.arange(queries), positive] = False
    assert counted == candidates.any(dim=1).sum()
    assert statistics["negatives"] == candidates.sum()


def test_gradient_is_that_of_the_written_formula() -> None:
    generator = torch.Generator().manual_seed(3)
    z = torch.randn(6, 5, generator=generator, requires_grad=True)
    positive, excluded = symmetric(6)
    loss, _, _ = nt_xent(z, z, positive, temperature=0.2, excluded=excluded)
    (gradient,) = torch.autograd.grad(loss, z)
    slopes = oracles.slopes(lambda values: oracles.clear_equation_2(values, 0.2), z.detach().double().numpy())
    assert gradient.numpy() == pytest.approx(slopes, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    # Cosines close to 1 at tau 0.01 give logits near 100, where fp16 resolves 1/16: computed there, the loss would be off.
    base = torch.randn(1, 8, generator=torch.Generator().manual_seed(0))
    z = (base + 0.05 * torch.randn(8, 8, generator=torch.Generator().manual_seed(1))).to(dtype)
    positive, excluded = symmetric(8)
    loss, _, _ = nt_xent(z, z, positive, temperature=0.01, excluded=excluded)
    assert loss.dtype == torch.float32
    expected = oracles.clear_equation_2(z.double().numpy(), 0.01)
    assert loss.item() == pytest.approx(expected, rel=1e-4)
    unit = torch.nn.functional.normalize(z, dim=-1)
    logits = ((unit @ unit.T) / 0.01).masked_fill(excluded, -math.inf)
    naive = torch.nn.functional.cross_entropy(logits.float(), positive, reduction="sum")
    assert naive.item() != pytest.approx(expected, rel=1e-3)


def test_statistics_are_what_their_names_say() -> None:
    z = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.5], [-1.0, 0.0]])
    positive, excluded = symmetric(4)
    _, queries, statistics = nt_xent(z, z, positive, temperature=0.1, excluded=excluded)
    unit = z / z.norm(dim=1, keepdim=True)
    pairs = [(0, 2), (1, 3), (2, 0), (3, 1)]
    negatives = [(i, k) for i in range(4) for k in range(4) if k != i and (i, k) not in pairs]
    cosine = unit @ unit.T
    distance = torch.cdist(unit, unit) ** 2
    assert queries == 4
    assert statistics["positive_cosine"].item() == pytest.approx(sum(cosine[p].item() for p in pairs), abs=1e-6)
    assert statistics["negative_cosine"].item() == pytest.approx(sum(cosine[n].item() for n in negatives), abs=1e-6)
    assert statistics["negatives"] == len(negatives)
    assert statistics["alignment"].item() == pytest.approx(sum(distance[p].item() for p in pairs), abs=1e-5)
    potentials = [math.exp(-2 * distance[n].item()) for n in negatives]
    assert statistics["uniformity"].item() == pytest.approx(sum(potentials), abs=1e-5)
    nearest = [cosine[p].item() > max(cosine[n].item() for n in negatives if n[0] == p[0]) for p in pairs]
    assert nearest == [True, False, False, True]
    assert statistics["correct"] == 2


# InfoNCE


def vectors(queries: int, queue: int, seed: int, width: int = 5) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    q, positives = torch.randn(queries, width, generator=generator), torch.randn(queries, width, generator=generator)
    keys = torch.nn.functional.normalize(torch.randn(queue, width, generator=generator), dim=-1)
    return q, positives, keys, torch.rand(queries, queue, generator=generator) < 0.3


@settings(max_examples=60, deadline=None)
@given(queries=st.integers(0, 5), queue=st.integers(1, 7), tau=st.sampled_from([0.07, 0.5]), seed=st.integers(0, 10**6))
def test_info_nce_equals_its_equation(queries: int, queue: int, tau: float, seed: int) -> None:
    q, positives, keys, excluded = vectors(queries, queue, seed)
    loss, rows, statistics = info_nce(q, positives, keys, temperature=tau, excluded=excluded)
    inputs = (part.double().numpy() for part in (q, positives, keys))
    expected, counted = oracles.cert_equation_2(*inputs, tau, excluded.numpy())
    assert loss.item() == pytest.approx(expected, rel=2e-4, abs=1e-5)
    assert rows == counted
    assert statistics["negatives"] == (~excluded).sum()
    assert info_nce(q, positives, keys, temperature=tau)[1] == queries


def test_the_gradient_is_that_of_the_equation_though_the_queue_has_changed() -> None:
    q, positives, keys, excluded = vectors(4, 9, 1)
    excluded[2] = True  # a query without negatives
    q.requires_grad_()
    kept = keys.clone()
    loss, _, _ = info_nce(q, positives, keys, temperature=0.2, excluded=excluded)
    keys.zero_()  # as enqueueing does before the backward pass
    (ours,) = torch.autograd.grad(loss, q)
    fixed = positives.double().numpy(), kept.double().numpy(), 0.2, excluded.numpy()
    theirs = oracles.slopes(lambda q: oracles.cert_equation_2(q, *fixed)[0], q.detach().double().numpy())
    assert ours.numpy() == pytest.approx(theirs, abs=1e-5, rel=1e-5)
    assert ours[[0, 1, 3]].abs().max() > 0.1 and ours[2].abs().max() == 0


def test_statistics_of_info_nce() -> None:
    q = torch.eye(2)
    loss, rows, statistics = info_nce(q, q, -torch.eye(2), temperature=0.1)
    numbers = {name: value.item() for name, value in statistics.items()}
    assert numbers["correct"] == numbers["positive_cosine"] == rows == 2
    assert numbers["negatives"] == 4
    assert numbers["negative_cosine"] == pytest.approx(-2)
    assert numbers["alignment"] == pytest.approx(0, abs=1e-6)
    assert numbers["uniformity"] == pytest.approx(2 * math.exp(-8) + 2 * math.exp(-4), rel=1e-4)
    assert loss.item() == pytest.approx(2 * math.log(1 + math.exp(-10) + math.exp(-20)), rel=1e-3, abs=1e-6)
