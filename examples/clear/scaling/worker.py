"""fairseq-hydra-train that writes down, update by update, its losses and what it gives to other workers.

Its first argument is the JSON file of that record, the others are those of fairseq-hydra-train; simulate.py starts it.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist
from fairseq.trainer import Trainer
from fairseq_cli.hydra_train import cli_main

# operation: which of its arguments a worker contributes
OPERATIONS = {"all_reduce": 0, "all_gather": 1, "reduce_scatter_tensor": 1}
# nothing of these is planned; one of them in an update would be seen as another exchange
OTHERS = (
    *("broadcast", "reduce", "gather", "scatter", "barrier", "all_to_all", "all_to_all_single", "reduce_scatter"),
    *("all_gather_into_tensor", "all_gather_object", "broadcast_object_list", "send", "recv", "isend", "irecv"),
)


class Record:
    """What is written down, and the hooks by which it is."""

    def __init__(self) -> None:
        self.updates: list[dict[str, Any]] = []
        self.exchanged: list[tuple[str, int]] = []

    def install(self) -> None:
        """Take the hooks, once in a process."""
        for name in (*OPERATIONS, *OTHERS):
            setattr(dist, name, self._counting(name, getattr(dist, name)))
        train_step, reduce = Trainer.train_step, Trainer._reduce_and_log_stats

        def counted_step(trainer: Trainer, *args: Any, **kwargs: Any) -> Any:
            self.exchanged.clear()  # what start-up exchanged
            result = train_step(trainer, *args, **kwargs)
            self.updates[-1]["exchanged"] = list(self.exchanged)
            return result

        def counted_reduce(trainer: Trainer, logs: Any, sample_size: Any, *args: Any, **kwargs: Any) -> Any:
            # the sums of all workers, before fairseq rounds their quotients
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
