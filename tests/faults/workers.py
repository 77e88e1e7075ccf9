"""Runs two gloo workers of fairseq-train, one of which fails, and prints as JSON how each ended.

``python -m tests.faults.workers DATA FOLDER KIND ...``; a kind is ``memory``, ``out-of-memory``, ``nan``, or ``none``.
"""

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from fairseq.trainer import Trainer

from fairseq_clear.models.clear_roberta import ClearRobertaModel
from tests.conftest import free_port
from tests.faults.commands import NT_XENT, ended, fairseq_train, fork

UPDATE, WORKER = 5, 1  # where the fault occurs
FLAGS = ("--max-update", "6", "--disable-validation")


def fail(kind: str) -> Callable[[], None]:
    """Return a function that makes the process fail in the forward pass of its fifth update, before any collective."""

    def arm() -> None:
        stock, step, state = ClearRobertaModel.forward, Trainer.train_step, {"update": 0}

        def train_step(self: Trainer, *args: Any, **options: Any) -> Any:
            state["update"] = self.get_num_updates() + 1
            return step(self, *args, **options)

        def forward(self: Any, *args: Any, **options: Any) -> Any:
            is_due = state["update"] == UPDATE
            if is_due and kind == "memory":
                raise MemoryError
            if is_due and kind == "out-of-memory":
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
            x, extra = stock(self, *args, **options)
            if is_due and kind == "nan":
                extra["projections"] = extra["projections"] * float("nan")
            return x, extra

        Trainer.train_step, ClearRobertaModel.forward = train_step, forward

    return arm


def run(data: Path, folder: Path, kind: str) -> dict[str, Any]:
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
    state = torch.load(folder / "checkpoint_last.pt", weights_only=True)
    finite = all(bool(torch.isfinite(value).all()) for value in state["model"].values() if value.is_floating_point())
    updates = state["optimizer_history"][-1]["num_updates"]
    return {"codes": codes, "logs": logs, "updates": updates, "finite": finite}


if __name__ == "__main__":
    torch.set_num_threads(1)
    made = {kind: run(Path(sys.argv[1]), Path(sys.argv[2]) / kind, kind) for kind in sys.argv[3:]}
    print(json.dumps(made))
