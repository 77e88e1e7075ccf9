"""Semantic textual similarity: the cosine of two vectors against human scores."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.correlation import CORRELATIONS, UndefinedCorrelation
from fairseq_clear.evaluation.encoders import CachedEncoder, Encoder
from fairseq_clear.evaluation.sts_data import (
    AGGREGATIONS,
    DEFAULT_TASKS,
    METRICS,
    STS_TASKS,
    Pairs,
    StsData,
    is_present,
    read_sts,
    read_sts_file,
)

__all__ = [
    "StsResult",
    "StsScore",
    "cosine",
    "evaluate_sts",
    "read_sts_tasks",
    "score_sts",
]


@dataclass(frozen=True)
class StsScore:
    """One task, correlations x100.

    Attributes:
        spearman: under the protocol's aggregation.
        pearson: likewise.
        pairs: scored ones.
        unscored: pairs without a gold score, left out.
        subsets: name -> ``{"spearman", "pearson", "pairs"}``; a correlation is None where it is not defined.
    """

    spearman: float
    pearson: float
    pairs: int
    unscored: int
    subsets: Mapping[str, Mapping[str, float | int | None]]


@dataclass(frozen=True)
class StsResult:
    """Tasks in order, how subsets were aggregated, and the hashes of the files that were read."""

    aggregation: str
    scores: Mapping[str, StsScore]
    data: Mapping[str, Mapping[str, str]]

    def average(self, metric: str = "spearman") -> float:
        """Plain mean over the tasks."""
        return float(np.mean([getattr(score, metric) for score in self.scores.values()]))

    def to_dict(self) -> dict[str, Any]:
        """Fit for JSON."""
        return asdict(self)


def evaluate_sts(
    encoder: Encoder,
    folder: str | Path | None = None,
    tasks: Sequence[str] | None = None,
    *,
    aggregation: str = "all",
    files: Sequence[str | Path] = (),
    batch_size: int = 32,
) -> StsResult:
    """Score an encoder without any training.

    Args:
        encoder: see ``evaluation.encoders.Encoder``.
        folder: with SentEval's data, see ``data.sts.read_sts``.
        tasks: of ``data.sts.STS_TASKS``; default: those of DEFAULT_TASKS that the folder has.
        aggregation: of a year's subsets. ``all`` puts them together and correlates once (SBERT, SimCSE), ``mean`` is the
            mean of their correlations (DeCLUTR), ``wmean`` that weighted by their pairs.
        files: more tasks, see ``data.sts.read_sts_file``.
        batch_size: passed to the encoder.

    Raises:
        UserError: no data, malformed data, or scores for which no correlation is defined.
    """
    return score_sts(encoder, read_sts_tasks(folder, tasks, files), aggregation=aggregation, batch_size=batch_size)


def read_sts_tasks(
    folder: str | Path | None, tasks: Sequence[str] | None = None, files: Sequence[str | Path] = ()
) -> list[StsData]:
    """The data of ``evaluate_sts``: tasks of the folder, then files."""
    if folder is None and tasks:
        raise UserError(f"tasks {' '.join(tasks)}: need the folder with their data (--data)")
    if folder is not None and not Path(folder).is_dir():
        raise UserError(f"--data {folder}: no such folder; give the folder of SentEval's data")
    if folder is not None and tasks is None:
        tasks = [task for task in DEFAULT_TASKS if is_present(folder, task)]
        if not tasks and not files:
            raise UserError(
                f"--data {folder}: has none of {', '.join(DEFAULT_TASKS)}; give the folder of SentEval's data"
            )
    data = [read_sts(folder, task) for task in tasks or () if folder is not None]
    data += [read_sts_file(file) for file in files]
    names = [part.name for part in data]
    twice = sorted({name for name in names if names.count(name) > 1})
    if not data or twice:
        what = f"the task {twice[0]} is given twice" if twice else f"no task is given; valid are {', '.join(STS_TASKS)}"
        raise UserError(f"STS: {what}")
    return data


def score_sts(
    encoder: Encoder, data: Sequence[StsData], *, aggregation: str = "all", batch_size: int = 32
) -> StsResult:
    """``evaluate_sts`` on data in memory."""
    if aggregation not in AGGREGATIONS:
        raise UserError(f"aggregation {aggregation}: valid are {', '.join(AGGREGATIONS)}")
    cached = encoder if isinstance(encoder, CachedEncoder) else CachedEncoder(encoder, batch_size=batch_size)
    cached.embed([text for task in data for text in task.texts()])
    scores = {task.name: _score_task(cached, task, aggregation) for task in data}
    return StsResult(aggregation, scores, {task.name: dict(task.hashes) for task in data})


def cosine(first: npt.ArrayLike, second: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Cosines (N,) of rows (N, D) in float64; 0 where a vector is zero, as SentEval has it."""
    left, right = np.asarray(first, np.float64), np.asarray(second, np.float64)
    norms = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)  # (N,)
    products = np.einsum("nd,nd->n", left, right)
    return np.divide(products, norms, out=np.zeros_like(products), where=norms > 0)


def _score_task(encoder: CachedEncoder, task: StsData, aggregation: str) -> StsScore:
    similarities = {name: _similarities(encoder, pairs) for name, pairs in task.subsets.items()}
    sizes = [len(pairs) for pairs in task.subsets.values()]
    subsets: dict[str, dict[str, float | int | None]] = {
        name: {"pairs": len(pairs)} for name, pairs in task.subsets.items()
    }
    totals = {}
    for metric in METRICS:
        correlation = CORRELATIONS[metric]
        undefined = None
        for name, pairs in task.subsets.items():
            where = f"{encoder.name}, {task.name}, {name}"
            try:
                subsets[name][metric] = 100 * correlation(similarities[name], pairs.scores, where=where)
            except UndefinedCorrelation as error:
                subsets[name][metric], undefined = None, error
        if aggregation == "all":
            together = np.concatenate([similarities[name] for name in task.subsets])
            gold = np.concatenate([pairs.scores for pairs in task.subsets.values()])
            totals[metric] = 100 * correlation(together, gold, where=f"{encoder.name}, {task.name}")
        elif undefined is not None:
            raise undefined
        else:
            weights = sizes if aggregation == "wmean" else None
            totals[metric] = float(np.average([subsets[name][metric] for name in subsets], weights=weights))
    return StsScore(totals["spearman"], totals["pearson"], len(task), task.unscored, subsets)


def _similarities(encoder: CachedEncoder, pairs: Pairs) -> npt.NDArray[np.float64]:
    return cosine(encoder.encode(pairs.first), encoder.encode(pairs.second))
