"""Fine-tuning on GLUE: runs fairseq-train once per task and seed, in parallel or as a Slurm array, and reports the scores.

A *restart* is the fine-tuning of one task with one seed. A restart that was stopped resumes where it stopped.
"""

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, BinaryIO

import numpy as np

import fairseq_clear
from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.checkpoints import LoadedModel, strip_checkpoint
from fairseq_clear.evaluation.glue.glue_data import HELD_OUT, TaskData, shorten
from fairseq_clear.evaluation.glue.glue_predicting import (
    MODEL,
    RESULT,
    Classifier,
    Result,
    best_restart,
    read_record,
    read_result,
)
from fairseq_clear.evaluation.glue.glue_recipes import FineTuning, choose_recipe, headline, measure
from fairseq_clear.evaluation.glue.glue_tasks import GlueTask
from fairseq_clear.evaluation.reports import Report, Row
from fairseq_clear.files import write_errors, write_json
from fairseq_clear.models.encoder_stack import FAIRSEQ_EPS

PLAN, LOG = "restart.json", "train.log"
AVERAGE = "Avg."
# Percentage points by which our accuracy may differ from fairseq's, which is rounded to one decimal and computed in the
# precision of training.
ROUNDING = 0.15
_running: list[subprocess.Popen[bytes]] = []  # trainings of this process
# fp16 as in fairseq's examples/roberta/config/finetuning
PRECISIONS: dict[str, tuple[str, ...]] = {
    "float32": (),
    "fp16": ("--fp16", "--fp16-init-scale", "4", "--threshold-loss-scale", "1", "--fp16-scale-window", "128"),
    "bf16": ("--bf16",),
}


@dataclass(frozen=True)
class Start:
    """The checkpoint that every restart starts from, its hash and its model, and the device and precision of the restarts."""

    checkpoint: Path
    checkpoint_hash: str
    loaded: LoadedModel
    device: str = "cpu"
    precision: str = "float32"

    def pair_note(self, tasks: Sequence[GlueTask]) -> str | None:
        """Return a note if tasks on pairs use a BERT encoder that was imported without its segment embeddings.

        Such an encoder is recognised by its LayerNorm epsilon.
        """
        pairs = [task.name for task in tasks if len(task.texts) > 1]
        args = self.loaded.model.args
        if not pairs or args.segments > 1 or args.layer_norm_eps == FAIRSEQ_EPS:
            return None
        return (
            f"{self.checkpoint}: was imported without BERT's second segment, so both texts of a pair ({', '.join(pairs)}) are "
            "read as segment 0; import it with --segments 2 to keep both"
        )


