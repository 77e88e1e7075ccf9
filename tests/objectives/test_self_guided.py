"""The four objectives of Self-Guided against their equations, written out in float64 loops."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fairseq_clear.objectives import OBJECTIVES
from tests.objectives import oracles

SELF_GUIDED = {name: entry for name, entry in OBJECTIVES.items() if entry.candidates == "layers" and name != "sg-opt"}


def vectors(sentences: int, layers: int, seed: int, width: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    c = torch.randn(sentences, width, generator=generator)
    return c, torch.randn(sentences, layers, width, generator=generator) + c.unsqueeze(1)


def call(name: str, c: Tensor, h: Tensor, tau: float, **options: Any) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    return SELF_GUIDED[name].function(c, h, c, h, torch.arange(len(c)), temperature=tau, **options)


@pytest.mark.parametrize("name", SELF_GUIDED)
@settings(max_examples=30, deadline=None)
@given(
    sentences=st.integers(2, 6),
    layers=st.integers(1, 4),
    tau=st.sampled_from([0.05, 0.1, 1.0]),
    seed=st.integers(0, 10**6),
)
def test_equals_the_equation(name: str, sentences: int, layers: int, tau: float, seed: int) -> None:
    c, h = vectors(sentences, layers if name == "opt3" else 1, seed)
    loss, rows, _ = call(name, c, h, tau)
    expected = oracles.SELF_GUIDED[name](c.double().numpy(), h.double().numpy(), tau)
    assert loss.item() == pytest.approx(expected, rel=2e-4, abs=1e-4)
    assert rows == (2 * sentences if name == "sg" else sentences)


def test_the_equations_differ() -> None:
    c, h = vectors(5, 1, 3)
    values = [call(name, c, h, 0.1)[0].item() for name in ("sg", "opt1", "opt2")]
    assert values[1] > values[2] + 1e-3  # opt1's denominator holds more
    assert values[0] > values[1] + 1e-3
    # with one layer opt3 is opt2
    assert call("opt3", c, h, 0.1)[0].item() == pytest.approx(values[2], rel=1e-5)
    for name in ("sg", "opt1", "opt2"):
        with pytest.raises(ValueError, match="one layer"):
            call(name, *vectors(2, 3, 0), 0.1)


@pytest.mark.parametrize("name", SELF_GUIDED)
def test_gradients_by_finite_differences(name: str) -> None:
    c, h = vectors(3, 2 if name == "opt3" else 1, 1, width=3)
    c.requires_grad_()
    h.requires_grad_()
    of_c, of_h = torch.autograd.grad(call(name, c, h, 0.5)[0], (c, h))
    one, other = c.detach().double().numpy(), h.detach().double().numpy()
    slopes = oracles.slopes(lambda values: oracles.SELF_GUIDED[name](values, other, 0.5), one)
    assert of_c.numpy() == pytest.approx(slopes, abs=1e-4)
    slopes = oracles.slopes(lambda values: oracles.SELF_GUIDED[name](one, values, 0.5), other)
    assert of_h.numpy() == pytest.approx(slopes, abs=1e-4)


@pytest.mark.parametrize("name", SELF_GUIDED)
def test_excluded_sentences_are_left_out(name: str) -> None:
    """Sentences 0 and 3 are of one text: what is left equals the equation over candidates without the duplicate."""
    c, h = vectors(4, 2 if name == "opt3" else 1, 5)
    excluded = torch.eye(4, dtype=torch.bool)
    excluded[0, 3] = excluded[3, 0] = True
    loss, _, statistics = call(name, c, h, 0.2, excluded=excluded)
    whole, _, counted = call(name, c, h, 0.2)
    assert loss < whole
    assert statistics["negatives"] < counted["negatives"]
    function, one, own = SELF_GUIDED[name].function, (c[:1], h[:1]), torch.tensor([0])
    first, *_ = function(*one, c[:3], h[:3], own, temperature=0.2)
    masked, *_ = function(*one, c, h, own, temperature=0.2, excluded=excluded[:1])
    assert masked.item() == pytest.approx(first.item(), rel=1e-5)


@pytest.mark.parametrize("name", SELF_GUIDED)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000))
def test_the_sum_over_workers_is_the_whole(name: str, seed: int) -> None:
    """Two workers of 3 and 2 sentences that see all keys: sums and statistics add up to those of one worker."""
    c, h = vectors(5, 3 if name == "opt3" else 1, seed)
    whole, rows, statistics = call(name, c, h, 0.1)
    parts = [
        SELF_GUIDED[name].function(c[p], h[p], c, h, torch.arange(5)[p], temperature=0.1)
        for p in (slice(3), slice(3, 5))
    ]
    assert sum(part[0].item() for part in parts) == pytest.approx(whole.item(), rel=1e-5)
    assert sum(part[1].item() for part in parts) == rows.item()
    for key, value in statistics.items():
        assert sum(part[2][key].item() for part in parts) == pytest.approx(value.item(), rel=1e-4, abs=1e-4)


def test_statistics_of_opt3() -> None:
    """Two sentences on the axes: layer 0 agrees with its sentence, layer 1 with the other one."""
    c = torch.eye(2)
    h = torch.stack([torch.eye(2), torch.eye(2).flip(0)], dim=1)
    _, rows, statistics = call("opt3", c, h, 0.1)
    numbers = {name: value.item() for name, value in statistics.items()}
    assert rows == 2
    assert numbers["positive_cosine"] == pytest.approx(1.0)  # the mean over layers of 1 and 0, for two sentences
    assert numbers["negatives"] == 4
    assert numbers["negative_cosine"] == pytest.approx(2.0)
    assert numbers["correct"] == 0  # the hardest negative has cosine 1
    assert numbers["alignment"] == pytest.approx(2.0)
