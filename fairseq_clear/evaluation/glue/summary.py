"""The report over finished restarts: median and best, as CERT Table 2 has them."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.glue.inputs import TaskData
from fairseq_clear.evaluation.glue.metrics import HEADLINE
from fairseq_clear.evaluation.glue.preparing import HELD_OUT
from fairseq_clear.evaluation.glue.restarts import Restart, Start, read_result
from fairseq_clear.evaluation.reports import Report, Row

__all__ = ["AVERAGE", "best_restart", "build_report", "headline", "reported_splits"]

AVERAGE = "Avg."

Result = dict[str, Any]


@dataclass(frozen=True)
class TaskScores:
    """One task: column -> median and best over restarts, and the seed that was best on the dev set."""

    medians: dict[str, float]
    bests: dict[str, float]
    best_seed: int
    restarts: int


def headline(recipe: str, task: str) -> str:
    """The metric that the recipe's paper shows for the task."""
    return HEADLINE[recipe].get(task, "accuracy")


def reported_splits(data: TaskData) -> list[str]:
    """The held-out parts of a split dev set, else the dev sets: two for MNLI."""
    held_out = [name for name in data.labelled() if name.startswith(HELD_OUT)]
    return held_out or data.labelled()


def best_restart(results: Sequence[Result], recipe: str) -> Result:
    """The one that was best on what may be looked at: the dev set, not its held-out part; the first of equals."""
    return max(results, key=lambda result: float(result["metrics"]["valid"][headline(recipe, result["task"])]))


def build_report(restarts: Sequence[Restart], recipe: str, start: Start, label: str, precision: str) -> Report:
    """Median and best of the restarts that are finished.

    Args:
        restarts: planned; others than finished ones are left out and can be told by the number in the row's name.
        recipe: decides about the metrics that the table shows; the details have all.
        start: the checkpoint.
        label: of the row.
        precision: of training.

    Raises:
        UserError: none is finished.
    """
    finished: dict[str, list[tuple[Restart, Result]]] = {}
    for restart in restarts:
        result = read_result(restart.folder)
        if result is not None:
            finished.setdefault(restart.data.task.name, []).append((restart, result))
    if not finished:
        raise UserError("none of the restarts is finished")
    data = {name: pairs[0][0].data for name, pairs in finished.items()}
    scores = {name: _score(data[name], [result for _, result in pairs], recipe) for name, pairs in finished.items()}
    counts = "/".join(map(str, sorted({score.restarts for score in scores.values()})))
    rows = [
        Row(f"{label} {kind} of {counts}", _with_average(scores, kind), _describe(start), details=details)
        for kind, details in (("median", _details(finished, scores)), ("best", {}))
    ]
    protocol = {
        "recipe": recipe,
        "split": "held-out part of dev"
        if reported_splits(next(iter(data.values())))[0].startswith(HELD_OUT)
        else "dev",
        "metrics": {name: headline(recipe, name) for name in finished},
        "precision": precision,
        "input": "<s> a </s> </s> b </s> (no segments)",
    }
    seeds = sorted({restart.seed for pairs in finished.values() for restart, _ in pairs})
    return Report("glue", protocol, {name: one.files for name, one in data.items()}, list(rows[0].scores), rows, seeds)


def _score(data: TaskData, results: Sequence[Result], recipe: str) -> TaskScores:
    splits = reported_splits(data)
    name, metric = data.task.name, headline(recipe, data.task.name)
    medians, bests = {}, {}
    for split in splits:
        column = name if len(splits) == 1 else f"{name}-mm" if split.endswith("1") else f"{name}-m"
        numbers = [float(result["metrics"][split][metric]) for result in results]
        medians[column], bests[column] = median(numbers), max(numbers)
    return TaskScores(medians, bests, int(best_restart(results, recipe)["seed"]), len(results))


def _with_average(scores: dict[str, TaskScores], kind: str) -> dict[str, float]:
    """All columns and, for several tasks, their mean, in which MNLI's two count as one (CLEAR, caption of Table 1)."""
    parts = [score.medians if kind == "median" else score.bests for score in scores.values()]
    columns = {name: number for part in parts for name, number in part.items()}
    if len(parts) > 1:
        columns[AVERAGE] = sum(sum(part.values()) / len(part) for part in parts) / len(parts)
    return columns


def _details(finished: dict[str, list[tuple[Restart, Result]]], scores: dict[str, TaskScores]) -> dict[str, Any]:
    return {
        "restarts": [result for pairs in finished.values() for _, result in pairs],
        "settings": {name: asdict(pairs[0][0].settings) for name, pairs in finished.items()},
        "best_seed": {name: score.best_seed for name, score in scores.items()},
    }


def _describe(start: Start) -> dict[str, Any]:
    return {
        "checkpoint": str(start.checkpoint),
        "checkpoint_hash": start.checkpoint_hash,
        "architecture": start.loaded.architecture,
        "updates": start.loaded.updates,
        "vocabulary_hash": start.loaded.vocabulary_hash,
    }
