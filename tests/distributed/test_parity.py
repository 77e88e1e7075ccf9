"""One worker, two and three, with different and unequal data: the same update."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from omegaconf import OmegaConf
from torch.multiprocessing.spawn import ProcessRaisedException

import fairseq_clear.criterions.clear_nt_xent as nt_xent_module
import fairseq_clear.criterions.clear_self_guided as self_guided_module
from fairseq_clear.criterions.clear_moco import ClearMocoCriterion
from fairseq_clear.data.dataset import ClearDataset
from fairseq_clear.distributed import Layout, agree_on_counts, all_gather_rows, choose_device
from fairseq_clear.patches import startup
from tests.conftest import Ranks
from tests.training import Case, configuration, distance, update, updates

SHARES: dict[int, Sequence[Sequence[Sequence[int]]]] = {
    1: [[list(range(10))]],
    2: [[[0, 1, 2, 3, 4, 5, 6]], [[7, 8, 9]]],
    3: [[[0, 1, 2, 3, 4]], [[5]], [[6, 7, 8, 9]]],
}
# Seven batches for two workers at --update-freq 4: the second has none for the last micro-batch.
SEVEN = [[0, 1, 2], [3, 4], [5, 6, 7], [8], [9, 10], [11, 12, 13], [14, 15]]
SEVEN_SHARES: dict[int, Sequence[Sequence[Sequence[int]]]] = {
    1: [[[*SEVEN[0], *SEVEN[1]], [*SEVEN[2], *SEVEN[3]], [*SEVEN[4], *SEVEN[5]], SEVEN[6]]],
    2: [[SEVEN[0], SEVEN[2], SEVEN[4], SEVEN[6]], [SEVEN[1], SEVEN[3], SEVEN[5], []]],
}
BACKENDS = ["legacy_ddp", "pytorch_ddp"]
PLAIN = {1: "legacy_ddp", 2: "pytorch_ddp", 3: "legacy_ddp"}  # workers -> backend of SHARES
GUIDED = (
    *("--criterion", "clear_self_guided", "--augment", "none", "--temperature", "0.2", "--regularizer-weight", "0.01"),
    *("--lr", "0.1"),
)
BT, CHUNKS = ("--views", "paraphrase:original,bt"), ("--encode-chunk-size", "40")
HARD = (*BT, "--hard-negatives", "other", "--augment", "none")
NEAR = ("--false-negatives", "guide:margin=-0.002", "--guide", "GUIDE")
RECIPES: dict[str, tuple[str, ...]] = {
    "clear": (),
    "contrastive alone": ("--mlm-weight", "0"),
    "weighted, in chunks": (*CHUNKS, "--contrastive-weight", "2.5"),
    "mlm alone": ("--contrastive-weight", "0"),
    "two copies": ("--mlm-copies", "2"),
    "window, in chunks": (*CHUNKS, "--attention-window", "4"),
    "regularised, layers frozen": ("--regularizer-weight", "0.01", "--frozen-layers", "2"),
    "matryoshka": (*CHUNKS, "--matryoshka", "8,32,128"),
    "false negatives masked": ("--false-negatives", "guide:margin=0.05"),
    "false negatives of a guide, in chunks": (*CHUNKS, "--false-negatives", "guide:margin=0.0", "--guide", "GUIDE"),
    "hard negatives, a guide": (*NEAR, "--views", "same", "--hard-negatives", "other,bt", "--augment", "none"),
    "hard negatives": HARD,
    "one direction": ("--directions", "one"),
    "all of these, in chunks": (*NEAR, *CHUNKS, *HARD, "--directions", "one"),
    "sg": (*GUIDED, *BT, "--objective", "sg"),
    "opt1, in chunks": (*GUIDED, "--objective", "opt1", "--encode-chunk-size", "32"),
    "opt2 with mlm": (*GUIDED, "--objective", "opt2", "--mlm-weight", "1"),
    "opt3, matryoshka": (*GUIDED, "--objective", "opt3", "--matryoshka", "8,32"),
    "opt3": (*GUIDED, "--objective", "opt3", "--guide-layers", "0,2"),
}
MOCO = tuple("--criterion clear_moco --queue-size 13 --key-momentum 0.5 --temperature 0.2 --lr 0.1".split())
# Keys enter the queue in the order of the ranks, here that of one worker's batch; the queue has no room for those of an update.
RECIPES |= {
    "moco": (*MOCO, *BT),
    "moco, false negatives masked": (*MOCO, *BT, "--false-negatives", "guide:margin=0.05"),
    "moco, a guide": (*MOCO, *BT, "--false-negatives", "guide", "--guide", "GUIDE"),
    "moco, matryoshka": (*MOCO, *BT, "--matryoshka", "8,32"),
    "moco with mlm, in chunks": (*MOCO, *CHUNKS, "--mlm-weight", "1", "--symmetric"),
}
SPAN = ("--views", "span:anchors=2,positives=2,min=3,max=9", "--augment", "none", "--tokens-per-sample", "32")
OF_DOCUMENTS = {
    "declutr": SPAN,
    "easy negatives alone": (*SPAN, "--same-document-negatives", "exclude"),
    "mlm on anchors": (*SPAN, "--contrastive-weight", "0"),
    "joint": (*SPAN, "--anchor-mlm", "joint"),
    "joint, in chunks": (*SPAN, "--anchor-mlm", "joint", "--encode-chunk-size", "33", "--ddp-backend", "pytorch_ddp"),
    "titles": ("--views", "titles:longest=60", "--augment", "none", "--tokens-per-sample", "32"),
    "neighbor-slice": ("--views", "neighbor", "--augment", "slice", "--tokens-per-sample", "32"),
}
# neighbours: items of several documents, six pairs each
SHARES_OF_DOCUMENTS = {1: [[[0, 1, 7, 8, 13, 15]]], 2: [[[0, 1, 7, 8]], [[13, 15]]]}
# The regulariser's gradient is 0 at the first update.
STEPS = {name: 3 if "moco" in name else 2 if "regularised" in name or "opt" in name else 1 for name in RECIPES}
LOGGED = [
    *"loss mlm_loss contrastive_loss contrastive_accuracy negatives_per_query alignment uniformity".split(),
    *"squared_distance queue_fill false_negative_share".split(),
]
FREQUENT = ("--update-freq", "4")


@contextmanager
def detached_gather() -> Iterator[None]:
    with ExitStack() as patches:
        for module in (nt_xent_module, self_guided_module):
            detached = lambda rows, layout: all_gather_rows(rows.detach(), layout)  # noqa: E731
            patches.enter_context(mock.patch.object(module, "all_gather_rows", detached))
        yield


@contextmanager
def queues_of_their_own() -> Iterator[None]:
    with mock.patch.object(ClearMocoCriterion, "layout", lambda criterion, rows, device: Layout((rows,))):
        yield


@contextmanager
def fairseqs_empty_batch() -> Iterator[None]:
    ours = ClearDataset.collater
    with mock.patch.object(ClearDataset, "collater", lambda self, samples: ours(self, samples) if samples else {}):
        yield


def cases(workers: int, guide: Path) -> dict[tuple[str, ...], Case]:
    """Every update that ``workers`` make, by name."""
    found = {}
    for backend in BACKENDS if workers > 1 else ["legacy_ddp"]:
        for recipe, flags in RECIPES.items():
            named = [str(guide) if flag == "GUIDE" else flag for flag in flags]
            with_backend = (*named, "--ddp-backend", backend)
            if backend == PLAIN[workers]:
                found[recipe,] = Case(with_backend, SHARES[workers], steps=STEPS[recipe])
            if workers in SEVEN_SHARES:
                found["seven", recipe, backend] = Case((*with_backend, *FREQUENT), SEVEN_SHARES[workers])
    if workers in SHARES_OF_DOCUMENTS:
        found |= {(name,): Case(flags, SHARES_OF_DOCUMENTS[workers]) for name, flags in OF_DOCUMENTS.items()}
    if workers == 2:
        found["detached", "declutr"] = Case(SPAN, SHARES_OF_DOCUMENTS[2], detached_gather)
        legacy = ("--ddp-backend", "legacy_ddp")
        found["detached",] = Case(legacy, SHARES[2], detached_gather)
        found["detached", "opt3"] = Case((*RECIPES["opt3"], *legacy), SHARES[2], detached_gather, STEPS["opt3"])
        found["fairseq's",] = Case((*legacy, *FREQUENT), SEVEN_SHARES[2], fairseqs_empty_batch)
        found["batch",] = Case((*legacy, "--negatives", "batch"), SHARES[2])
    return found


Results = dict[tuple[str, ...], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def single(paired_bin: Path, guide: Path) -> Results:
    return {name: [update(0, str(paired_bin), case)] for name, case in cases(1, guide).items()}


@pytest.fixture(scope="module")
def several(paired_bin: Path, guide: Path, ranks: Ranks) -> dict[int, Results]:
    found = {}
    for workers in (2, 3):
        wanted = cases(workers, guide)
        for case in wanted.values():
            configuration(paired_bin, *case.flags)  # kept for the workers, which are forked
        by_rank: Any = ranks(workers, updates, str(paired_bin), list(wanted.values()))
        found[workers] = {name: [results[number] for results in by_rank] for number, name in enumerate(wanted)}
    return found


def moved(result: dict[str, Any]) -> float:
    return distance(result["before"], result["after"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "recipe"), [(2, name) for name in (*RECIPES, *OF_DOCUMENTS)] + [(3, name) for name in RECIPES]
)
def test_the_update_does_not_depend_on_the_workers(workers, recipe, single, several) -> None:
    (alone,) = single[recipe,]
    assert moved(alone) > 1e-2
    for result in several[workers][recipe,]:
        assert distance(alone["after"], result["after"]) < 1e-5
        for name in LOGGED:
            assert result["log"].get(name) == pytest.approx(alone["log"].get(name), abs=2e-3), name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "whole"),
    [
        (("detached",), ("clear",)),
        (("detached", "opt3"), ("opt3",)),
        (("detached", "declutr"), ("declutr",)),
        (("fairseq's",), ("seven", "clear", "legacy_ddp")),
    ],
)
def test_broken_workers_make_another_update(broken, whole, single, several) -> None:
    """A detached gather; a detached guide, which takes no gradient, though its head does; fairseq's empty batch."""
    (alone,) = single[whole]
    assert all(distance(alone["after"], result["after"]) > 1e-4 for result in several[2][broken])


