"""The frozen copy of the encoder, and how far the weights are from it."""

import pytest
import torch
from torch import nn

from fairseq_clear.modules.frozen_encoder import FrozenEncoder, squared_distance


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


@pytest.mark.parametrize("pooling", ["max", "mean", "cls"])
def test_pools_every_layer_without_padding(pooling: str) -> None:
    encoder = Toy()
    guide = FrozenEncoder(encoder, pooling, (0, 1))
    vectors = guide(TOKENS, 1)
    assert vectors.shape == (2, 2, 4)
    for row, length in enumerate((4, 3)):
        states = encoder.embed(TOKENS[row, :length])
        for layer, hidden in enumerate((states, encoder.block(states))):
            expected = {"max": hidden.amax(0), "mean": hidden.mean(0), "cls": hidden[0]}[pooling]
            assert torch.allclose(vectors[row, layer], expected, atol=1e-6)
    assert torch.allclose(FrozenEncoder(encoder, pooling, (1,))(TOKENS, 1)[:, 0], vectors[:, 1])


def test_stays_in_evaluation_mode_unless_dropout_is_asked_for() -> None:
    encoder = Toy()
    holder = nn.ModuleDict(
        {"guide": FrozenEncoder(encoder, "mean", (0,)), "with": FrozenEncoder(encoder, "mean", (0,), True)}
    )
    holder.train()
    assert not any(module.training for module in holder["guide"].modules())
    assert all(module.training for module in holder["with"].modules())
    assert torch.equal(holder["guide"](TOKENS, 1), holder["guide"](TOKENS, 1))
    assert not torch.equal(holder["with"](TOKENS, 1), holder["with"](TOKENS, 1))
    holder.eval()
    assert not any(module.training for module in holder.modules())


def test_is_a_copy_that_takes_no_gradient() -> None:
    encoder = Toy()
    guide = FrozenEncoder(encoder, "mean", (0, 1))
    assert not any(parameter.requires_grad for parameter in guide.parameters())
    before = guide(TOKENS, 1)
    with torch.no_grad():
        encoder.block.weight.add_(1)
    assert torch.equal(guide(TOKENS, 1), before)
    assert not guide(TOKENS, 1).requires_grad
    guide.start_from(encoder)
    assert not torch.equal(guide(TOKENS, 1), before)
    assert all(torch.equal(p, q) for p, q in zip(guide.encoder.parameters(), encoder.parameters(), strict=True))
    assert encoder.block.weight.requires_grad


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
