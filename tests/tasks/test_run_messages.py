"""The share of the time that a run waits for its data."""

from types import SimpleNamespace
from typing import Any

import pytest
from fairseq.data.iterators import CountingIterator

from fairseq_clear.tasks import run_messages
from fairseq_clear.tasks.run_messages import DataWait


class Clock:
    """A clock that moves when it is told to."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now


class Slow:
    """Batches that take two seconds each, with fairseq's ``take``."""

    def __init__(self, clock: Clock, count: int) -> None:
        self.clock, self.left, self.taken = clock, count, 0

    def __len__(self) -> int:
        return self.left

    def __iter__(self) -> "Slow":
        return self

    def __next__(self) -> int:
        if not self.left:
            raise StopIteration
        self.clock.now += 2
        self.left -= 1
        return self.left

    def take(self, count: int) -> None:
        self.taken = count


def test_the_time_inside_next(monkeypatch: pytest.MonkeyPatch) -> None:
    clock: Any = Clock()
    monkeypatch.setattr(run_messages, "time", clock)
    wait, source = DataWait(), Slow(clock, 3)
    batches = SimpleNamespace(next_epoch_itr=lambda shuffle: CountingIterator(source))
    wait.watch(batches)
    epoch = batches.next_epoch_itr(shuffle=True)
    assert next(epoch) == 2
    clock.now += 6  # an update
    assert wait.share() == 2 / 8
    assert [next(epoch), next(epoch)] == [1, 0] and not epoch.has_next()
    assert wait.share() == 1
    clock.now += 1
    assert wait.share() == 0
    epoch.take(5)
    assert source.taken == 2, "fairseq's limit reaches the buffer"
