"""One restart: fine-tune, predict the dev set, keep what is needed; done once, resumed where it stopped."""

import json
import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.checkpoints import LoadedModel, load_model
from fairseq_clear.evaluation.glue.classifier import Classifier, strip_checkpoint
from fairseq_clear.evaluation.glue.command import training_command
from fairseq_clear.evaluation.glue.inputs import TaskData, shorten
from fairseq_clear.evaluation.glue.metrics import measure
from fairseq_clear.evaluation.glue.recipes import FineTuning
from fairseq_clear.evaluation.glue.tasks import GlueTask
from fairseq_clear.files import hash_file
from fairseq_clear.models.segments import FAIRSEQ_EPS

__all__ = ["MODEL", "RESULT", "Environment", "Restart", "Start", "read_result"]

RESULT = "result.json"
PLAN = "restart.json"
MODEL = "model.pt"
LOG = "train.log"
# fairseq rounds its accuracy to one decimal, and computes it in the precision of training.
ROUNDING = 0.15


@dataclass(frozen=True)
class Start:
    """What every restart starts from: the checkpoint, its hash, and the model in it."""

    checkpoint: Path
    checkpoint_hash: str
    loaded: LoadedModel

    @classmethod
    def load(cls, checkpoint: Path, data: TaskData) -> "Start":
        """Load a checkpoint, with the ``dict.txt`` that the data was prepared with.

        Raises:
            UserError: no checkpoint, or another vocabulary.
        """
        loaded = load_model(checkpoint, data.folder / "input0")
        return cls(checkpoint, hash_file(checkpoint), loaded)

    def pair_note(self, tasks: Sequence[GlueTask]) -> str | None:
        """What to know before pairs are fine-tuned on an encoder of BERT's, told by its epsilon, without its segments."""
        pairs = [task.name for task in tasks if len(task.texts) > 1]
        args = self.loaded.model.args
        if not pairs or args.segments > 1 or args.layer_norm_eps == FAIRSEQ_EPS:
            return None
        return (
            f"{self.checkpoint}: BERT's segments are dropped, both texts of a pair ({', '.join(pairs)}) are read as the "
            "first; import it with --segments 2 to keep them"
        )


@dataclass(frozen=True)
class Environment:
    """Where restarts run: the device, the precision, and variables for the process (threads, which GPU)."""

    device: str = "cpu"
    precision: str = "float32"
    variables: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Restart:
    """One task under one seed.

    Attributes:
        data: prepared.
        seed: of fairseq-train.
        settings: of the recipe.
        folder: for everything of this restart.
    """

    data: TaskData
    seed: int
    settings: FineTuning
    folder: Path

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.data.task.name} seed {self.seed}"

    def identity(self, start: Start, precision: str) -> dict[str, Any]:
        """What must be the same for a result to be taken over."""
        return {
            "task": self.data.task.name,
            "seed": self.seed,
            "settings": asdict(self.settings),
            "precision": precision,
            "checkpoint_hash": start.checkpoint_hash,
            "data_hash": self.data.content_hash,
        }

    def check(self, start: Start, precision: str) -> None:
        """UserError if the folder holds a restart that was made otherwise."""
        path = self.folder / PLAN
        if not path.is_file():
            return
        found, wanted = _read_json(path), self.identity(start, precision)
        differing = [key for key in wanted if found.get(key) != wanted[key]]
        if differing:
            raise UserError(
                f"--output {self.folder}: holds a restart with another {', '.join(differing)}; give another folder, or "
                "remove this one"
            )

    def run(self, start: Start, environment: Environment) -> dict[str, Any]:
        """Train, unless that is done; predict and measure; return the result, also kept as ``result.json``.

        Raises:
            UserError: training failed, with the last line of its log.
        """
        self.check(start, environment.precision)
        finished = read_result(self.folder)
        if finished is not None:
            return finished
        self.folder.mkdir(parents=True, exist_ok=True)
        _write_json(self.folder / PLAN, self.identity(start, environment.precision))
        began = time.monotonic()
        longest = self._longest(start)
        # beside the restarts' folders, as they share it; its name says what it holds
        folder, cut = shorten(self.data, longest, self.folder.parent / f"inputs-{self.data.content_hash[:8]}-{longest}")
        command = training_command(
            self.data.task, folder, self.data.rows["train"], start.checkpoint, start.loaded, self.settings, self.seed,
            self.folder, device=environment.device, precision=environment.precision,
        )  # fmt: skip
        self._train(command, environment)
        result = self._measure(longest, environment.device)
        result |= {"inputs_cut": cut, "max_length": longest, "seconds": round(time.monotonic() - began, 1)}
        _write_json(self.folder / RESULT, result)
        for name in ("checkpoint_best.pt", "checkpoint_last.pt"):
            (self.folder / name).unlink(missing_ok=True)
        return result

    def _longest(self, start: Start) -> int:
        positions = int(start.loaded.model.max_positions())
        return min(self.settings.max_length or positions, positions)

    def _train(self, command: list[str], environment: Environment) -> None:
        log = self.folder / LOG
        with open(log, "ab") as stream:
            status = subprocess.run(
                command, stdout=stream, stderr=subprocess.STDOUT, env={**os.environ, **dict(environment.variables)},
                check=False,
            ).returncode  # fmt: skip
        if status or not (self.folder / "checkpoint_best.pt").is_file():
            lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["nothing in it"]
            raise UserError(f"{self.name}: fairseq-train ended with status {status} ({lines[-1][:300]}); see {log}")

    def _measure(self, longest: int, device: str) -> dict[str, Any]:
        task = self.data.task
        saved = strip_checkpoint(self.folder / "checkpoint_best.pt", self.folder / MODEL)
        classifier = Classifier(self.folder / MODEL, self.data, device)
        metrics = {}
        for split in self.data.labelled():
            predicted = classifier.predict(self.data, split, longest)
            np.save(self.folder / f"{split}.npy", predicted)
            metrics[split] = measure(task, predicted, self.data.gold(split))
        theirs = None if task.is_regression or saved["best"] is None else float(saved["best"])
        return {
            "task": task.name, "seed": self.seed, "metrics": metrics, "updates": saved["updates"],
            "epoch": saved["epoch"], "fairseq_accuracy": theirs,
            "agrees_with_fairseq": theirs is None or abs(theirs - metrics["valid"]["accuracy"]) <= ROUNDING,
        }  # fmt: skip


def read_result(folder: Path) -> dict[str, Any] | None:
    """The result of a finished restart, else None."""
    path = folder / RESULT
    return _read_json(path) if path.is_file() and (folder / MODEL).is_file() else None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path}: is no JSON ({error}); remove the folder, and the restart is made again") from None
    return content


def _write_json(path: Path, content: dict[str, Any]) -> None:
    beside = path.with_name(f".{path.name}.partial")
    beside.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    beside.replace(path)
