"""Semantic textual similarity (STS): correlation of the vectors' cosines with human scores."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.encoders import CachedEncoder, Encoder
from fairseq_clear.evaluation.sts_data import AGGREGATIONS, DEFAULT_TASKS, StsData, is_present, read_sts, read_sts_file

Doubles = npt.NDArray[np.float64]


class UndefinedCorrelation(UserError):
    """A correlation of fewer than two pairs or of constant numbers; raised so that callers can ignore that one number."""


def pearson(x: npt.ArrayLike, y: npt.ArrayLike, *, where: str = "correlation") -> float:
    """Pearson's product-moment correlation of numbers (N,), -1 to 1.

    Args:
        where: first words of an error message, such as the task and the file.

    Raises:
        UndefinedCorrelation: fewer than two pairs, or one side is constant.
        UserError: unequal lengths, NaN or infinity.
    """
    # Scaled, so that squares of very small or very large numbers neither underflow nor overflow.
    first, second = (side / np.abs(side).max() for side in _checked(x, y, where))
    return float(np.corrcoef(first, second)[0, 1])


def spearman(x: npt.ArrayLike, y: npt.ArrayLike, *, where: str = "correlation") -> float:
    """Spearman's rank correlation, -1 to 1: Pearson's correlation of the ranks. Arguments and errors as ``pearson``."""
    from scipy.stats import rankdata  # takes a second to import

    return pearson(*map(rankdata, _checked(x, y, where)), where=where)


def _checked(x: npt.ArrayLike, y: npt.ArrayLike, where: str) -> tuple[Doubles, Doubles]:
    first, second = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if first.ndim != 1 or first.shape != second.shape:
        raise UserError(f"{where}: {first.shape} numbers against {second.shape}; a correlation needs two per pair")
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        raise UserError(f"{where}: a number is NaN or infinite; check the vectors it comes from")
    if len(first) < 2:
        raise UndefinedCorrelation(f"{where}: a correlation of {len(first)} pairs is not defined; give two or more")
    for side, values in (("first", first), ("second", second)):
        if (values == values[0]).all():
            raise UndefinedCorrelation(
                f"{where}: all {len(values)} {side} numbers are {values[0]:g}: a correlation is not defined"
            )
    return first, second


@dataclass(frozen=True)
class StsScore:
    """Result of one task, correlations x100."""

    spearman: float  # aggregated over subsets, as ``pearson``
    pearson: float
    pairs: int  # number of scored pairs
    unscored: int  # number of pairs without a gold score, which are left out
    # name -> ``{"spearman", "pearson", "pairs"}``; an undefined correlation is None
    subsets: Mapping[str, Mapping[str, float | int | None]]


def read_sts_tasks(
    folder: str | Path | None, tasks: Sequence[str] | None = None, files: Sequence[str | Path] = ()
) -> list[StsData]:
    """Read the data of ``evaluate_sts``: tasks of the folder, then files.

    Args:
        folder: SentEval's data folder, see ``sts_data.read_sts``.
        tasks: names from ``sts_data.STS_TASKS`` (default: the tasks of DEFAULT_TASKS whose data the folder has).
        files: further tasks, see ``sts_data.read_sts_file``.

    Raises:
        UserError: missing or malformed data.
    """
    if folder is None and (tasks or not files):
        raise UserError("--data: give the folder of SentEval's data, or --sts-file without --tasks")
    data = [read_sts_file(file) for file in files]
    if folder is not None:
        chosen = [task for task in DEFAULT_TASKS if is_present(folder, task)] if tasks is None else tasks
        if not chosen and not (files and Path(folder).is_dir()):
            raise UserError(f"{folder}: has none of {', '.join(DEFAULT_TASKS)}; give SentEval's data folder")
        data = [read_sts(folder, task) for task in chosen] + data
    names = [part.name for part in data]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(f"STS: the task {twice[0]} is given twice")
    return data


def evaluate_sts(encoder: Encoder, data: Sequence[StsData], *, aggregation: str = "all") -> dict[str, StsScore]:
    """Score an encoder on STS tasks, without training; return the score of each task.

    Args:
        aggregation: how the subsets of a year are combined. ``all`` concatenates them and correlates once (SBERT, SimCSE),
            ``mean`` is the mean of their correlations (DeCLUTR), ``wmean`` the mean weighted by their number of pairs.

    Raises:
        UserError: an undefined correlation.
    """
    if aggregation not in AGGREGATIONS:
        raise UserError(f"aggregation {aggregation}: valid are {', '.join(AGGREGATIONS)}")
    cached = CachedEncoder.of(encoder)
    cached.embed([text for task in data for text in task.texts()])
    return {task.name: _score_task(cached, task, aggregation) for task in data}


def cosine(first: npt.ArrayLike, second: npt.ArrayLike) -> Doubles:
    """Cosines (N,) of rows (N, D) in float64, to 9 decimals, so that pairs of equal texts tie; 0 where a vector is zero."""
    left, right = np.asarray(first, np.float64), np.asarray(second, np.float64)
    norms = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)  # (N,)
    products = np.einsum("nd,nd->n", left, right)
    return np.divide(products, norms, out=np.zeros_like(products), where=norms != 0).round(9)


def _score_task(encoder: CachedEncoder, task: StsData, aggregation: str) -> StsScore:
    similarities = {
        name: cosine(encoder.encode(pairs.first), encoder.encode(pairs.second)) for name, pairs in task.subsets.items()
    }
    subsets: dict[str, dict[str, Any]] = {name: {"pairs": len(pairs)} for name, pairs in task.subsets.items()}
    totals = {}
    for metric, correlation in (("pearson", pearson), ("spearman", spearman)):
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
            weights = [len(pairs) for pairs in task.subsets.values()] if aggregation == "wmean" else None
            totals[metric] = float(np.average([scores[metric] for scores in subsets.values()], weights=weights))
    return StsScore(totals["spearman"], totals["pearson"], len(task), task.unscored, subsets)
