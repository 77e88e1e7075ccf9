"""--directions one: SimCSE's equations in float64, gradient included, with all that can be combined with it."""

import shlex
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor

from fairseq_clear.data.batch import Views
from fairseq_clear.distributed import Layout
from fairseq_clear.objectives import negatives as blocks
from fairseq_clear.refining.refine_settings import RECIPES
from fairseq_clear.tasks.run_messages import _lines
from tests.conftest import ROOT
from tests.criterions.test_clear_nt_xent import parts
from tests.objectives import oracles
from tests.objectives.test_false_negatives import nearer
from tests.training import build

TAU = 0.02
ONE = (
    *("--directions", "one", "--augment", "none", "--mlm-weight", "0"),
    *("--temperature", str(TAU), "--projection-layers", "0"),
)
PAIRS = ("--views", "paraphrase:original,bt")
HARD = (*PAIRS, "--hard-negatives", "other")


def encoded(data: Path, count: int, *flags: str) -> tuple[Any, Any, dict[str, Any], np.ndarray]:
    """Loss, number of queries and log of a batch, and the vectors of its views in float64, anchors first."""
    model, criterion, dataset, _ = parts(data, *ONE, *flags)
    sample = dataset.collater([dataset[index] for index in range(count)])
    assert len(np.unique(sample["views"]["identity"], axis=0)) == count
    with torch.no_grad():
        vectors = model(views=sample["views"]["tokens"])[1]["projections"].double().numpy()
        loss, size, log = criterion(model, sample)
    return loss, size, log, vectors


def test_simcse_equation_4(paired_bin: Path) -> None:
    loss, size, log, z = encoded(paired_bin, 6, *PAIRS)
    expected = oracles.simcse_equation_1(z[:6], z[6:], TAU)
    assert loss.item() == pytest.approx(expected, rel=1e-4)
    assert size == 6 and log["negatives"] == 6 * 5
    assert oracles.simcse_equation_1(z[6:], z[:6], TAU) != pytest.approx(expected, rel=1e-3), "the other direction"
    assert oracles.clear_equation_2(z, TAU) / 2 != pytest.approx(expected, rel=1e-3), "both directions"


def test_simcse_equation_5(paired_bin: Path) -> None:
    loss, size, log, z = encoded(paired_bin, 5, *HARD)
    assert len(z) == 15
    assert loss.item() == pytest.approx(oracles.simcse_equation_5(z[:5], z[5:10], z[10:], TAU), rel=1e-4)
    assert size == 5 and log["negatives"] == 5 * (4 + 5)


def test_matryoshka(paired_bin: Path) -> None:
    loss, size, _, z = encoded(paired_bin, 5, *HARD, "--matryoshka", "8,32")
    expected = [oracles.simcse_equation_5(z[:5, :d], z[5:10, :d], z[10:, :d], TAU) for d in (8, 32)]
    assert loss.item() == pytest.approx(sum(expected) / 2, rel=1e-4) and size == 5


def test_false_negatives_are_masked(paired_bin: Path) -> None:
    loss, size, log, z = encoded(paired_bin, 8, *HARD, "--false-negatives", "guide:margin=0.5")
    queries, keys = torch.from_numpy(z[:8]), torch.from_numpy(z[8:])  # positives, then hard negatives
    masked = nearer(queries, keys, keys[:8], 0.5)
    positive = list(range(8))
    expected = oracles.nt_xent_with_exclusions(z[:8], z[8:], positive, TAU, masked)
    assert loss.item() == pytest.approx(expected, rel=1e-4, abs=1e-5)
    left = ~masked
    left[positive, positive] = False
    assert 0 < left.sum() < 8 * 15
    assert log["candidates"] == 8 * 15 and log["negatives"] == left.sum() and size == left.any(axis=1).sum()


def test_duplicates_are_not_candidates(data_bin: Path) -> None:
    for flags, negatives in ((), 2 * 1 + 1 * 2), (("--keep-duplicates",), 3 * 2):
        model, criterion, dataset, _ = parts(data_bin, *ONE, *flags)
        log = criterion(model, dataset.collater([dataset[0], dataset[0], dataset[1]]))[2]
        assert log["negatives"] == negatives


