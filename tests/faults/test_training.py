"""Faults of an update, of a validation and of a resume: one line, and the checkpoints as they were."""

import math
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.trainer import Trainer

from fairseq_clear.models.clear_roberta import ClearRobertaModel
from fairseq_clear.models.state_dicts import VOCABULARY_ROWS
from fairseq_clear.modules.projection import ProjectionHead
from fairseq_clear.patches import failures, original, stopping
from tests.conftest import free_port, run
from tests.faults.commands import NT_XENT, ended, fairseq_train, fork, state_of
from tests.training import build, distance, weights


@pytest.fixture
def trainer(data_bin: Path, tmp_path: Path) -> tuple[Trainer, list[Any]]:
    made, dataset = build(data_bin, "--save-dir", str(tmp_path))
    return made, [dataset.collater([dataset[index] for index in range(6)])]


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.name == "fairseq_clear.errors"]
    assert not [said for said in found if "\n" in said]
    return found


def break_projections(monkeypatch: pytest.MonkeyPatch) -> None:
    stock = ProjectionHead.forward
    monkeypatch.setattr(ProjectionHead, "forward", lambda *args: stock(*args) * math.nan)


@pytest.mark.parametrize(("norm", "raised"), [("nan", SystemExit), ("inf", SystemExit), ("2.0", FloatingPointError)])
def test_norms_of_several_gpus(norm: str, raised: type[BaseException], monkeypatch, caplog) -> None:
    # fairseq compares the norms of the workers before it looks whether they are finite, on GPUs alone
    def stock(*args: Any, **options: Any) -> None:
        raise FloatingPointError(
            f"Fatal error: gradients are inconsistent between workers.\nrank   0 = 1.0\nrank   1 = {norm}"
        )

    monkeypatch.setattr(failures, "original", lambda name: stock)
    with pytest.raises(raised):
        failures.train_step(SimpleNamespace(get_num_updates=lambda: 6, task=None, data_parallel_world_size=2), [])
    said = ["update 7: gradients are Nan/Inf; this update is not saved"] * (norm != "2.0")
    assert [one.partition(",")[0] for one in errors(caplog)] == said


def test_a_nan_ends_the_run_before_it_is_in_the_weights(trainer, tmp_path, monkeypatch, caplog) -> None:
    made, batch = trainer
    made.train_step(batch)
    before = weights(made)
    break_projections(monkeypatch)
    with pytest.raises(SystemExit, match="2"):
        made.train_step(batch)
    (said,) = errors(caplog)
    assert said.startswith("update 2: gradients are Nan/Inf; this update is not saved")
    assert "NaN detected in output of projection_head" in caplog.text
    assert distance(before, weights(made)) == 0 and made.get_num_updates() == 1
    assert [path.name for path in tmp_path.iterdir()] == ["crash.pt"]


def test_the_detector_of_fairseq_hides_the_reason(trainer, monkeypatch) -> None:
    """The negative control."""
    made, batch = trainer
    break_projections(monkeypatch)
    monkeypatch.setattr("fairseq.trainer.NanDetector", original("fairseq.trainer:NanDetector"))
    with pytest.warns(FutureWarning), pytest.raises((StopIteration, RuntimeError)):
        original("fairseq.trainer:Trainer.train_step")(made, batch)


def failing(times: int, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    stock, left = ClearRobertaModel.forward, [error] * times

    def forward(self: Any, *args: Any, **options: Any) -> Any:
        if left:
            raise left.pop()
        return stock(self, *args, **options)

    monkeypatch.setattr(ClearRobertaModel, "forward", forward)


def test_one_worker_leaves_out_a_batch_that_is_too_large(trainer, monkeypatch, caplog) -> None:
    made, batch = trainer
    for times in (1, 2):  # and the count begins anew
        failing(times, torch.OutOfMemoryError("CUDA out of memory."), monkeypatch)
        assert [made.train_step(batch) is None for _ in range(3)] == [True] * times + [False] * (3 - times)
    assert "attempting to recover from OOM" in caplog.text and not errors(caplog)
    failing(3, torch.OutOfMemoryError("CUDA out of memory."), monkeypatch)
    with pytest.raises(SystemExit, match="2"):
        [made.train_step(batch) for _ in range(3)]
    (said,) = errors(caplog)
    assert said.startswith("update 4, 3 batches in succession: out of memory; give a smaller --batch-size")


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory")],
)
def test_memory_of_the_cpu(error, trainer, monkeypatch, caplog) -> None:
    made, batch = trainer
    failing(9, error, monkeypatch)
    for step in (lambda: made.train_step(batch), lambda: made.valid_step(batch[0])):
        with pytest.raises(SystemExit, match="2"):
            step()
    found = [said.partition(";")[0] for said in errors(caplog)]
    assert found == ["update 1: out of memory", "validation: out of memory"]
    failing(1, RuntimeError("shapes do not fit"), monkeypatch)
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        made.train_step(batch)