@pytest.mark.slow
def test_queues_of_their_own_end_the_run(ranks: Ranks, paired_bin: Path) -> None:
    """Workers whose queues differ are stopped at the next look, instead of learning from different negatives."""
    case = Case((*RECIPES["moco"], "--ddp-backend", "legacy_ddp"), SHARES[2], queues_of_their_own, STEPS["moco"])
    with pytest.raises(ProcessRaisedException, match="the workers' queues differ"):
        ranks(2, update, str(paired_bin), case)


@pytest.mark.slow
def test_negatives_of_the_batch_are_fewer(several: dict[int, Results]) -> None:
    # 7 texts give 14 queries of 12 negatives, 3 texts give 6 of 4.
    expected = pytest.approx((14 * 12 + 6 * 4) / 20, abs=0.1)
    assert several[2]["batch",][0]["log"]["negatives_per_query"] == expected


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_worker_that_has_run_out(recipe: str, backend: str, single: Results, several: dict[int, Results]) -> None:
    (alone,) = single["seven", recipe, "legacy_ddp"]
    assert moved(alone) > 1e-2
    assert all(distance(alone["after"], result["after"]) < 1e-5 for result in several[2]["seven", recipe, backend])


def gather_and_weigh(rank: int, counts: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Gradient of sum_{rank, j} (rank + 1) * (j + 1) * key_j: each key's is known by hand."""
    rows = (torch.arange(counts[rank] * 2, dtype=torch.float32).reshape(-1, 2) + 100 * rank).requires_grad_()
    layout = agree_on_counts(len(rows), rows.device)
    gathered = all_gather_rows(rows, layout)
    position = torch.arange(1, gathered.shape[0] + 1).unsqueeze(1)
    ((rank + 1) * position * gathered).sum().backward()
    assert rows.grad is not None
    return gathered.detach(), rows.grad, layout.offset


@pytest.mark.slow
@pytest.mark.parametrize("counts", [(2, 1), (0, 3), (2, 0, 1)])
def test_gathering_unequal_rows(counts: tuple[int, ...], ranks: Ranks) -> None:
    results: Any = ranks(len(counts), gather_and_weigh, counts)
    parts = [torch.arange(count * 2.0).reshape(-1, 2) + 100 * rank for rank, count in enumerate(counts)]
    everyone = sum(range(1, len(counts) + 1))
    for rank, (gathered, gradient, offset) in enumerate(results):
        torch.testing.assert_close(gathered, torch.cat(parts))
        assert offset == sum(counts[:rank])
        expected = everyone * torch.arange(offset + 1, offset + counts[rank] + 1, dtype=torch.float32)
        torch.testing.assert_close(gradient, expected.unsqueeze(1).expand(-1, 2))


def test_alone_gathering_is_the_identity() -> None:
    rows = torch.ones(3, 2)
    layout = agree_on_counts(3, rows.device)
    assert all_gather_rows(rows, layout) is rows
    assert layout.offset == 0


def test_each_worker_of_a_machine_has_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert choose_device(None) == choose_device("cuda") == torch.device("cuda", 3)
    assert choose_device("cuda:1") == torch.device("cuda", 1) and choose_device("cpu") == torch.device("cpu")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)  # as with srun --gpus-per-task
    assert choose_device(None) == torch.device("cuda", 0)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    for name, value in {"WORLD_SIZE": "4", "RANK": "3", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    workers = {"distributed_world_size": 1, "distributed_init_method": None}
    cfg = OmegaConf.create({"distributed_training": workers, "common": {"cpu": False}})
    startup.join_torchrun(cfg)
    assert cfg.distributed_training.device_id == 0 and cfg.distributed_training.distributed_rank == 3
