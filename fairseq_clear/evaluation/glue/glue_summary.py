"""The report of glue run: median and best score over the finished restarts, as in CERT Table 2."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.glue.glue_data import HELD_OUT, TaskData
from fairseq_clear.evaluation.glue.glue_predicting import Result, best_restart, read_result
from fairseq_clear.evaluation.glue.glue_recipes import headline
from fairseq_clear.evaluation.glue.glue_running import Restart, Start
from fairseq_clear.evaluation.reports import Report, Row

AVERAGE = "Avg."


def build_report(restarts: Sequence[Restart], recipe: str, start: Start, label: str) -> Report:
    """Build the report: a row with the median and a row with the best score over the finished restarts.

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
        result = read_result(restart.folder)
        if result is not None:
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
