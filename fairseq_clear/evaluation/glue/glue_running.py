"""Fine-tuning: restarts of tasks by fairseq-train, several at a time or as a Slurm array, resumed where they stopped."""

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import fairseq_clear
from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.checkpoints import LoadedModel, load_model
from fairseq_clear.evaluation.glue.glue_data import TaskData, shorten
from fairseq_clear.evaluation.glue.glue_predicting import (
    MODEL,
    RESULT,
    Classifier,
    Result,
    read_record,
    read_result,
    strip_checkpoint,
)
from fairseq_clear.evaluation.glue.glue_recipes import FineTuning, choose_recipe, measure
from fairseq_clear.evaluation.glue.glue_tasks import GlueTask
from fairseq_clear.files import hash_file, write_json
from fairseq_clear.models.encoder_stack import FAIRSEQ_EPS

PLAN, LOG = "restart.json", "train.log"
ROUNDING = 0.15  # fairseq rounds its accuracy to one decimal and computes it in the precision of training
# fp16 as in fairseq's examples/roberta/config/finetuning
PRECISIONS: dict[str, tuple[str, ...]] = {
    "float32": (),
    "fp16": ("--fp16", "--fp16-init-scale", "4", "--threshold-loss-scale", "1", "--fp16-scale-window", "128"),
    "bf16": ("--bf16",),
}
# Settings of the checkpoint that determine the shape of the encoder.
_VALUES = (
    "encoder_layers",
    "encoder_embed_dim",
    "encoder_ffn_embed_dim",
    "encoder_attention_heads",
    "activation_fn",
    "pooler_activation_fn",
    "attention_window",
    "layer_norm_eps",
    "segments",
)
_SWITCHES = ("encoder_normalize_before", "layernorm_embedding", "untie_weights_roberta")


