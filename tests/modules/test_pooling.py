"""Poolings against results by hand, SBERT-WK against a reading of its equations."""

import numpy as np
import pytest
import torch

from fairseq_clear.errors import UserError
from fairseq_clear.modules.pooling import parse_pooling, sbert_wk


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
    gradients = sum(layer.grad[:, :4_095].double() for layer in layers if layer.grad is not None)
    torch.testing.assert_close(gradients, torch.full_like(gradients, 1 / 4_095), rtol=0.02, atol=0)
    assert parse_pooling(name)([layer.double() for layer in layers], is_token).dtype == torch.float64


@pytest.mark.parametrize("name", ["first-last", "last2"])
def test_large_half_precision_values_do_not_overflow(name: str) -> None:
    """40,000 + 40,000 is infinite in float16."""
    layers = [torch.full((1, 2, 3), 40_000.0, dtype=torch.float16) for _ in range(3)]
    assert torch.equal(parse_pooling(name)(layers, torch.ones(1, 2, dtype=torch.bool)), layers[0][:, 0])


# SBERT-WK


def by_hand(states: np.ndarray) -> np.ndarray:
    """(K, T, D) hidden states of one text, from the first layer used on."""
    depth, length, _ = states.shape
    unified, variation = [], []
    for t in range(length):
        alignment, novelty = [], []
        for k in range(depth):
            near = [states[i, t] for i in range(depth) if i != k and abs(i - k) <= 2]
            basis, _ = np.linalg.qr(np.stack(near, axis=1))
            inside = basis @ (basis.T @ states[k, t])
            cosines = [v @ inside / (np.linalg.norm(v) * np.linalg.norm(inside)) for v in near]
            alignment.append(1 / (np.mean(cosines) * 2 * (len(near) + 1)))
            novelty.append(np.linalg.norm(states[k, t] - inside) / np.linalg.norm(states[k, t]))
        weights = np.array(alignment) / sum(alignment) + np.array(novelty) / sum(novelty)
        unified.append((weights / weights.sum()) @ states[:, t])
        pairs = zip(states[1:, t], states[:-1, t], strict=True)
        variation.append(np.var([a @ b / (np.linalg.norm(a) * np.linalg.norm(b)) for a, b in pairs]))
    return (np.array(variation) / sum(variation)) @ np.stack(unified)


@pytest.mark.parametrize("layers", [4, 7, 13])
def test_equals_the_equations(layers: int) -> None:
    generator = torch.Generator().manual_seed(layers)
    base = torch.randn(2, 5, 16, generator=generator)
    states = [base + 0.3 * torch.randn(2, 5, 16, generator=generator) for _ in range(layers)]
    is_token = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    found = sbert_wk(states, is_token)
    first = layers // 3
    for row, length in ((0, 5), (1, 3)):
        kept = np.stack([state[row, :length].double().numpy() for state in states[first:]])
        np.testing.assert_allclose(found[row].numpy(), by_hand(kept), rtol=2e-3, atol=2e-4)
    mean = states[-1][0].mean(dim=0)
    assert (found[0] - mean).abs().max() > 1e-2


def test_padding_changes_nothing_and_one_layer_is_a_mean() -> None:
    states = [torch.randn(1, 4, 8, generator=torch.Generator().manual_seed(n)) for n in range(5)]
    is_token = torch.tensor([[True, True, True, False]])
    changed = [torch.cat([state[:, :3], torch.full((1, 1, 8), 99.0)], dim=1) for state in states]
    torch.testing.assert_close(sbert_wk(states, is_token), sbert_wk(changed, is_token))
    torch.testing.assert_close(sbert_wk(states[4:], is_token), states[4][:, :3].mean(dim=1))


def test_tokens_that_do_not_change_give_their_plain_mean() -> None:
    """No novelty and no variance: 0 / 0 in the equations."""
    same = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(1))
    is_token = torch.tensor([[True, True, True], [True, False, False]])
    scaled = [(n + 1) * same for n in range(9)]
    nothing = [torch.zeros(2, 3, 8)] * 9
    for states, factor in (([same] * 9, 1.0), (scaled, 6.5), (nothing, 0.0)):  # layers 3 to 8 are used: 4 to 9 times
        expected = torch.stack([same[0].mean(dim=0), same[1, 0]]) * factor
        torch.testing.assert_close(sbert_wk(states, is_token), expected, rtol=1e-4, atol=1e-5)


def test_one_token_that_does_not_change_leaves_the_others_alone() -> None:
    generator = torch.Generator().manual_seed(2)
    base = torch.randn(1, 4, 16, generator=generator)
    states = [base + 0.3 * torch.randn(1, 4, 16, generator=generator) for _ in range(7)]
    for state in states:
        state[:, 3] = base[:, 3]
    found = sbert_wk(states, torch.ones(1, 4, dtype=torch.bool))
    assert bool(found.isfinite().all())
    torch.testing.assert_close(found, sbert_wk([s[:, :3] for s in states], torch.ones(1, 3, dtype=torch.bool)))
