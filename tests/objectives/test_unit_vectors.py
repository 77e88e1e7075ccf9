"""Unit vectors against torch's, and objectives on vectors without direction."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_clear.objectives import OBJECTIVES, info_nce, nt_xent
from fairseq_clear.objectives.unit_vectors import unit_vectors

Loss = Callable[[Tensor], Tensor]
OTHERS = F.normalize(torch.randn(6, 5, generator=torch.Generator().manual_seed(2)), dim=-1)


def symmetric(z: Tensor) -> Tensor:
    rows = len(z)
    return nt_xent(z, z, torch.arange(rows).roll(rows // 2), temperature=0.05, excluded=torch.eye(rows).bool())[0]


def guided(name: str) -> Loss:
    layers = 3 if name == "opt3" else 1

    def loss(z: Tensor) -> Tensor:
        guides = z.roll(1, 0).unsqueeze(1).expand(-1, layers, -1)
        return OBJECTIVES[name].function(z, guides, z, guides, torch.arange(len(z)), temperature=0.05)[0]

    return loss


LOSSES: dict[str, Loss] = {
    "nt_xent": symmetric,
    "info_nce": lambda z: info_nce(z, z.roll(1, 0), OTHERS, temperature=0.05)[0],
    **{name: guided(name) for name in ("sg", "opt1", "opt2", "opt3")},
}


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
@pytest.mark.parametrize("name", LOSSES)
def test_a_vector_without_direction_gets_no_gradient(name: str, tiny: float, flush: bool) -> None:
    z = torch.randn(6, 5, generator=torch.Generator().manual_seed(3))
    z[1] = tiny * z[1].sign()
    z.requires_grad_()
    torch.set_flush_denormal(flush)
    try:
        (gradient,) = torch.autograd.grad(LOSSES[name](z), z)
    finally:
        torch.set_flush_denormal(False)
    assert bool(gradient.isfinite().all())
    assert gradient[1].abs().max() == 0
    assert 0.1 < gradient.abs().max() < 1e3