def iterator() -> Any:
    return SimpleNamespace(epoch=1, end_of_epoch=lambda: False, state_dict=lambda: {"epoch": 1})


def test_a_score_that_is_nan_does_not_make_it_forget_the_best(trainer, tmp_path, caplog, monkeypatch) -> None:
    made, _ = trainer
    stock, ours, found = original("fairseq.checkpoint_utils:save_checkpoint"), checkpoint_utils.save_checkpoint, []
    for function in (stock, ours):
        monkeypatch.setattr(function, "best", 0, raising=False)  # so that it is taken back
        del function.best
    for score in (3.0, math.nan, 2.0, 4.0):
        ours(made.cfg.checkpoint, made, iterator(), score)
        found.append(torch.load(tmp_path / "checkpoint_best.pt", weights_only=True)["extra_state"]["best"])
    assert found == [3.0, 3.0, 2.0, 2.0]
    assert "--best-checkpoint-metric loss is NaN: checkpoint_best.pt is not changed" in caplog.text
    monkeypatch.setattr(checkpoint_utils, "save_checkpoint", stock)
    for score in (3.0, math.nan, 4.0):
        stock(made.cfg.checkpoint, made, iterator(), score)
    assert stock.best == 4.0, "the negative control: 3 is better"


def test_a_job_of_a_sweep_does_not_inherit_the_best_score(trainer, tmp_path) -> None:
    made, _ = trainer
    stopping.early_stopping.update(best=1.0, misses=3)
    checkpoint_utils.save_checkpoint.best = 1.0
    assert made.load_checkpoint(str(tmp_path / "checkpoint_last.pt")) is None  # the next job starts from scratch
    assert not stopping.early_stopping and not hasattr(checkpoint_utils.save_checkpoint, "best")


def test_what_cannot_be_resumed_is_one_line(trainer, data_bin, tmp_path, caplog) -> None:
    made, batch = trainer
    made.train_step(batch)
    checkpoint_utils.save_checkpoint(made.cfg.checkpoint, made, iterator(), None)
    last = tmp_path / "checkpoint_last.pt"
    other, _ = build(data_bin, "--save-dir", str(tmp_path), "--encoder-embed-dim", "64")
    (tmp_path / "checkpoint_1_9.pt").write_bytes(last.read_bytes())
    torn = tmp_path / "torn.pt"
    torn.write_bytes(last.read_bytes()[:-1])
    optimizer, _ = build(data_bin, "--save-dir", str(tmp_path / "new"), "--optimizer", "adam")
    made.cfg.checkpoint.restore_file = "gone.pt"
    for trainer_, path in ((other, last), (made, torn), (optimizer, last), (made, tmp_path / "gone.pt")):
        with pytest.raises(SystemExit, match="2"):
            trainer_.load_checkpoint(str(path))
    wrong, damaged, foreign, missing = errors(caplog)
    theirs = "--encoder-embed-dim 128 --encoder-ffn-embed-dim 512 --encoder-attention-heads 2"
    assert f"checkpoint_last.pt: was trained with {theirs}, and the flags say 64 256 1; give the" in wrong
    assert "--allow-change" not in wrong
    assert "torn.pt: not a complete checkpoint" in damaged and damaged.endswith(f"{torn}") and ": cp " in damaged
    assert "Optimizer does not match; please reset the optimizer (--reset-optimizer)" in foreign
    assert f"give another --save-dir, with --finetune-from-model {last} to start a run from these weights" in foreign
    assert missing == "--restore-file gone.pt: no such file; leave it out to start from scratch"
    assert (tmp_path / "new").is_dir()  # its lock is of the folder, which the first checkpoint would make
    made.cfg.checkpoint.finetune_from_model = str(torn)
    with pytest.raises(SystemExit, match="2"):
        made.load_checkpoint(str(torn))
    assert "torn.pt: not a complete checkpoint" in errors(caplog)[-1]
    assert ": cp " not in errors(caplog)[-1], "another encoder would replace the one to start from"


