"""Poolings against loops over the tokens of each text."""

import pytest
import torch

from fairseq_clear.errors import UserError
from fairseq_clear.modules.pooling import parse_pooling


@pytest.mark.parametrize("name", ["avg", "layer", "layer:x", "layer:-1", "layer:5"])
def test_unknown_poolings(name: str) -> None:
    with pytest.raises(UserError, match=name):
        parse_pooling(name, 4)
    assert callable(parse_pooling("layer:4", 4))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["mean", "first-last", "last2", "layer:1"])
def test_long_texts_are_summed_in_float32(name: str, dtype: torch.dtype) -> None:
    """4,095 tokens around 20: their float16 sum is infinite, and neither type holds that number."""
    states = 20 + torch.randn(1, 4_096, 3, generator=torch.Generator().manual_seed(1))
    is_token = torch.arange(4_096).unsqueeze(0) < 4_095
    layers = [states.to(dtype).requires_grad_() for _ in range(3)]
    found = parse_pooling(name)(layers, is_token)
    assert found.dtype == dtype
    expected = layers[0].detach().double()[:, :4_095].mean(dim=1)
    torch.testing.assert_close(found.double(), expected, rtol=torch.finfo(dtype).eps, atol=0)
    found.sum().backward()
    gradients = sum(layer.grad.double() for layer in layers if layer.grad is not None)
    torch.testing.assert_close(
        gradients[:, :4_095], torch.full_like(gradients[:, :4_095], 1 / 4_095), rtol=0.02, atol=0
    )
    assert parse_pooling(name)([layer.double() for layer in layers], is_token).dtype == torch.float64


@pytest.mark.parametrize("name", ["first-last", "last2"])
def test_large_half_precision_values_do_not_overflow(name: str) -> None:
    """40,000 + 40,000 is infinite in float16."""
    layers = [torch.full((1, 2, 3), 40_000.0, dtype=torch.float16) for _ in range(3)]
    assert torch.equal(parse_pooling(name)(layers, torch.ones(1, 2, dtype=torch.bool)), layers[0][:, 0])
