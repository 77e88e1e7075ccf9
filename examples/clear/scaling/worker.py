"""Runs fairseq-hydra-train and records, for each update, the losses and the bytes that it gives to collectives.

The first argument is the JSON file for the record; the others are arguments of fairseq-hydra-train. simulate.py starts it.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist
from fairseq.trainer import Trainer
from fairseq_cli.hydra_train import cli_main

# operation -> position of the argument that the worker contributes
OPERATIONS = {"all_reduce": 0, "all_gather": 1, "reduce_scatter_tensor": 1}
# not in the plan: a call of one of these in an update is recorded, and then differs from the plan
OTHERS = (
    *("broadcast", "reduce", "gather", "scatter", "barrier", "all_to_all", "all_to_all_single", "reduce_scatter"),
    *("all_gather_into_tensor", "all_gather_object", "broadcast_object_list", "send", "recv", "isend", "irecv"),
)


class Record:
    """The record of a run, and the hooks that fill it."""

    def __init__(self) -> None:
        self.updates: list[dict[str, Any]] = []
        self.exchanged: list[tuple[str, int]] = []

    def install(self) -> None:
        """Install the hooks; call once per process."""
        for name in (*OPERATIONS, *OTHERS):
            setattr(dist, name, self._counting(name, getattr(dist, name)))
        train_step, reduce = Trainer.train_step, Trainer._reduce_and_log_stats

        def counted_step(trainer: Trainer, *args: Any, **kwargs: Any) -> Any:
            self.exchanged.clear()  # drops the collectives of the start-up
            result = train_step(trainer, *args, **kwargs)
            self.updates[-1]["exchanged"] = list(self.exchanged)
            return result

        def counted_reduce(trainer: Trainer, logs: Any, sample_size: Any, *args: Any, **kwargs: Any) -> Any:
            # sums over all workers, before fairseq divides and rounds them
            sums = {name: float(sum(log[name] for log in logs)) for name in logs[0]}
            self.updates.append(
                {
                    "loss": sums["loss"] / sums["sample_size"],
                    "mlm_loss": sums["mlm_loss"] / sums["masked_tokens"],
                    "contrastive_loss": sums["contrastive_loss"] / sums["queries"],
                }
            )
            return reduce(trainer, logs, sample_size, *args, **kwargs)

        Trainer.train_step, Trainer._reduce_and_log_stats = counted_step, counted_reduce

    def _counting(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            given = args[OPERATIONS[name]].nbytes if name in OPERATIONS else 0
            self.exchanged.append((name.removesuffix("_tensor"), given))
            return original(*args, **kwargs)

        return counted


def main() -> None:
    """Train, then write the record."""
    path = Path(sys.argv.pop(1))
    record = Record()
    record.install()
    cli_main()
    path.write_text(json.dumps(record.updates))


if __name__ == "__main__":
    main()