@dataclass(frozen=True)
class Start:
    """The checkpoint that every restart starts from, its hash and its model."""

    checkpoint: Path
    checkpoint_hash: str
    loaded: LoadedModel

    @classmethod
    def load(cls, checkpoint: Path, data: TaskData) -> "Start":
        """Load a checkpoint with the ``dict.txt`` of the data; UserError if it is of another vocabulary."""
        loaded = load_model(checkpoint, data.folder / "input0")
        return cls(checkpoint, hash_file(checkpoint), loaded)

    def pair_note(self, tasks: Sequence[GlueTask]) -> str | None:
        """A note if pairs are fine-tuned on an encoder imported from BERT, recognised by its epsilon, without its segments."""
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
    """Device and precision of the restarts, and environment variables of their processes (threads, GPU)."""

    device: str = "cpu"
    precision: str = "float32"
    variables: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Restart:
    """The fine-tuning of one task with one seed, in a folder of its own."""

    data: TaskData
    seed: int
    settings: FineTuning
    folder: Path

    @property
    def name(self) -> str:
        """Task and seed, for messages."""
        return f"{self.data.task.name} seed {self.seed}"

    def identity(self, start: Start, precision: str) -> dict[str, Any]:
        """Everything that determines the result; an existing result is reused only if this is the same."""
        return {
            "task": self.data.task.name,
            "seed": self.seed,
            "settings": asdict(self.settings),
            "precision": precision,
            "checkpoint_hash": start.checkpoint_hash,
            "data_hash": self.data.content_hash,
        }

    def check(self, start: Start, precision: str) -> None:
        """Raise UserError if the folder holds a restart of other settings, data or checkpoint."""
        path = self.folder / PLAN
        if not path.is_file():
            return
        found, wanted = read_record(path), self.identity(start, precision)
        differing = [key for key in wanted if found.get(key) != wanted[key]]
        if differing:
            raise UserError(
                f"--output {self.folder}: holds a restart with another {', '.join(differing)}; give another folder, or "
                "remove this one"
            )

    def run(self, start: Start, environment: Environment) -> dict[str, Any]:
        """Train, predict, measure and write ``result.json``, unless it exists; return the result.

        Raises:
            UserError: training failed, with the last line of its log.
        """
        self.check(start, environment.precision)
        finished = read_result(self.folder)
        if finished is not None:
            return finished
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / PLAN, self.identity(start, environment.precision), flag="--output")
        began = time.monotonic()
        positions = int(start.loaded.model.max_positions())
        longest = min(self.settings.max_length or positions, positions)
        # next to the folders of the restarts, which share it
        folder, cut = shorten(self.data, longest, self.folder.parent / f"inputs-{self.data.content_hash[:8]}-{longest}")
        self._train(self.command(folder, start, environment), environment)
        result = self._measure(longest, environment.device)
        result |= {"inputs_cut": cut, "max_length": longest, "seconds": round(time.monotonic() - began, 1)}
        write_json(self.folder / RESULT, result, flag="--output")
        for name in ("checkpoint_best.pt", "checkpoint_last.pt"):
            (self.folder / name).unlink(missing_ok=True)
        return result

    def command(self, data: Path, start: Start, environment: Environment) -> list[str]:
        """The command line of fairseq-train, which validates and saves after each epoch.

        The command resumes from ``checkpoint_last.pt`` in the folder of the restart. The best epoch has the highest dev
        accuracy, as in fairseq's recipes, or the lowest loss for STS-B. ``data`` may be a copy with shorter inputs.
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
            # RoBERTa separates two texts by a second </s>; BERT, whose first segment ends with </s>, does not
            *(() if loaded.model.args.segments > 1 else ("--separator-token", loaded.dictionary.eos())),
            "--max-positions", int(loaded.model.max_positions()),
            "--arch", "clear_roberta", *encoder_flags(loaded.model.args),
            "--dropout", settings.dropout, "--attention-dropout", settings.dropout, "--pooler-dropout", settings.dropout,
            "--finetune-from-model", start.checkpoint, "--save-dir", self.folder, "--no-epoch-checkpoints", *best,
            "--optimizer", "adam", "--adam-betas", settings.adam_betas, "--adam-eps", settings.adam_eps,
            "--weight-decay", settings.weight_decay, "--clip-norm", settings.clip_norm,
            "--lr", settings.learning_rate, "--lr-scheduler", "polynomial_decay",
            "--warmup-updates", settings.warmup_updates(examples), "--total-num-update", settings.updates(examples),
            "--max-update", settings.updates(examples), "--max-epoch", settings.epochs,
            "--batch-size", settings.batch_size, "--required-batch-size-multiple", 1,
            "--seed", self.seed, "--num-workers", 0, "--distributed-world-size", 1,
            "--log-format", "json", "--log-interval", 100,
            *PRECISIONS[environment.precision], *(["--cpu"] if environment.device == "cpu" else []),
        ]  # fmt: skip
        return [sys.executable, "-m", "fairseq_cli.train", *map(str, flags)]

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


def encoder_flags(args: Any) -> list[str]:
    """Flags of fairseq-train for an encoder of the shape that the settings of a checkpoint describe."""
    flags: list[str] = []
    for name in _VALUES:
        if getattr(args, name, None):
            flags += [f"--{name.replace('_', '-')}", str(getattr(args, name))]
    return [*flags, *(f"--{name.replace('_', '-')}" for name in _SWITCHES if getattr(args, name, False))]


def seed_list(numbers: Sequence[int]) -> list[int]:
    """``5`` means 1 to 5; several numbers are the seeds themselves.

    Raises:
        UserError: below 1, or one seed twice.
    """
    seeds = list(range(1, numbers[0] + 1)) if len(numbers) == 1 else list(numbers)
    if not seeds or min(seeds) < 1 or len(set(seeds)) < len(seeds):
        raise UserError(f"--seeds {' '.join(map(str, numbers))}: give how many, or different seeds of 1 or more")
    return seeds


def plan_restarts(
    tasks: Sequence[GlueTask], data: Path, recipe: str, seeds: Sequence[int], output: Path, **overrides: Any
) -> list[Restart]:
    """The restarts of every task with every seed, in order.

    Raises:
        UserError: a task is not prepared or has no training data, or an override is out of range.
    """
    restarts = []
    for task in tasks:
        if task.evaluated_as != task.name:
            raise UserError(
                f"--tasks {task.name}: has no training data; glue predict predicts it by {task.evaluated_as}"
            )
        opened = TaskData.open(data, task)
        settings = choose_recipe(recipe, task.name, **overrides)
        restarts += [Restart(opened, seed, settings, output / task.name / f"seed{seed}") for seed in seeds]
    return restarts


def run_restarts(
    restarts: Sequence[Restart],
    start: Start,
    environment: Environment,
    jobs: int = 1,
    devices: int = 0,
    done: Callable[[Restart, Result], object] | None = None,
) -> list[Result]:
    """Run restarts, ``jobs`` at a time, and return their results in order.

    All restarts are checked before the first one runs. If a restart fails, the running ones end, no other is started, and
    its error is raised; finished restarts are kept. The processes share the cores, and take the ``devices`` GPUs in turn.
    ``done`` is called after each restart.
    """
    for restart in restarts:
        restart.check(start, environment.precision)
    threads = str(max((os.cpu_count() or 1) // jobs, 1))

    def one(number: int) -> Result:
        variables = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", threads)}
        if devices and jobs > 1:
            variables["CUDA_VISIBLE_DEVICES"] = str(number % devices)
        return restarts[number].run(start, replace(environment, variables=tuple(variables.items())))

    results: dict[int, Result] = {}
    with ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(one, number): number for number in range(len(restarts))}
        try:
            for future in as_completed(futures):
                results[futures[future]] = future.result()
                if done is not None:
                    done(restarts[futures[future]], future.result())
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return [results[number] for number in range(len(restarts))]


def slurm_script(arguments: Sequence[str], restarts: int, output: Path, flags: str = "") -> str:
    """A batch script for sbatch with one array task per restart.

    Args:
        arguments: of ``fairseq-clear``, without those for Slurm.
        restarts: number of restarts.
        output: folder of the logs.
        flags: of sbatch, such as ``--partition=gpu --gres=gpu:1``.
    """
    own = shlex.join([sys.executable, "-m", "fairseq_clear.cli", *arguments])
    return "\n".join(
        [
            "#!/bin/bash",
            "#SBATCH --job-name=glue",
            f"#SBATCH --array=0-{restarts - 1}",
            f"#SBATCH --output={output}/slurm-%a.log",
            *(f"#SBATCH {flag}" for flag in shlex.split(flags)),
            "set -euo pipefail",
            "# a task that is requeued resumes where it stopped",
            f'srun {own} --restart "$SLURM_ARRAY_TASK_ID"',
            "",
        ]
    )
