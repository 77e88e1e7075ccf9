"""All restarts of all tasks: here, several at a time, or as a Slurm array."""

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.glue.inputs import TaskData
from fairseq_clear.evaluation.glue.recipes import choose_recipe
from fairseq_clear.evaluation.glue.restarts import Environment, Restart, Start
from fairseq_clear.evaluation.glue.tasks import GlueTask

__all__ = ["plan_restarts", "run_restarts", "seed_list", "slurm_script"]

Result = dict[str, Any]


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
    """Every task under every seed, in order.

    Raises:
        UserError: a task that is not prepared, or has no training data; an override out of its range.
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
    """Run them, ``jobs`` at a time; results in the order of ``restarts``.

    All are checked before the first is run. If one fails, those that run are waited for, no other is begun, and its error
    is raised; what is done stays done.

    Args:
        restarts: planned.
        start: the checkpoint.
        environment: where; the processes share the cores, and the GPUs in turn.
        jobs: processes at a time.
        devices: number of GPUs to go round; 0 for none.
        done: called after each.
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
    """A batch script with one array task for each restart.

    Args:
        arguments: of ``fairseq-clear``, without those about Slurm.
        restarts: how many.
        output: folder for the logs.
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
            "# a task that is submitted again goes on where it stopped",
            f'srun {own} --restart "$SLURM_ARRAY_TASK_ID"',
            "",
        ]
    )