def test_a_blank_hard_negative_is_no_candidate_if_duplicates_are(paired_bin: Path) -> None:
    """It is replaced by its text, which would be pushed away from itself."""
    blank = ("--hard-negatives", "bt", "--keep-duplicates")  # every fifth line of bt is blank
    for flags in blank, (*PAIRS, *blank):
        model, criterion, dataset, _ = parts(paired_bin, *ONE, *flags)
        for items, hard in ([0, 1, 2], 3), ([3, 4, 5], 2), ([4, 4, 5], 1):
            log = criterion(model, dataset.collater(dataset.__getitems__(items)))[2]
            assert log["negatives"] == 3 * (2 + hard)
        assert criterion(model, dataset.collater([]))[2]["negatives"] == 0  # of a worker that has run out of texts


def contrast(criterion: Any, z: Tensor, texts: int, hard: int) -> Tensor:
    """The loss of vectors (2N + H, D): anchors, positives, hard negatives; every text differs."""
    identities = torch.arange(texts), torch.arange(texts, texts + hard)
    views = Views(torch.zeros(len(z), 0), [0] * len(z), *identities, torch.zeros(texts))
    layouts = {name: Layout((count,)) for name, count in criterion.gathered_rows(views).items()}
    loss: Tensor = criterion.contrast({"projections": z}, views, layouts)[0]
    return loss


@pytest.mark.parametrize("directions", ["one", "both"])
def test_one_collective_counts_queries_and_hard_negatives(directions: str, paired_bin: Path) -> None:
    criterion, asked = parts(paired_bin, *ONE, *HARD, "--directions", directions)[1], list[int]()

    def layout(rows: int, device: torch.device) -> Layout:
        """As if another worker had four texts."""
        asked.append(rows)
        return Layout((rows, 4 * criterion.sides))

    views = Views(torch.zeros(12, 0), [0] * 12, torch.arange(3), torch.arange(6), torch.zeros(3))  # two for each text
    with mock.patch.object(criterion, "layout", layout):
        found = [criterion._layouts(views, is_empty) for is_empty in (False, True)]
    assert [one["negatives"].counts for one in found] == [(6, 8), (0, 8)]
    assert asked == [3 * criterion.sides, 0]


@pytest.mark.parametrize("block", [1, 7, 2**20])
def test_gradient_is_the_slope_of_equation_5(block: int, paired_bin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK", block)
    monkeypatch.setattr(blocks, "BLOCK_ROWS", 3)
    criterion = parts(paired_bin, *ONE, *HARD)[1]
    z = torch.randn(12, 3, generator=torch.Generator().manual_seed(1), requires_grad=True)
    loss = contrast(criterion, z, 4, 4)
    values = z.detach().double().numpy()

    def equation(z: np.ndarray) -> float:
        return oracles.simcse_equation_5(z[:4], z[4:8], z[8:], TAU)

    assert loss.item() == pytest.approx(equation(values), rel=1e-5)
    (gradient,) = torch.autograd.grad(loss, z)
    assert gradient.numpy() == pytest.approx(oracles.slopes(equation, values), rel=1e-3, abs=1e-4)


def test_the_recipe_of_simcse_has_one_direction(paired_bin: Path) -> None:
    recipe = OmegaConf.load(ROOT / "examples/simcse/config/unsupervised.yaml")
    flags = shlex.split(RECIPES["simcse"].flags)
    for directions in (recipe.criterion.directions, flags[flags.index("--directions") + 1]):
        trainer, dataset = build(paired_bin, *ONE[2:], "--views", "same", "--directions", directions)
        _, size, log = trainer.get_criterion()(trainer.get_model(), dataset.collater([dataset[i] for i in range(5)]))
        assert size == 5 and log["negatives"] == 5 * 4
        said = dict(_lines(trainer.task, trainer))["objective"]
        assert said == f"nt-xent (temperature {TAU}, one direction)"
