"""Bytes between workers against what a counting process group sees."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from fairseq_clear.planning.metering import Collective
from tests.conftest import Ranks
from tests.planning.measuring import LENGTH, batch_of, recipe_of, trainer_of

TEXTS = 3
MODEL = {"_name": "clear_roberta_tiny", "max_positions": LENGTH, "projection_dim": 24}
SAME = {"views": "same", "augment": "del-word"}
CASES: dict[str, dict[str, Any]] = {
    "chunks": {
        "model": {**MODEL, "encode_chunk_size": 32},
        "criterion": {"_name": "clear_nt_xent"},
        "task": SAME,
    },
    "views alone": {"model": MODEL, "criterion": {"_name": "clear_nt_xent", "mlm_weight": 0}, "task": SAME},
    "negatives of a batch": {
        "model": MODEL,
        "criterion": {"_name": "clear_nt_xent", "negatives": "batch"},
        "task": SAME,
    },
    "mlm alone": {"model": MODEL, "criterion": {"_name": "clear_nt_xent", "contrastive_weight": 0}, "task": SAME},
    "masked_lm": {"model": MODEL, "criterion": {"_name": "masked_lm"}, "task": SAME},
    "hard negatives": {
        "model": MODEL,
        "criterion": {"_name": "clear_nt_xent"},
        "task": {"views": "same", "augment": "none", "hard_negatives": "other"},
    },
    "regularizer, frozen layers, amp": {
        "model": MODEL,
        "criterion": {"_name": "clear_nt_xent", "regularizer_weight": 0.1, "frozen_layers": 1},
        "task": SAME,
        "common": {"amp": True},
    },
    "joint spans": {
        "model": MODEL,
        "criterion": {"_name": "clear_nt_xent", "anchor_mlm": "joint"},
        "task": {"views": "span:anchors=2,positives=2,min=2,max=6"},
    },
    "moco": {"model": MODEL, "criterion": {"_name": "clear_moco", "queue_size": 7}, "task": SAME},
    "moco, symmetric, mlm": {
        "model": MODEL,
        "criterion": {"_name": "clear_moco", "symmetric": True, "mlm_weight": 1},
        "task": {"views": "paraphrase:original,bt"},
    },
    "self-guided": {"model": MODEL, "criterion": {"_name": "clear_self_guided"}, "task": SAME},
    "self-guided, sg": {"model": MODEL, "criterion": {"_name": "clear_self_guided", "objective": "sg"}, "task": SAME},
    "self-guided, no head": {
        "model": {**MODEL, "projection_layers": 0},
        "criterion": {"_name": "clear_self_guided", "objective": "opt2", "regularizer_weight": 0},
        "task": SAME,
    },
}
Seen = list[tuple[str, int]]
OTHERS = (
    *("broadcast", "reduce", "gather", "scatter", "barrier", "all_to_all", "all_to_all_single", "reduce_scatter"),
    *("all_gather_into_tensor", "all_gather_object", "broadcast_object_list", "send", "recv", "isend", "irecv"),
)


def counting(seen: Seen, name: str, size: Callable[..., int]) -> Any:
    """The collective, writing down what this worker gives."""
    original = getattr(dist, name)

    def counted(*args: Any, **kwargs: Any) -> Any:
        seen.append((name.removesuffix("_tensor"), size(*args)))
        return original(*args, **kwargs)

    return mock.patch.object(dist, name, counted)


def step(rank: int, data: str, config: dict[str, Any], workers: int, frequency: int) -> tuple[int, Seen]:
    """Rows of the embedding, and the collectives of the second update."""
    trainer, dataset = trainer_of(Path(data), config, "--ddp-backend", "legacy_ddp", world_size=workers)
    batches = [batch_of(dataset, TEXTS, first=TEXTS * (frequency * rank + micro)) for micro in range(frequency)]
    trainer.reset_dummy_batch(batches[0])
    trainer.train_step(batches)
    seen: Seen = []
    with (
        counting(seen, "all_reduce", lambda tensor, *_: tensor.nbytes),
        counting(seen, "all_gather", lambda parts, tensor, *_: tensor.nbytes),
        counting(seen, "reduce_scatter_tensor", lambda output, tensor, *_: tensor.nbytes),
        mock.patch.multiple(dist, **{name: mock.Mock(side_effect=AssertionError(name)) for name in OTHERS}),
    ):
        trainer.train_step(batches)
    return len(trainer.task.dictionary), seen


# (case, micro-batches) by workers: four of them take long on few cores
RUNS = {2: [*((name, 1) for name in CASES), ("moco", 2)], 4: [("hard negatives", 2)]}


def steps(rank: int, data: str, workers: int) -> dict[tuple[str, int], tuple[int, Seen]]:
    return {(name, micro): step(rank, data, CASES[name], workers, micro) for name, micro in RUNS[workers]}


@pytest.fixture(scope="module")
def seen(paired_bin: Path, ranks: Ranks) -> dict[int, Any]:
    return {workers: ranks(workers, steps, str(paired_bin), workers) for workers in RUNS}


def planned(exchanges: list[Collective]) -> Seen:
    return sorted((one.operation, one.size) for one in exchanges for _ in range(one.times))


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "name", "frequency"), [(n, *run) for n, runs in RUNS.items() for run in runs])
def test_every_worker_sends_what_is_planned(workers: int, name: str, frequency: int, seen: dict[int, Any]) -> None:
    recipe = recipe_of(CASES[name], seen[workers][0][name, frequency][0])
    for by_case in seen[workers]:
        _, exchanged = by_case[name, frequency]
        assert sorted(exchanged) == planned(recipe.exchanges(TEXTS, workers, frequency, backend="gloo"))
    if len(exchanged) > 4 and "batch" not in name:  # more than gradients, counts and logs
        assert sorted(exchanged) != planned(recipe.exchanges(TEXTS + 1, workers, frequency, backend="gloo"))


def test_a_ring_sends_each_part_around() -> None:
    assert Collective("", "all_gather", 10).sent(4) == 30
    assert Collective("", "reduce_scatter", 40).sent(4) == 30
    assert Collective("", "all_reduce", 40, times=2).sent(4) == 120


def test_nccl_scatters_where_gloo_reduces() -> None:
    recipe = recipe_of(CASES["views alone"], 1_000)

    def gradients(backend: str) -> list[Collective]:
        return [one for one in recipe.exchanges(32, 256, backend=backend) if one.what == "vectors' gradients"]

    (nccl,), (gloo,) = gradients("nccl"), gradients("gloo")
    # 2 x 32 rows of 24 float32 numbers on each of 256 workers
    assert nccl.size == gloo.size == 256 * 64 * 24 * 4
    assert (nccl.operation, gloo.operation) == ("reduce_scatter", "all_reduce")
    assert gloo.sent(256) == 2 * nccl.sent(256)
    assert recipe.exchanges(32, 1) == []


def test_torch_names_are_known() -> None:
    assert all(callable(getattr(dist, name)) for name in OTHERS)
    assert torch.zeros(3, dtype=torch.float64).nbytes == 24
