"""Each fix removes the failure that it names, and the failure is there without it."""

import argparse
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from fairseq_clear import compat


def test_old_checkpoints_load_with_weights_only_on(tmp_path: Path) -> None:
    state = {
        "args": argparse.Namespace(arch="roberta"),
        "best": np.float64(1.5),
        "count": np.int64(3),
        "w": torch.ones(2),
    }
    torch.save(state, tmp_path / "old.pt")
    compat.apply()
    loaded = torch.load(tmp_path / "old.pt", weights_only=True)
    assert loaded["args"].arch == "roberta"
    assert (loaded["best"], loaded["count"]) == (1.5, 3)
    torch.serialization.clear_safe_globals()
    try:
        with pytest.raises(pickle.UnpicklingError):
            torch.load(tmp_path / "old.pt", weights_only=True)
    finally:
        compat.allow_checkpoint_classes()


class Hostile:
    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (Path("/tmp/should-never-exist"),))


def test_a_hostile_checkpoint_is_refused(tmp_path: Path) -> None:
    torch.save({"model": Hostile()}, tmp_path / "hostile.pt")
    with pytest.raises(pickle.UnpicklingError):
        torch.load(tmp_path / "hostile.pt")
    assert not Path("/tmp/should-never-exist").exists()


def test_numpy_2_gets_back_the_name_that_fairseq_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(np, "__version__", "2.4.0")
    monkeypatch.delattr(np, "compat", raising=False)
    with pytest.raises(AttributeError):
        np.compat.long  # noqa: NPY201
    compat.restore_numpy_compat()
    assert np.zeros(2, dtype=np.compat.long).dtype == np.int64  # noqa: NPY201
    monkeypatch.undo()


@pytest.mark.parametrize(("bf16", "has_xla", "tpu"), [(True, False, False), (True, True, True), (False, False, True)])
def test_bf16_alone_means_no_tpu(bf16: bool, has_xla: bool, tpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "find_spec", lambda name: object() if has_xla else None)
    args = argparse.Namespace(bf16=bf16, tpu=True)
    compat.forget_tpu(args)
    assert args.tpu is tpu


def test_applying_twice_changes_nothing() -> None:
    from fairseq.models import distributed_fairseq_model
    from fairseq.optim.fp16_optimizer import FP16Optimizer

    compat.apply()
    once = (FP16Optimizer.state_dict, distributed_fairseq_model.DistributedDataParallel)
    compat.apply()
    assert (FP16Optimizer.state_dict, distributed_fairseq_model.DistributedDataParallel) == once
