"""InfoNCE over a queue against its equation and against autograd."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fairseq_clear.objectives import info_nce
from tests.objectives import oracles


def vectors(queries: int, queue: int, seed: int, width: int = 5) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    q, positives = torch.randn(queries, width, generator=generator), torch.randn(queries, width, generator=generator)
    keys = torch.nn.functional.normalize(torch.randn(queue, width, generator=generator), dim=-1)
    return q, positives, keys, torch.rand(queries, queue, generator=generator) < 0.3


@settings(max_examples=60, deadline=None)
@given(queries=st.integers(0, 5), queue=st.integers(1, 7), tau=st.sampled_from([0.07, 0.5]), seed=st.integers(0, 10**6))
def test_equals_the_equation(queries: int, queue: int, tau: float, seed: int) -> None:
    q, positives, keys, excluded = vectors(queries, queue, seed)
    loss, rows, statistics = info_nce(q, positives, keys, temperature=tau, excluded=excluded)
    inputs = (part.double().numpy() for part in (q, positives, keys))
    expected, counted = oracles.cert_equation_2(*inputs, tau, excluded.numpy())
    assert loss.item() == pytest.approx(expected, rel=2e-4, abs=1e-5)
    assert rows == counted
    assert statistics["negatives"] == (~excluded).sum()
    assert info_nce(q, positives, keys, temperature=tau)[1] == queries


def test_the_gradient_is_autograds_though_the_queue_has_changed() -> None:
    q, positives, keys, excluded = vectors(4, 9, 1)
    excluded[2] = True  # a query without negatives
    q.requires_grad_()
    kept = keys.clone()
    loss, _, _ = info_nce(q, positives, keys, temperature=0.2, excluded=excluded)
    keys.zero_()  # as enqueueing does before the backward pass
    (ours,) = torch.autograd.grad(loss, q)
    z = torch.nn.functional.normalize(q.double(), dim=-1)
    positive = (z * torch.nn.functional.normalize(positives.double(), dim=-1)).sum(1, keepdim=True)
    logits = torch.cat([positive, (z @ kept.double().T).masked_fill(excluded, -math.inf)], dim=1) / 0.2
    reference = torch.nn.functional.cross_entropy(logits, torch.zeros(4, dtype=torch.long), reduction="sum")
    (theirs,) = torch.autograd.grad(reference, q)
    assert torch.allclose(ours, theirs.float(), atol=1e-5)
    assert theirs[[0, 1, 3]].abs().max() > 0.1
    assert ours[2].abs().max() == 0


def test_statistics() -> None:
    q = torch.eye(2)
    loss, rows, statistics = info_nce(q, q, -torch.eye(2), temperature=0.1)
    numbers = {name: value.item() for name, value in statistics.items()}
    assert numbers["correct"] == numbers["positive_cosine"] == rows == 2
    assert numbers["negatives"] == 4
    assert numbers["negative_cosine"] == pytest.approx(-2)
    assert numbers["alignment"] == pytest.approx(0, abs=1e-6)
    assert numbers["uniformity"] == pytest.approx(2 * math.exp(-8) + 2 * math.exp(-4), rel=1e-4)
    assert loss.item() == pytest.approx(2 * math.log(1 + math.exp(-10) + math.exp(-20)), rel=1e-3, abs=1e-6)
