"""Each fix removes the failure that it names, and the failure is there without it."""

import argparse
import importlib.util
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.multiprocessing.spawn import ProcessRaisedException

from fairseq_clear import patches
from fairseq_clear.patches import compatibility, startup
from tests.conftest import Ranks, run

pytestmark = pytest.mark.slow


def test_old_checkpoints_load_with_weights_only_on(tmp_path: Path) -> None:
    numbers = {"best": np.float64(1.5), "count": np.int64(3), "w": torch.ones(2)}
    torch.save({"args": argparse.Namespace(arch="roberta"), **numbers}, tmp_path / "old.pt")
    patches.apply()
    loaded = torch.load(tmp_path / "old.pt", weights_only=True)
    assert (loaded["args"].arch, loaded["best"], loaded["count"]) == ("roberta", 1.5, 3)
    torch.serialization.clear_safe_globals()
    try:
        with pytest.raises(pickle.UnpicklingError):
            torch.load(tmp_path / "old.pt", weights_only=True)
    finally:
        compatibility.allow_checkpoint_classes()


@pytest.mark.parametrize(("size", "rank", "is_said"), [("", "1", True), ("2", "1", False), ("2", "0", True)])
def test_an_error_is_said_once_also_with_the_rank_of_another_job(size, rank, is_said, monkeypatch, caplog) -> None:
    for name, value in (("WORLD_SIZE", size), ("RANK", rank)):
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name, raising=False)
    with pytest.raises(SystemExit, match="2"):
        startup._fail("--lr: wrong")
    assert ("--lr: wrong" in caplog.text) == is_said


def test_numpy_2_gets_back_the_name_that_fairseq_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(np, "__version__", "2.4.0")
    monkeypatch.delattr(np, "compat", raising=False)
    with pytest.raises(AttributeError):
        np.compat.long  # noqa: NPY201
    compatibility.restore_numpy_compat()
    assert np.zeros(2, dtype=np.compat.long).dtype == np.int64  # noqa: NPY201
    monkeypatch.undo()


@pytest.mark.parametrize(("bf16", "has_xla", "tpu"), [(True, False, False), (True, True, True), (False, False, True)])
def test_bf16_alone_means_no_tpu(bf16: bool, has_xla: bool, tpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compatibility, "find_spec", lambda name: object() if has_xla else None)
    args = argparse.Namespace(bf16=bf16, tpu=True)
    compatibility.forget_tpu(args)
    assert args.tpu is tpu


def handed_over(rank: int, fixed: bool) -> str:
    """What a worker gets of a state that worker 0 read."""
    from fairseq.distributed import utils as host

    if fixed:
        patches.apply()
    else:  # as fairseq has it, from another copy of the module
        spec = importlib.util.spec_from_file_location("stock_utils", host.__file__)
        stock = importlib.util.module_from_spec(spec)
        sys.modules["stock_utils"] = stock
        spec.loader.exec_module(stock)
        host._broadcast_object_slow = stock._broadcast_object_slow
    state = {"best": 1.5, "weights": torch.arange(3.0), "cfg": argparse.Namespace(arch="roberta")}
    where = {"src_rank": 0, "group": host.get_global_group(), "dist_device": torch.device("cpu")}
    state = host.broadcast_object(None if rank else state, **where)
    return f"{state['cfg'].arch} {state['best']} {state['weights'].tolist()}"


def test_every_worker_gets_what_the_first_read(ranks: Ranks) -> None:
    assert ranks(2, handed_over, True) == ["roberta 1.5 [0.0, 1.0, 2.0]"] * 2
    with pytest.raises(ProcessRaisedException, match="UnpicklingError|closed by peer"):  # by whichever is heard first
        ranks(2, handed_over, False)


ENDS_WHILE_LOADING = """
import sys, torch
if {fixed}:
    from fairseq_clear import patches
    patches.apply()
from fairseq.data.iterators import BufferedIterator

class Endless:
    def __len__(self):
        return 10**9

    def __iter__(self):
        while True:
            yield torch.randn(3000).sort()

read = [BufferedIterator(ahead, Endless()) for ahead in {ahead}]
for batches in read:
    next(batches)
print("done")
"""


def ends(fixed: bool, *ahead: int) -> int:
    done = run(sys.executable, "-c", ENDS_WHILE_LOADING.format(fixed=fixed, ahead=ahead), check=False, fresh=True)
    assert done.stdout.endswith("done\n")
    return done.returncode


def test_a_run_that_ends_while_batches_are_read_ahead_ends_well() -> None:
    """One thread waits for room, one is inside torch; the latter aborts without the fix."""
    assert ends(True, 2, 10**9) == 0
    assert any(ends(False, 10**9) for _ in range(10))
