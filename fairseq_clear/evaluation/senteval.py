"""SentEval: evaluates vectors by training classifiers on them (Conneau and Kiela 2018, arXiv:1803.05449)."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.classifiers import (
    Floats,
    Score,
    cross_validate,
    fit_relatedness,
    nested_cross_validate,
    split_validate,
)
from fairseq_clear.evaluation.encoders import CachedEncoder, Encoder
from fairseq_clear.evaluation.reports import check_seeds
from fairseq_clear.evaluation.senteval_data import (
    DOWNSTREAM_TASKS,
    PROBING_TASKS,
    REGRESSIONS,
    SIMILARITIES,
    Classifiers,
    TaskData,
    is_task_present,
    read_task,
)
from fairseq_clear.evaluation.sts import UndefinedCorrelation, evaluate_sts
from fairseq_clear.evaluation.sts_data import StsData, is_present, read_sts

logger = logging.getLogger(__name__)

Data = TaskData | Mapping[str, StsData] | StsData


@dataclass(frozen=True)
class SentEvalResult:
    """Scores of each task, one per seed."""

    scores: Mapping[str, Sequence[Score]]

    def means(self, split: str = "test") -> dict[str, float]:
        """Mean score over seeds, for each task that has this split."""
        return {task: float(np.mean(values)) for task, values in self._values(split).items()}

    def deviations(self, split: str = "test") -> dict[str, float]:
        """Standard deviation over seeds (n - 1), for each task that has this split; empty for a single seed."""
        return {task: float(np.std(each, ddof=1)) for task, each in self._values(split).items() if len(each) > 1}

    def _values(self, split: str) -> dict[str, list[float]]:
        values = {task: [getattr(score, split) for score in scores] for task, scores in self.scores.items()}
        return {task: each for task, each in values.items() if None not in each}

    def summary(self, split: str = "test") -> dict[str, float]:
        """Mean over downstream tasks, mean over probing tasks, and mean of both, as DeCLUTR's code computes them.

        MRPC counts on the test split as the mean of accuracy and F1, and STS12-16, which have no dev split, with the same
        score on both. Table 1 of DeCLUTR (arXiv:2006.03659) also has image-caption retrieval, which is not evaluated here.
        """
        found, means = {}, self.means() | self.means(split)
        if split == "test":
            means |= {
                task: float(np.mean([(score.test + score.others["f1"]) / 2 for score in scores]))
                for task, scores in self.scores.items()
                if "f1" in scores[0].others
            }
        for name, group in (("Downstream", DOWNSTREAM_TASKS), ("Probing", tuple(PROBING_TASKS))):
            if values := [means[task] for task in self.scores if task in group]:
                found[name] = float(np.mean(values))
        if len(found) == 2:
            found["Avg."] = (found["Downstream"] + found["Probing"]) / 2
        return found

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON values."""
        return {**asdict(self), "summary": {split: self.summary(split) for split in ("dev", "test")}}


def find_tasks(folder: str | Path, tasks: Sequence[str]) -> list[str]:
    """Return the tasks whose data are in the folder, with all splits; UserError if there is none."""

    def is_there(task: str) -> bool:
        if task in REGRESSIONS:
            return all(is_present(folder, split) for split in REGRESSIONS[task].values())
        return is_present(folder, task) if task in SIMILARITIES else is_task_present(folder, task)

    found = [task for task in tasks if is_there(task)]
    if not found:
        raise UserError(f"--data {folder}: has none of {', '.join(tasks)}; give the folder of SentEval's data")
    return found


def read_tasks(folder: str | Path, tasks: Sequence[str]) -> dict[str, Data]:
    """Read the data of tasks from DOWNSTREAM_TASKS and PROBING_TASKS; UserError if a task's data are missing or malformed."""
    twice = sorted({task for task in tasks if list(tasks).count(task) > 1})
    unknown = [task for task in tasks if task not in DOWNSTREAM_TASKS and task not in PROBING_TASKS]
    if twice or unknown:
        what = f"{twice[0]}: is given twice" if twice else f"{unknown[0]}: no such task"
        raise UserError(f"--tasks {what}; valid are {', '.join([*DOWNSTREAM_TASKS, *PROBING_TASKS])}")
    data: dict[str, Data] = {}
    for task in tasks:
        if task in REGRESSIONS:
            data[task] = {split: read_sts(folder, name) for split, name in REGRESSIONS[task].items()}
        else:
            data[task] = read_sts(folder, task) if task in SIMILARITIES else read_task(folder, task)
    return data