def test_another_vocabulary_is_one_diagnosis(trainer, tmp_path, caplog) -> None:
    made, _ = trainer
    made.consolidate_optimizer()  # fairseq's, before it saves
    state = made.state_dict()
    for name in VOCABULARY_ROWS:
        state["model"][name] = state["model"][name][:-5].clone()
    path = tmp_path / "start.pt"
    torch.save(state, path)
    with pytest.raises(SystemExit, match="2"):
        made.load_checkpoint(str(path))
    (said,) = errors(caplog)
    assert said.startswith(f"{path}: the checkpoint's vocabulary has ") and "flags" not in said


UPDATE, WORKER = 5, 1  # where the fault occurs
FLAGS = ("--max-update", "6", "--disable-validation")


def fail(kind: str) -> Callable[[], None]:
    """Return a function that makes the process fail in the forward pass of its fifth update, before any collective."""

    def arm() -> None:
        stock, step, state = ClearRobertaModel.forward, Trainer.train_step, {"update": 0}
        raised = {"memory": MemoryError(), "out-of-memory": torch.OutOfMemoryError("CUDA out of memory.")}

        def train_step(self: Trainer, *args: Any, **options: Any) -> Any:
            state["update"] = self.get_num_updates() + 1
            return step(self, *args, **options)

        def forward(self: Any, *args: Any, **options: Any) -> Any:
            is_due = state["update"] == UPDATE
            if is_due and kind in raised:
                raise raised[kind]
            x, extra = stock(self, *args, **options)
            if is_due and kind == "nan":
                extra["projections"] = extra["projections"] * float("nan")
            return x, extra

        Trainer.train_step, ClearRobertaModel.forward = train_step, forward

    return arm


def two_workers(data: Path, folder: Path, kind: str) -> dict[str, Any]:
    """Return exit codes and logs of both workers, and the number of updates and finiteness of the last checkpoint."""
    folder.mkdir(parents=True)
    meet = ("--distributed-init-method", f"tcp://localhost:{free_port()}", "--distributed-world-size", "2")
    more = ("--distributed-no-spawn", "--distributed-backend", "gloo", "--device-id", "0", *FLAGS)
    children = []
    for rank in range(2):
        work = partial(fairseq_train, data, folder, *meet, *more, "--distributed-rank", str(rank), recipe=NT_XENT)
        arm = fail(kind) if rank == WORKER else None
        children.append(fork(work, folder / f"log{rank}", arm=arm))
    codes = [ended(child) for child in children]
    logs = [(folder / f"log{rank}").read_text() for rank in range(2)]
    state = state_of(folder / "checkpoint_last.pt")
    finite = all(bool(torch.isfinite(value).all()) for value in state["model"].values() if value.is_floating_point())
    return {"codes": codes, "logs": logs, "updates": state["updates"], "finite": finite}


@pytest.mark.slow
def test_a_fault_of_one_of_two_workers_ends_both(data_bin: Path, tmp_path: Path) -> None:
    """Where fairseq would skip the batch on one worker, the other would wait for it in the gather."""
    kinds = ("out-of-memory", "memory", "nan", "none")
    ends = {kind: two_workers(data_bin, tmp_path / kind, kind) for kind in kinds}
    assert [ends[kind]["codes"] for kind in kinds] == [[1, 2], [1, 2], [2, 2], [0, 0]], ends
    for kind in ("out-of-memory", "memory"):
        assert "update 5: out of memory; give a smaller --batch-size" in ends[kind]["logs"][1]
        assert "Check the logs of the remote worker" in ends[kind]["logs"][0]  # gloo's words differ with the moment
    assert all("update 5: gradients are Nan/Inf" in said for said in ends["nan"]["logs"])
    assert [end["updates"] for end in ends.values()] == [3, 3, 3, 6]
    assert all(end["finite"] for end in ends.values())


@pytest.mark.slow
def test_killed_while_it_saves(tmp_path: Path) -> None:
    """Each run that is given again ends as the one that was not killed, to the bit; with fairseq's own files some do not."""
    flags = "--what instants stock --kills 4 --seed 1".split()
    ours, stock = run(sys.executable, "-m", "tests.faults.campaign", *flags).stdout.splitlines()[-2:]
    assert "| 4 |" in ours and "truncated" not in ours and ours.endswith("| 0 |"), ours
    assert "truncated checkpoint_last.pt" in stock and not stock.endswith("| 0 |"), stock
