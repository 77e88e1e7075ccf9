"""The queue of keys: wrapping at any size, oldest first, float32 whatever the model's precision."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fairseq_clear.modules.key_queue import KeyQueue


@settings(max_examples=60, deadline=None)
@given(size=st.integers(1, 9), batches=st.lists(st.integers(0, 20), max_size=8))
def test_holds_the_last_keys_where_a_ring_would(size: int, batches: list[int]) -> None:
    queue = KeyQueue(size, 3)
    ring: dict[int, int] = {}
    written = 0
    for count in batches:
        numbers = torch.arange(written, written + count)
        keys = torch.stack([numbers + 1.0, torch.ones(count), torch.zeros(count)], dim=1)
        queue.enqueue(keys, numbers)
        for number in range(written, written + count):
            ring[number % size] = number
        written += count
    assert int(queue.pointer) == written % size
    assert int(queue.fill) == min(written, size)
    assert queue.is_written.tolist() == [place in ring for place in range(size)]
    for place, number in ring.items():
        assert int(queue.identities[place]) == number
        expected = torch.tensor([number + 1.0, 1.0, 0.0])
        assert torch.allclose(queue.keys[place], expected / expected.norm(), atol=1e-6)


def test_stays_in_float32_when_the_model_is_halved() -> None:
    holder = nn.ModuleDict({"queue": KeyQueue(4, 2), "layer": nn.Linear(2, 2)})
    holder["queue"].enqueue(torch.tensor([[0.3, 0.7]], dtype=torch.float16), torch.tensor([2**40 + 1]))
    before = {name: value.clone() for name, value in holder["queue"].state_dict().items()}
    for dtype in (torch.float16, torch.bfloat16):
        holder.to(dtype)
        assert (holder["layer"].weight.dtype, holder["queue"].keys.dtype) == (dtype, torch.float32)
        assert all(torch.equal(before[name], value) for name, value in holder["queue"].state_dict().items())


@pytest.mark.parametrize("guide_width", [0, 3])
@settings(max_examples=40)
@given(
    size=st.integers(1, 9),
    kept=st.lists(st.integers(0, 12), max_size=3),
    undone=st.lists(st.integers(1, 20), min_size=1, max_size=3),
)
def test_undo_restores_what_was_confirmed(guide_width: int, size: int, kept: list[int], undone: list[int]) -> None:
    generator = torch.Generator().manual_seed(1)
    queue = KeyQueue(size, 3, guide_width=guide_width, undoable=True)

    def enqueue(count: int) -> None:
        guides = [torch.randn(count, guide_width, generator=generator)] if guide_width else []
        queue.enqueue(torch.randn(count, 3, generator=generator), torch.arange(count) + 7, *guides)

    for count in kept:
        enqueue(count)
    queue.confirm()
    before, checksum = {name: value.clone() for name, value in queue.state_dict().items()}, queue.checksum()
    for count in undone:
        enqueue(count)
    assert not torch.equal(queue.checksum(), checksum)
    queue.undo()
    assert all(torch.equal(before[name], value) for name, value in queue.state_dict().items())
    assert torch.equal(queue.checksum(), checksum)
    for name in before.keys() - {"fill"}:
        getattr(queue, name).add_(1)
        assert not torch.equal(queue.checksum(), checksum), name
        getattr(queue, name).sub_(1)


def test_the_checksum_tells_the_order_of_the_keys() -> None:
    keys = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))
    one, other = KeyQueue(4, 3), KeyQueue(4, 3)
    one.enqueue(keys, torch.arange(4))
    other.enqueue(keys.flip(0), torch.arange(4).flip(0))
    assert not torch.allclose(one.checksum(), other.checksum())