def evaluate_senteval(
    encoder: Encoder, data: dict[str, Data], *, classifiers: Classifiers | None = None, seeds: Sequence[int] = (1111,)
) -> SentEvalResult:
    """Train and test classifiers (default: SentEval's, see ``senteval_data.PRESETS``) on an encoder's vectors.

    An undefined correlation, of a collapsed encoder, is logged and counts as 0.
    """
    check_seeds(seeds)
    cached, settings = CachedEncoder.of(encoder), classifiers or Classifiers()
    cached.embed([text for task in data.values() for part in _parts(task) for text in part.texts()])
    scores = {
        name: [_score_or_zero(cached, name, part, settings, seed) for seed in seeds] for name, part in data.items()
    }
    return SentEvalResult(scores)


def hashes_of(data: Mapping[str, Data]) -> dict[str, dict[str, str]]:
    """Return task -> file -> SHA-256."""
    return {name: dict(item for part in _parts(task) for item in part.hashes.items()) for name, task in data.items()}


def pair_features(first: Floats, second: Floats, *, both: bool = False) -> Floats:
    """Return [|u - v|, u * v], (N, 2 D); with ``both``, [u, v, u * v, |u - v|], (N, 4 D), as SentEval does for SNLI."""
    difference, product = np.abs(first - second), first * second
    parts = (first, second, product, difference) if both else (difference, product)
    return np.concatenate(parts, axis=1)


def _score_or_zero(encoder: CachedEncoder, name: str, data: Data, classifiers: Classifiers, seed: int) -> Score:
    try:
        return _score(encoder, name, data, classifiers, seed)
    except UndefinedCorrelation as error:  # the scores of the tasks before, of hours, would be lost
        logger.warning("%s; counted as 0", error)
        return Score(0.0, None if isinstance(data, StsData) else 0.0)


def _score(encoder: CachedEncoder, name: str, data: Data, classifiers: Classifiers, seed: int) -> Score:
    if isinstance(data, StsData):
        found = evaluate_sts(encoder, [data], aggregation="mean")[name]
        return Score(found.spearman, None, {"pearson": found.pearson})
    if not isinstance(data, TaskData):
        splits = {}
        for split, scored in data.items():
            (pairs,) = scored.subsets.values()
            features = pair_features(encoder.encode(pairs.first), encoder.encode(pairs.second))
            splits[split] = features, pairs.scores
        where = f"{encoder.name}, {name}"
        return fit_relatedness(splits["train"], splits["dev"], splits["test"], seed=seed, where=where)
    # as SentEval does, whatever the settings are
    own: dict[str, Any] = {"WordContent": {"hidden": 0}, "SNLI": {"epoch_size": 1, "max_epoch": 15}}
    settings = replace(classifiers, **own.get(name, {}))
    rows = {}
    for split, part in data.splits.items():
        vectors = encoder.encode(part.first)
        if part.second is not None:
            vectors = pair_features(vectors, encoder.encode(part.second), both=name == "SNLI")
        rows[split] = vectors, part.labels
    if "all" in rows:
        return nested_cross_validate(rows["all"], data.classes, settings, seed)
    if "dev" not in rows:
        return cross_validate(rows["train"], rows["test"], data.classes, settings, seed, has_f1=name == "MRPC")
    regularize = name != "SNLI"
    return split_validate(rows["train"], rows["dev"], rows["test"], data.classes, settings, seed, regularize=regularize)


def _parts(data: Data) -> list[TaskData | StsData]:
    return [data] if isinstance(data, TaskData | StsData) else list(data.values())
