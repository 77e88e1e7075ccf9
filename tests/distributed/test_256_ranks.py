"""256 workers as threads of one process, compared with one worker: losses, gradients and the queue."""

import copy
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_clear.data.batch import Views
from fairseq_clear.distributed import Layout
from fairseq_clear.modules.key_queue import KeyQueue
from tests.training import build

WORKERS, WIDTH = 256, 8
COUNTS = [7 * rank % 4 for rank in range(WORKERS)]  # texts of each worker: 0 to 3
TEXTS = sum(COUNTS)
DIFFERENT = 300  # texts; the others repeat one of another worker


class ThreadGroup:
    """What ``fairseq_clear.distributed`` calls of torch.distributed, for threads instead of processes."""

    def __init__(self, backend: str) -> None:
        self.backend, self.barrier = backend, threading.Barrier(WORKERS, timeout=60)
        self.slots: list[Any] = [None] * WORKERS
        self.combined: Any = None
        self.local = threading.local()

    def run(self, function: Callable[[int], Any]) -> list[Any]:
        def worker(rank: int) -> Any:
            self.local.rank = rank
            try:
                return function(rank)
            except BaseException:
                self.barrier.abort()
                raise

        with ThreadPoolExecutor(WORKERS) as pool:
            return list(pool.map(worker, range(WORKERS)))

    def _exchange(self, tensor: torch.Tensor, combine: Callable[[list[Any]], Any]) -> Any:
        """``combine`` of the tensors of all workers, which one of them computes."""
        self.slots[self.local.rank] = tensor
        if self.barrier.wait() == 0:
            self.combined = combine(self.slots)
        self.barrier.wait()
        return self.combined

    def is_available(self) -> bool:
        return True

    is_initialized = is_available

    def get_world_size(self, group: Any = None) -> int:
        return WORKERS

    def get_rank(self, group: Any = None) -> int:
        return int(self.local.rank)

    def get_backend(self, group: Any = None) -> str:
        return self.backend

    def all_gather(self, parts: list[torch.Tensor], mine: torch.Tensor, group: Any = None) -> None:
        torch._foreach_copy_(parts, self._exchange(mine, lambda all_of_them: [one.clone() for one in all_of_them]))

    def all_reduce(self, tensor: torch.Tensor, group: Any = None) -> None:
        tensor.copy_(self._exchange(tensor, lambda all_of_them: torch.stack(all_of_them).sum(dim=0)))

    def reduce_scatter_tensor(self, own: torch.Tensor, parts: torch.Tensor, group: Any = None) -> None:
        summed = self._exchange(parts, lambda all_of_them: torch.stack(all_of_them).sum(dim=0))
        begin = self.local.rank * len(own)
        own.copy_(summed[begin : begin + len(own)])


