"""How far the weights are from the frozen copy of the encoder."""

import pytest
import torch

from fairseq_clear.modules.frozen_encoder import squared_distance


def test_distance_is_the_sum_of_squares_with_its_gradient() -> None:
    p = [torch.randn(3, 2, requires_grad=True), torch.randn(4, requires_grad=True)]
    q = [torch.randn(3, 2), torch.randn(4)]
    distance = squared_distance(p, q)
    assert distance.item() == pytest.approx(
        sum(((a - b) ** 2).sum().item() for a, b in zip(p, q, strict=True)), rel=1e-5
    )
    (3 * distance).backward()
    for a, b in zip(p, q, strict=True):
        assert torch.allclose(a.grad, 6 * (a - b), atol=1e-5)


def test_distance_leaves_frozen_weights_out_and_works_in_half_precision() -> None:
    p = [torch.ones(2, requires_grad=True), torch.full((2,), 5.0)]
    assert squared_distance(p, [torch.zeros(2), torch.zeros(2)]).item() == pytest.approx(2.0, rel=1e-6)
    assert squared_distance(p[1:], [torch.zeros(2)]).item() == 0.0
    # 300 ** 2 is beyond float16
    half = torch.full((2,), 300.0, dtype=torch.float16, requires_grad=True)
    distance = squared_distance([half], [torch.zeros(2, dtype=torch.float16)])
    assert distance.item() == 180_000
    distance.backward()
    assert half.grad.dtype == torch.float16
    assert half.grad.tolist() == [600.0, 600.0]
