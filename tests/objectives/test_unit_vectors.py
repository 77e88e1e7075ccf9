"""Unit vectors against torch's; every objective on vectors without direction, in half precision, and without negatives."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_clear.objectives import OBJECTIVES
from fairseq_clear.objectives.unit_vectors import unit_vectors

Result = tuple[Tensor, Tensor, dict[str, Tensor]]


def symmetric(z: Tensor, tau: float) -> Result:
    """Both views of each text are in ``z``."""
    positive, own = torch.arange(len(z)).roll(len(z) // 2), torch.eye(len(z)).bool()
    return OBJECTIVES["nt-xent"].function(z, z, positive, temperature=tau, excluded=own)


def queued(z: Tensor, tau: float) -> Result:
    """A single text has no negatives in the queue."""
    keys = F.normalize(torch.randn(6, 5, generator=torch.Generator().manual_seed(2)), dim=-1)
    excluded = torch.full((len(z), 6), len(z) < 2)
    return OBJECTIVES["info-nce"].function(z, z.roll(1, 0), keys, temperature=tau, excluded=excluded)


def guided(name: str) -> Callable[[Tensor, float], Result]:
    def result(z: Tensor, tau: float) -> Result:
        guides = z.roll(1, 0).unsqueeze(1).expand(-1, 3 if OBJECTIVES[name].function is every_layer else 1, -1)
        return OBJECTIVES[name].function(z, guides, z, guides, torch.arange(len(z)), temperature=tau)

    return result


every_layer = OBJECTIVES["opt3"].function
CALLS = {"nt-xent": symmetric, "info-nce": queued}
CALLS |= {name: guided(name) for name in OBJECTIVES if name not in CALLS}


@pytest.mark.parametrize("tau", [0.001, 0.01])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", CALLS)
def test_small_temperatures_and_large_vectors_stay_finite(name: str, dtype: torch.dtype, tau: float) -> None:
    z = (100 * torch.randn(6, 5, generator=torch.Generator().manual_seed(4))).to(dtype).requires_grad_()
    loss, _, statistics = CALLS[name](z, tau)
    (gradient,) = torch.autograd.grad(loss, z)
    assert loss.dtype == torch.float32
    assert all(bool(value.isfinite().all()) for value in (loss, gradient, *statistics.values()))


@pytest.mark.parametrize("texts", [0, 1])
@pytest.mark.parametrize("name", CALLS)
def test_texts_without_negatives_are_not_counted(name: str, texts: int) -> None:
    z = torch.randn(texts * (2 if name == "nt-xent" else 1), 5, requires_grad=True)
    loss, counted, statistics = CALLS[name](z, 0.01)
    (gradient,) = torch.autograd.grad(loss, z)
    assert loss == counted == 0 and gradient.abs().sum() < 1e-6
    assert all(bool(value.isfinite()) for value in statistics.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_ordinary_vectors_are_those_of_torch_to_the_bit(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    scale = 10 ** torch.linspace(-4, 4, 64).unsqueeze(1)
    ours = (torch.randn(64, 7, generator=generator) * scale).to(dtype).requires_grad_()
    theirs = ours.detach().clone().requires_grad_()
    upstream = torch.randn(64, 7, generator=generator)
    found, expected = unit_vectors(ours), F.normalize(theirs.float(), dim=-1)
    found.backward(upstream)
    expected.backward(upstream)
    assert torch.equal(found, expected)
    assert torch.equal(ours.grad, theirs.grad)


@pytest.mark.parametrize("flush", [False, True], ids=["denormals kept", "denormals flushed"])
@pytest.mark.parametrize("tiny", [0.0, 1e-45, 1e-39, 1e-30, 1e-12])
@pytest.mark.parametrize("name", CALLS)
def test_a_vector_without_direction_gets_no_gradient(name: str, tiny: float, flush: bool) -> None:
    z = torch.randn(6, 5, generator=torch.Generator().manual_seed(3))
    z[1] = tiny * z[1].sign()
    z.requires_grad_()
    torch.set_flush_denormal(flush)
    try:
        (gradient,) = torch.autograd.grad(CALLS[name](z, 0.05)[0], z)
    finally:
        torch.set_flush_denormal(False)
    assert bool(gradient.isfinite().all())
    assert gradient[1].abs().max() == 0
    assert 0.1 < gradient.abs().max() < 1e3
