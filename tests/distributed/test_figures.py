"""The figures that several workers log, in training and in validation, are those of one worker with the same texts."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from fairseq.logging import metrics

import fairseq_clear.criterions.contrastive as contrastive
from fairseq_clear.modules import chunking
from tests.conftest import Ranks
from tests.distributed.test_parity import GUIDED, MOCO
from tests.training import build, configuration

pytestmark = pytest.mark.slow

UPDATES = 4
# The first of two workers reads its batch in parts, the other one does not; one of three has no data.
SHARES: dict[int, Sequence[Sequence[int]]] = {
    1: [range(12)],
    2: [range(11), [11]],
    3: [range(11), [], [11]],
}
TIMES = {"wps", "ups", "train_wall", "wall", "gb_free"}
RECIPES: dict[str, tuple[str, ...]] = {
    "clear": (),
    "contrastive alone": ("--mlm-weight", "0"),
    "matryoshka": ("--matryoshka", "8,32,128"),
    "a guide": ("--false-negatives", "guide:margin=0.05", "--guide", "GUIDE"),
    "regularised": ("--regularizer-weight", "0.01"),
    "opt2 with mlm": (*GUIDED, "--objective", "opt2", "--mlm-weight", "1"),
    "moco with mlm, a guide": (*MOCO, "--mlm-weight", "1", "--false-negatives", "guide", "--guide", "GUIDE"),
    "a mix": ("--mix", "DATA:1,OTHER:1"),
}
Broken = Callable[[int], AbstractContextManager[Any]]


@contextmanager
def shuffled_keys(rank: int) -> Iterator[None]:
    """The second worker gives its figures in another order."""
    stock = contrastive.record_figures
    shuffled = lambda *args: dict(reversed(stock(*args).items())) if rank else stock(*args)  # noqa: E731
    with mock.patch.object(contrastive, "record_figures", shuffled):
        yield


def averages(step: Callable[[Any], object], batch: Any) -> dict[str, float]:
    """What a step logs, before it is rounded."""
    with metrics.aggregate(new_root=True) as logged:
        step(batch)
    return {name: float(meter.avg) for name, meter in logged.items() if hasattr(meter, "avg") and name not in TIMES}


def follow(rank: int, data: str, cases: Sequence[tuple[tuple[str, ...], Sequence[Sequence[int]], Broken]]) -> list[Any]:
    """For each case the figures of every update and of the validation after it, and whether this worker read in parts."""
    found = []
    for flags, shares, broken in cases:
        with broken(rank), mock.patch.dict(chunking.ENOUGH_CELLS, cpu=30):
            trainer, dataset = build(data, *flags, world_size=len(shares))
            batch = dataset.collater([dataset[index] for index in shares[rank]])
            in_parts = "lengths" in batch and chunking.has_parts(batch["lengths"], torch.device("cpu"))
            trainer.reset_dummy_batch(batch)
            both = ((trainer.train_step, [batch]), (trainer.valid_step, batch))
            steps = [tuple(averages(*step) for step in both) for _ in range(UPDATES)]
        found.append((steps, in_parts))
    return found


@pytest.fixture(scope="module")
def logged(
    paired_bin: Path, guide: Path, ranks: Ranks, tmp_path_factory: pytest.TempPathFactory
) -> dict[int, list[Any]]:
    """Number of workers -> what each of them logs."""
    other = shutil.copytree(paired_bin, tmp_path_factory.mktemp("mix") / "other")
    named = {"GUIDE": str(guide), "DATA:1,OTHER:1": f"{paired_bin}:1,{other}:1"}
    # a small rate: a larger one amplifies differences of rounding from update to update
    common = ("--lr", "0.0001", "--ddp-backend", "legacy_ddp")
    recipes = [(*(named.get(flag, flag) for flag in flags), *common) for flags in RECIPES.values()]
    for flags in recipes:
        configuration(paired_bin, *flags)  # kept for the workers, which are forked
    alone = [(flags, SHARES[1], nullcontext) for flags in recipes]
    found: dict[int, list[Any]] = {1: [follow(0, str(paired_bin), alone)]}
    for workers in (2, 3):
        cases = [(flags, SHARES[workers], nullcontext) for flags in (recipes[:1] if workers == 2 else recipes)]
        cases += [(recipes[0], SHARES[2], shuffled_keys)] if workers == 2 else []
        found[workers] = ranks(workers, follow, str(paired_bin), cases)
    return found


def differing(alone: dict[str, float], found: dict[str, float]) -> list[str]:
    """Names of figures that are missing, or differ by more than 1e-6 (of the value, if it is above 1)."""
    close = {name: pytest.approx(value, rel=1e-6, abs=1e-6) for name, value in alone.items()}
    return [name for name in {**alone, **found} if found.get(name) != close.get(name)]


@pytest.mark.parametrize(("workers", "recipe"), [(2, "clear"), *((3, recipe) for recipe in RECIPES)])
def test_every_figure_is_one_workers(workers: int, recipe: str, logged: dict[int, list[Any]]) -> None:
    number = list(RECIPES).index(recipe)
    alone, _ = logged[1][0][number]
    has_mlm = "mlm_loss" in alone[0][0]
    assert {"loss", "contrastive_loss", "contrastive_accuracy", "bsz", "wpb"} <= alone[1][0].keys()
    assert {"loss", "contrastive_loss", "contrastive_accuracy"} <= alone[1][1].keys()
    for rank, results in enumerate(logged[workers]):
        steps, in_parts = results[number]
        assert in_parts == (has_mlm and rank == 0), "the workers read in different ways"
        for (train, valid), (expected_train, expected_valid) in zip(steps, alone, strict=True):
            assert differing(expected_train, train) == [] == differing(expected_valid, valid)
        losses, expected = ([valid["loss"] for _, valid in some] for some in (steps, alone))
        assert losses.index(min(losses)) == expected.index(min(expected)), "another checkpoint would be the best"


def test_figures_in_another_order_are_wrong(logged: dict[int, list[Any]]) -> None:
    alone, _ = logged[1][0][0]
    steps, _ = logged[2][0][-1]
    assert {"loss", "contrastive_accuracy"} <= {*differing(alone[0][0], steps[0][0])}
    assert differing(alone[0][1], steps[0][1])
