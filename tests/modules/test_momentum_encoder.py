"""The momentum encoder: float32 masters that keep moving, whatever the model's precision; the distance to a frozen one."""

import pytest
import torch
from torch import nn

from fairseq_clear.modules.frozen_encoder import squared_distance
from fairseq_clear.modules.momentum_encoder import MomentumEncoder


class Toy(nn.Module):
    """An encoder with fairseq's signature: embeddings, dropout, one block; (T, B, D) inside."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 4, padding_idx=1)
        self.dropout = nn.Dropout(0.5)
        self.block = nn.Linear(4, 4)

    def forward(self, tokens: torch.Tensor, return_all_hiddens: bool = False) -> dict[str, list[torch.Tensor]]:
        first = self.dropout(self.embed(tokens)).transpose(0, 1)
        last = self.block(first)
        return {"encoder_out": [last], "encoder_states": [first, last]}


TOKENS = torch.tensor([[0, 4, 5, 2], [0, 6, 2, 1]])


def make(momentum: float = 0.999) -> tuple[Toy, nn.Linear, MomentumEncoder]:
    torch.manual_seed(0)
    encoder, head = Toy(), nn.Linear(4, 3)
    return encoder, head, MomentumEncoder(encoder, head, momentum, "mean")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_masters_keep_moving_where_half_precision_would_freeze(dtype: torch.dtype) -> None:
    """3,000 steps at m = 0.999 close 95 % of a gap; averaged in float16 it stays open."""
    encoder, head, keys = make()
    start = keys.encoder.block.weight.clone()
    with torch.no_grad():
        encoder.block.weight.add_(1.0)
    nn.ModuleList([encoder, head, keys]).to(dtype)
    for _ in range(3_000):
        keys.step(encoder, head)
    assert keys.encoder.block.weight.dtype == torch.float32
    gap = (encoder.block.weight.float() - keys.encoder.block.weight).abs().mean()
    assert gap.item() == pytest.approx(0.05, abs=0.01)
    naive = start.half()
    for _ in range(3_000):
        naive = 0.999 * naive + 0.001 * (start.half() + 1)
    assert (start + 1 - naive.float()).abs().mean() > 0.2  # the negative control


def test_half_precision_encodes_with_the_rounded_masters() -> None:
    encoder, head, keys = make()
    keys.eval()
    exact = keys(TOKENS, 1, torch.float32)
    rounded = keys(TOKENS, 1, torch.bfloat16)
    assert rounded.dtype == torch.bfloat16
    assert torch.allclose(rounded.float(), exact, atol=0.05)
    with torch.no_grad():
        encoder.block.weight.add_(5.0)
    keys.momentum = 0.0
    keys.step(encoder, head)
    moved = keys(TOKENS, 1, torch.bfloat16)
    assert not torch.allclose(moved.float(), exact, atol=0.05)
    assert torch.allclose(moved.float(), keys(TOKENS, 1, torch.float32), atol=0.2)
    assert "_rounded" not in " ".join(keys.state_dict())
    keys.load_state_dict(make()[2].state_dict())
    assert torch.allclose(keys(TOKENS, 1, torch.bfloat16).float(), exact, atol=0.05)
    for training in (True, False, True):
        keys.train(training)
        assert torch.equal(keys(TOKENS, 1, torch.bfloat16), keys(TOKENS, 1, torch.bfloat16)) is not training


# How far the weights are from the frozen copy of the encoder


def test_distance_is_the_sum_of_squares_with_its_gradient() -> None:
    p = [torch.randn(3, 2, requires_grad=True), torch.randn(4, requires_grad=True)]
    q = [torch.randn(3, 2), torch.randn(4)]
    distance = squared_distance(p, q)
    expected = sum(((a - b) ** 2).sum().item() for a, b in zip(p, q, strict=True))
    assert distance.item() == pytest.approx(expected, rel=1e-5)
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


def test_starts_from_the_query_encoder_and_so_does_the_rounded_copy() -> None:
    encoder, head, keys = make()
    keys.eval()
    before = keys(TOKENS, 1, torch.bfloat16)
    theirs = [*encoder.parameters(), *head.parameters()]
    with torch.no_grad():
        for parameter in theirs:
            parameter.add_(1)
    keys.start_from(encoder, head)
    own = [*keys.encoder.parameters(), *keys.head.parameters()]
    assert all(torch.equal(p, q) for p, q in zip(own, theirs, strict=True))
    after = keys(TOKENS, 1, torch.bfloat16)
    assert not torch.allclose(after, before, atol=0.1)
    assert torch.allclose(after.float(), keys(TOKENS, 1, torch.float32), atol=0.2)
    keys.to("meta")
    assert keys(TOKENS.to("meta"), 1, torch.bfloat16).device.type == "meta", "and it moves with the module"