@dataclass(frozen=True)
class Restart:
    """The fine-tuning of one task with one seed, in its own folder."""

    data: TaskData
    seed: int
    settings: FineTuning
    folder: Path

    @property
    def name(self) -> str:
        """Task and seed, for messages."""
        return f"{self.data.task.name} seed {self.seed}"

    def identity(self, start: Start) -> dict[str, Any]:
        """Everything that determines the result; an existing result is reused only if this is the same."""
        return {
            "task": self.data.task.name,
            "seed": self.seed,
            "settings": asdict(self.settings),
            "precision": start.precision,
            "checkpoint_hash": start.checkpoint_hash,
            "data_hash": self.data.content_hash,
        }

    def check(self, start: Start) -> None:
        """Raise UserError if the folder holds a restart of other settings, data or checkpoint."""
        path = self.folder / PLAN
        if not path.is_file():
            return
        found, wanted = read_record(path), self.identity(start)
        differing = [key for key in wanted if found.get(key) != wanted[key]]
        if differing:
            raise UserError(
                f"--output {self.folder}: holds a restart with another {', '.join(differing)}; give another folder, or "
                "remove this one"
            )

    def run(self, start: Start, variables: Mapping[str, str]) -> Result:
        """Train, predict, measure and write ``result.json``, unless it exists; return the result.

        Args:
            start: the checkpoint to fine-tune.
            variables: environment variables of the process (threads, GPU).

        Raises:
            UserError: training failed, with the last line of its log.
        """
        if (finished := read_result(self.folder)) is not None:
            return finished
        with write_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / PLAN, self.identity(start), flag="--output")
        began = time.monotonic()
        positions = int(start.loaded.model.max_positions())
        longest = min(self.settings.max_length or positions, positions)
        # The restarts of a task share the shortened inputs, so these lie next to their folders.
        folder, cut = shorten(self.data, longest, self.folder.parent / f"inputs-{self.data.content_hash[:8]}-{longest}")
        self._train(self.command(folder, start), variables)
        result = self._measure(longest, start.device)
        result |= {"inputs_cut": cut, "max_length": longest, "seconds": round(time.monotonic() - began, 1)}
        write_json(self.folder / RESULT, result, flag="--output")
        for name in ("checkpoint_best.pt", "checkpoint_last.pt"):
            (self.folder / name).unlink(missing_ok=True)
        return result

    def command(self, data: Path, start: Start) -> list[str]:
        """The command line of fairseq-train, which validates and saves after each epoch.

        The run resumes from ``checkpoint_last.pt`` if the folder of the restart has one. The best epoch is the one with the
        highest dev accuracy, as in fairseq's recipes, or with the lowest dev loss for STS-B.

        Args:
            data: the prepared task, or a copy of it with shortened inputs.
            start: the checkpoint to fine-tune.
        """
        task, settings, examples = self.data.task, self.settings, self.data.rows["train"]
        loaded = start.loaded
        best = (
            () if task.is_regression else ("--best-checkpoint-metric", "accuracy", "--maximize-best-checkpoint-metric")
        )
        flags: list[Any] = [
            data, "--user-dir", Path(fairseq_clear.__file__).parent,
            "--task", "sentence_prediction", "--criterion", "sentence_prediction", "--num-classes", task.outputs,
            *(["--regression-target"] if task.is_regression else []),
            "--init-token", loaded.dictionary.bos(),
            # RoBERTa puts a second </s> between two texts. BERT does not, since its first segment ends with </s>.
            *(() if loaded.model.args.segments > 1 else ("--separator-token", loaded.dictionary.eos())),
            "--max-positions", int(loaded.model.max_positions()),
            "--arch", "clear_roberta", "--encoder-from", start.checkpoint,
            "--pooler-activation-fn", loaded.model.args.pooler_activation_fn,
            "--dropout", settings.dropout, "--attention-dropout", settings.dropout, "--pooler-dropout", settings.dropout,
            "--save-dir", self.folder, "--no-epoch-checkpoints", *best,
            "--optimizer", "adam", "--adam-betas", settings.adam_betas, "--adam-eps", settings.adam_eps,
            "--weight-decay", settings.weight_decay, "--clip-norm", settings.clip_norm,
            "--lr", settings.learning_rate, "--lr-scheduler", "polynomial_decay",
            "--warmup-updates", settings.warmup_updates(examples), "--total-num-update", settings.updates(examples),
            "--max-update", settings.updates(examples), "--max-epoch", settings.epochs,
            "--batch-size", settings.batch_size, "--required-batch-size-multiple", 1,
            "--seed", self.seed, "--num-workers", 0, "--distributed-world-size", 1,
            "--log-format", "json", "--log-interval", 100,
            *PRECISIONS[start.precision], *(["--cpu"] if start.device == "cpu" else []),
        ]  # fmt: skip
        return [sys.executable, "-m", "fairseq_cli.train", *map(str, flags)]

    def _train(self, command: list[str], variables: Mapping[str, str]) -> None:
        log = self.folder / LOG
        with open(log, "ab") as stream:
            environment = {**os.environ, **variables}
            status = _run_process(command, stream, environment)
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


def _run_process(command: Sequence[str], log: BinaryIO, environment: Mapping[str, str]) -> int:
    """Run a training, which ``run_restarts`` can terminate; return its exit status."""
    with subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment) as process:
        _running.append(process)
        try:
            return process.wait()
        finally:
            _running.remove(process)


def seed_list(numbers: Sequence[int]) -> list[int]:
    """The seeds of ``--seeds``: 1 to N for a single number N, else the numbers; UserError if one is below 1 or repeated."""
    seeds = list(range(1, numbers[0] + 1)) if len(numbers) == 1 else list(numbers)
    if not seeds or min(seeds) < 1 or len(set(seeds)) < len(seeds):
        raise UserError(
            f"--seeds {' '.join(map(str, numbers))}: give a number of restarts, or different seeds of 1 or more"
        )
    return seeds


def plan_restarts(
    tasks: Sequence[GlueTask], data: Path, recipe: str, seeds: Sequence[int], output: Path, **overrides: Any
) -> list[Restart]:
    """The restarts of every task with every seed, in order; UserError if a task is not prepared or has no training data."""
    restarts = []
    for task in tasks:
        if task.evaluated_as != task.name:
            raise UserError(
                f"--tasks {task.name}: has no training data; glue predict predicts it with the model of {task.evaluated_as}"
            )
        opened = TaskData.open(data, task)
        settings = choose_recipe(recipe, task.name, **overrides)
        restarts += [Restart(opened, seed, settings, output / task.name / f"seed{seed}") for seed in seeds]
    return restarts


