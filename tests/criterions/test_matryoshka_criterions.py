"""--matryoshka inside fairseq: every criterion, its queue, its guide, and what it does not accept."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.criterions.test_clear_nt_xent import backward, parts
from tests.training import build

PLAIN = ("--augment", "none", "--mlm-weight", "0", "--projection-layers", "0")
CRITERIONS = {
    "nt-xent": (*PLAIN, "--criterion", "clear_nt_xent", "--views", "paraphrase:original,bt"),
    "moco": (*PLAIN, "--criterion", "clear_moco", "--queue-size", "30", "--views", "paraphrase:original,bt"),
    "sg": (*PLAIN, "--criterion", "clear_self_guided", "--objective", "sg", "--regularizer-weight", "0"),
    "sg-opt": (*PLAIN, "--criterion", "clear_self_guided", "--regularizer-weight", "0"),
}


def loss_of(data: Path, *flags: str) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    model, criterion, dataset, _ = parts(data, *flags)
    model.begin()
    model.train()
    if "clear_moco" in flags:  # its queue begins empty
        criterion(model, dataset.collater([dataset[index] for index in range(9, 18)]))
    loss, _, _, gradients = backward(model, criterion, dataset.collater([dataset[index] for index in range(6)]))
    return loss.detach(), gradients


@pytest.mark.slow
@pytest.mark.parametrize("name", CRITERIONS)
def test_it_is_the_mean_of_its_dimensions(name: str, paired_bin: Path) -> None:
    flags = CRITERIONS[name]
    whole, _ = loss_of(paired_bin, *flags)
    full, gradients = loss_of(paired_bin, *flags, "--matryoshka", "128")
    assert torch.equal(full, whole), "the full width alone changes nothing"
    each = [loss_of(paired_bin, *flags, "--matryoshka", dimension)[0] for dimension in ("8", "32", "128")]
    mean, of_mean = loss_of(paired_bin, *flags, "--matryoshka", "8,32,128")
    assert mean.item() == pytest.approx(float(np.mean([one.item() for one in each])), rel=1e-5)
    assert len({round(one.item(), 3) for one in each}) == 3
    assert any(not torch.equal(gradients[key], of_mean[key]) for key in gradients)


@pytest.mark.parametrize(("layers", "is_told"), [("2", True), ("0", False)])
def test_a_head_is_told(layers: str, is_told: bool, paired_bin: Path, caplog: pytest.LogCaptureFixture) -> None:
    build(paired_bin, "--matryoshka", "16,64", "--projection-layers", layers)
    told: list[Any] = [record for record in caplog.records if "--projection-layers 0" in record.getMessage()]
    assert bool(told) == is_told
