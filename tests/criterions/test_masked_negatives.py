"""--false-negatives inside fairseq: loss, counts and logged share."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.criterions.test_clear_nt_xent import parts
from tests.objectives import oracles
from tests.objectives.test_false_negatives import nearer
from tests.training import build

PLAIN = ("--augment", "none", "--mlm-weight", "0", "--temperature", "0.2", "--projection-layers", "0")
PAIRS = ("--views", "paraphrase:original,bt")


@pytest.mark.parametrize("margin", ["0", "0.5", "0.6"])
def test_nt_xent_against_the_oracle(margin: str, paired_bin: Path) -> None:
    flags = (*PLAIN, *PAIRS, "--false-negatives", f"guide:margin={margin}")
    model, criterion, dataset, _ = parts(paired_bin, *flags)
    sample = dataset.collater([dataset[index] for index in range(8)])
    assert len(set(sample["views"]["identity"].tolist())) == 8
    with torch.no_grad():
        z = model(views=sample["views"]["tokens"])[1]["projections"]
    positive = torch.arange(16).roll(8)
    masked = nearer(z, z, z[positive], float(margin))
    own = np.eye(16, dtype=bool)
    expected = oracles.nt_xent_with_exclusions(
        z.double().numpy(), z.double().numpy(), positive.tolist(), 0.2, masked | own
    )
    loss, size, log = criterion(model, sample)
    left = ~(masked | own)
    left[np.arange(16), positive.numpy()] = False
    assert loss.item() == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert size == left.any(axis=1).sum()
    assert log["candidates"] == 16 * 14 and log["negatives"] == left.sum()
    if margin != "0":
        assert 0 < left.sum() < 16 * 14, "the negative control: some are masked, some are not"


def test_the_share_is_logged(paired_bin: Path) -> None:
    for criterion in ((), ("--criterion", "clear_moco", "--queue-size", "30")):
        for flags, is_logged in (((), False), (("--false-negatives", "guide:margin=0.5"), True)):
            trainer, dataset = build(paired_bin, *PLAIN, *PAIRS, *criterion, *flags)
            for rows in (range(9, 15), range(6)):  # the queue is empty at first
                log = trainer.train_step([dataset.collater([dataset[index] for index in rows])])
            assert ("false_negative_share" in log) == is_logged
            if is_logged:
                assert 0 <= float(log["false_negative_share"]) <= 1


def test_moco_masks_keys_of_the_queue(paired_bin: Path) -> None:
    flags = ("--criterion", "clear_moco", "--queue-size", "30", "--false-negatives", "guide:margin=0.5")
    model, criterion, dataset, _ = parts(paired_bin, *PLAIN, *PAIRS, *flags)
    model.begin_training()
    model.train()
    criterion(model, dataset.collater([dataset[index] for index in range(9, 15)]))
    keys = model.key_queue.keys[:6].clone()
    second = dataset.collater([dataset[index] for index in range(4)])
    with torch.no_grad():
        z = model(views=second["views"]["tokens"])[1]["projections"]  # the key encoder has the same weights
    masked = nearer(z[:4], keys, z[4:], 0.5)
    _, size, log = criterion(model, second)
    assert 0 < masked.sum() < 24
    assert log["candidates"] == 24 and log["negatives"] == (~masked).sum() and size == (~masked).any(axis=1).sum()