def run_restarts(
    restarts: Sequence[Restart],
    start: Start,
    jobs: int = 1,
    devices: int = 0,
    done: Callable[[Restart, Result], object] = lambda restart, result: None,
) -> None:
    """Run restarts, ``jobs`` at a time.

    All restarts are checked before the first one runs. If a restart fails, those that are running finish, no other starts,
    and its error is raised; finished restarts are kept. The processes share the CPU cores, and are assigned to the
    ``devices`` GPUs round-robin. ``done`` is called after each restart.
    """
    for restart in restarts:
        restart.check(start)
    threads = str(max((os.cpu_count() or 1) // jobs, 1))

    def one(number: int) -> Result:
        variables = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", threads)}
        if devices and jobs > 1:
            variables["CUDA_VISIBLE_DEVICES"] = str(number % devices)
        return restarts[number].run(start, variables)

    with ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(one, number): restart for number, restart in enumerate(restarts)}
        try:
            for future in as_completed(futures):
                done(futures[future], future.result())
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(_running) if isinstance(error, SystemExit) else ():
                process.terminate()  # SIGTERM reached this process alone; Ctrl-C reaches all
            raise


def slurm_script(arguments: Sequence[str], restarts: int, output: Path, flags: str = "") -> str:
    """A batch script for sbatch with one array task per restart.

    Args:
        arguments: command line of ``fairseq-clear``, without ``--slurm``.
        flags: further flags for sbatch, such as ``--partition=gpu --gres=gpu:1``.

    Raises:
        UserError: ``flags`` has an unbalanced quote.
    """
    try:
        words = shlex.split(flags)
    except ValueError as error:
        raise UserError(f"--slurm {flags}: {error}; balance the quotes") from None
    own = shlex.join([sys.executable, "-m", "fairseq_clear.cli", *arguments])
    more = "".join(f"#SBATCH {shlex.quote(word)}\n" for word in words)  # sbatch removes quotes as a shell does
    return f"""#!/bin/bash
#SBATCH --job-name=glue
#SBATCH --array=0-{restarts - 1}
#SBATCH {shlex.quote(f"--output={output}/slurm-%a.log")}
{more}set -euo pipefail
# a task that is requeued resumes where it stopped
srun {own} --restart "$SLURM_ARRAY_TASK_ID"
"""


def build_report(restarts: Sequence[Restart], recipe: str, start: Start, label: str) -> Report:
    """Build the report: a row with the median and one with the best score over the finished restarts, as in CERT Table 2.

    The name of a row says how many restarts it covers.

    Args:
        restarts: all planned restarts, finished or not.
        recipe: determines the metric of each task in the table; the details hold all metrics.
        start: the checkpoint that the restarts fine-tune.
        label: name of the encoder, with which the names of the rows begin.

    Raises:
        UserError: no restart is finished.
    """
    finished: dict[str, list[tuple[Restart, Result]]] = {}
    for restart in restarts:
        if (result := read_result(restart.folder)) is not None:
            finished.setdefault(restart.data.task.name, []).append((restart, result))
    if not finished:
        raise UserError("none of the restarts is finished")
    data = {name: pairs[0][0].data for name, pairs in finished.items()}
    results = {name: [result for _, result in pairs] for name, pairs in finished.items()}
    details = {
        "restarts": [result for found in results.values() for result in found],
        "settings": {name: asdict(pairs[0][0].settings) for name, pairs in finished.items()},
        "best_seed": {name: int(best_restart(found, recipe)["seed"]) for name, found in results.items()},
    }
    described = {
        "checkpoint": str(start.checkpoint),
        "checkpoint_hash": start.checkpoint_hash,
        "architecture": start.loaded.architecture,
        "updates": start.loaded.updates,
        "vocabulary_hash": start.loaded.vocabulary_hash,
    }
    counts = "/".join(map(str, sorted({len(found) for found in results.values()})))
    rows = [
        Row(f"{label} {kind} of {counts}", _scores(results, data, recipe, statistic), described, details=kept)
        for kind, statistic, kept in (("median", median, details), ("best", max, {}))
    ]
    is_held_out = any(split.startswith(HELD_OUT) for split in _columns(next(iter(data.values()))).values())
    segments = start.loaded.model.args.segments
    protocol = {
        "recipe": recipe,
        "split": "held-out part of dev" if is_held_out else "dev",
        "metrics": {name: headline(recipe, name) for name in finished},
        "precision": start.precision,
        "input": f"<s> a </s> b </s> ({segments} segments)" if segments > 1 else "<s> a </s> </s> b </s> (no segments)",
    }
    seeds = sorted({restart.seed for pairs in finished.values() for restart, _ in pairs})
    return Report("glue", protocol, {name: one.files for name, one in data.items()}, list(rows[0].scores), rows, seeds)


def _scores(
    results: Mapping[str, list[Result]], data: Mapping[str, TaskData], recipe: str, statistic: Callable[[Any], float]
) -> dict[str, float]:
    """The statistic over the restarts for each column of the table, and the average over the tasks."""
    columns = [
        {
            column: float(statistic([result["metrics"][split][headline(recipe, name)] for result in found]))
            for column, split in _columns(data[name]).items()
        }
        for name, found in results.items()
    ]
    scores = {name: score for part in columns for name, score in part.items()}
    if len(columns) > 1:  # MNLI's two columns count as one (CLEAR, caption of Table 1)
        scores[AVERAGE] = sum(sum(part.values()) / len(part) for part in columns) / len(columns)
    return scores


def _columns(data: TaskData) -> dict[str, str]:
    """Map columns of the table to splits: the held-out part if the dev set was split, else the dev set. MNLI has two."""
    name = data.task.name
    splits = [split for split in data.labelled() if split.startswith(HELD_OUT)] or data.labelled()
    if len(splits) == 1:
        return {name: splits[0]}
    return {f"{name}-mm" if split.endswith("1") else f"{name}-m": split for split in splits}