@pytest.fixture
def group(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ThreadGroup:
    made = ThreadGroup(getattr(request, "param", "gloo"))
    for module in ("distributed", "criterions.clear_moco"):
        monkeypatch.setattr(f"fairseq_clear.{module}.dist", made)
    return made


def views_of(begin: int, count: int) -> Views:
    """The views of ``count`` texts from number ``begin`` on, without their tokens."""
    identity = torch.arange(begin, begin + count) % DIFFERENT
    return Views(torch.zeros(2 * count, 1), [1] * (2 * count), identity, identity[:0], torch.zeros(count))


def contrast(criterion: Any, anchors: torch.Tensor, positives: torch.Tensor, begin: int) -> dict[str, torch.Tensor]:
    """Loss, number of queries, and gradients of the texts from number ``begin`` on, by the criterion of a worker."""
    anchors, positives = (vectors.clone().requires_grad_() for vectors in (anchors, positives))
    views = views_of(begin, len(anchors))
    given = {"projections": torch.cat([anchors, positives])}
    if "clear_moco" in type(criterion).__module__:
        given = {"projections": anchors, "keys": positives.detach()}
    loss, queries, _ = criterion.contrast(given, views, criterion._layouts(views, False))
    loss.backward()
    both = anchors, positives
    gradients = [torch.zeros_like(vectors) if vectors.grad is None else vectors.grad for vectors in both]
    return {"loss": loss.detach(), "queries": queries, "gradient": torch.stack(gradients, dim=1)}


def of_all(results: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Summed losses and numbers of queries; the gradients of all texts."""
    sums = {name: torch.stack([one[name] for one in results]).sum() for name in ("loss", "queries")}
    return {**sums, "gradient": torch.cat([one["gradient"] for one in results])}


def shares(*vectors: torch.Tensor) -> list[tuple[Any, ...]]:
    """For each worker, its rows of each tensor, and the number of its first row."""
    begins = [sum(COUNTS[:rank]) for rank in range(WORKERS)]
    return list(zip(*(rows.split(COUNTS) for rows in vectors), begins, strict=True))


def share_of(criterions: Sequence[Any], parts: Sequence[tuple[Any, ...]], rank: int) -> dict[str, torch.Tensor]:
    return contrast(criterions[rank], *parts[rank])


def differs(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return any(not torch.allclose(one[name], other[name], rtol=1e-4, atol=1e-5) for name in one)


@pytest.mark.parametrize(("directions", "group"), [("both", "gloo"), ("one", "nccl")], indirect=["group"])
def test_losses_and_gradients_are_those_of_one_worker(directions, group, data_bin, monkeypatch) -> None:
    trainer, _ = build(data_bin, "--directions", directions)
    criterion = trainer.get_criterion()
    torch.manual_seed(1)
    vectors = torch.randn(2, TEXTS, WIDTH)
    with monkeypatch.context() as alone:
        alone.setattr(type(criterion), "layout", lambda self, rows, device: Layout((rows,)))
        expected = contrast(criterion, vectors[0], vectors[1], 0)
    parts = shares(*vectors)
    found = of_all(group.run(partial(share_of, [criterion] * WORKERS, parts)))
    assert expected["queries"] == TEXTS * (2 if directions == "both" else 1) and not differs(found, expected)
    if directions == "one":
        return
    # Negative controls: every worker takes its rows for the first ones; equal texts have other identities.
    with monkeypatch.context() as wrong:
        wrong.setattr(Layout, "offset", 0)
        assert differs(of_all(group.run(partial(share_of, [criterion] * WORKERS, parts))), expected)
    monkeypatch.setattr("tests.distributed.test_256_ranks.DIFFERENT", TEXTS)
    assert differs(of_all(group.run(partial(share_of, [criterion] * WORKERS, parts))), expected)


def test_queues_are_that_of_one_worker(group: ThreadGroup, data_bin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three updates; the queue's size is no multiple of their texts."""
    trainer, _ = build(data_bin, "--criterion", "clear_moco")
    first = trainer.get_criterion().train()

    def worker() -> Any:
        criterion = copy.copy(first)
        criterion._held = [KeyQueue(1_000, WIDTH)]
        return criterion

    alone, workers = worker(), [worker() for _ in range(WORKERS)]
    torch.manual_seed(1)
    for _ in range(3):
        vectors = torch.randn(2, TEXTS, WIDTH)
        with monkeypatch.context() as single:
            single.setattr(type(first), "layout", lambda self, rows, device: Layout((rows,)))
            single.setattr("fairseq_clear.criterions.clear_moco.world_size", lambda group=None: 1)
            expected = contrast(alone, vectors[0], vectors[1], 0)
        parts = shares(*vectors)
        found = of_all(group.run(partial(share_of, workers, parts)))
        assert not differs(found, expected)
        for criterion in workers:
            for mine, other in zip(criterion._held[0].buffers(), alone._held[0].buffers(), strict=True):
                assert torch.equal(mine, other)
    assert expected["queries"] == TEXTS
