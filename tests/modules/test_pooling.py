"""Poolings against loops over the tokens of each text."""

import pytest
import torch

from fairseq_clear.errors import UserError
from fairseq_clear.modules.pooling import POOLINGS, needs_all_layers, parse_pooling, pool

LENGTHS = [4, 1, 3]
LAYERS = [torch.randn(3, 5, 2, generator=torch.Generator().manual_seed(n)) for n in range(4)]
IS_TOKEN = torch.tensor([[position < length for position in range(5)] for length in LENGTHS])


def by_hand(name: str, row: int) -> list[float]:
    kept = [[layer[row, position].tolist() for position in range(LENGTHS[row])] for layer in LAYERS]
    if name == "cls":
        return kept[-1][0]
    if name == "max":
        return [max(vector[d] for vector in kept[-1]) for d in range(2)]
    chosen = {"mean": [-1], "first-last": [1, -1], "last2": [-2, -1], "layer:0": [0], "layer:2": [2]}[name]
    vectors = [vector for layer in chosen for vector in kept[layer]]
    return [sum(vector[d] for vector in vectors) / len(vectors) for d in range(2)]


@pytest.mark.parametrize("name", [*(name for name in POOLINGS if name != "wk"), "layer:0", "layer:2"])
def test_pooling_is_what_its_name_says(name: str) -> None:
    found = pool(name, LAYERS, IS_TOKEN)
    torch.testing.assert_close(found, torch.tensor([by_hand(name, row) for row in range(3)]))
    changed = [layer.clone() for layer in LAYERS]
    for layer in changed:
        layer[~IS_TOKEN] = 1e4
    torch.testing.assert_close(pool(name, changed, IS_TOKEN), found)
    if not needs_all_layers(name):
        torch.testing.assert_close(pool(name, LAYERS[-1:], IS_TOKEN), found)


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
    found = pool(name, layers, is_token)
    assert found.dtype == dtype
    expected = layers[0].detach().double()[:, :4_095].mean(dim=1)
    torch.testing.assert_close(found.double(), expected, rtol=torch.finfo(dtype).eps, atol=0)
    found.sum().backward()
    gradients = sum(layer.grad.double() for layer in layers if layer.grad is not None)
    torch.testing.assert_close(
        gradients[:, :4_095], torch.full_like(gradients[:, :4_095], 1 / 4_095), rtol=0.02, atol=0
    )
    assert pool(name, [layer.double() for layer in layers], is_token).dtype == torch.float64


@pytest.mark.parametrize("name", ["first-last", "last2"])
def test_large_half_precision_values_do_not_overflow(name: str) -> None:
    """40,000 + 40,000 is infinite in float16."""
    layers = [torch.full((1, 2, 3), 40_000.0, dtype=torch.float16) for _ in range(3)]
    assert torch.equal(pool(name, layers, torch.ones(1, 2, dtype=torch.bool)), layers[0][:, 0])
