"""fairseq's training logs: the JSON that ``--log-format json`` writes, whatever stands before it."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fairseq_clear.data.lines import read_text_lines
from fairseq_clear.errors import UserError

__all__ = ["Curve", "TrainingLog", "read_log"]

# "2026-01-01 00:00:00 | INFO | train_inner | {...}" of fairseq-train, "[...][train_inner][INFO] - {...}" of hydra's
_LINE = re.compile(r"(?:\| INFO \| (?P<stock>\w+) \||\[(?P<hydra>\w+)\]\[INFO\] -) (?P<record>\{.*)$")
_TRAINING = ("train_inner", "train")

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """One number over training: (N,) updates, rising, and (N,) values."""

    updates: Doubles
    values: Doubles


@dataclass(frozen=True)
class TrainingLog:
    """A log.

    Attributes:
        name: of the picture's legend.
        records: part (``train_inner``, ``train``, ``valid``, ...) -> update -> name without the part -> value. Of an
            update that was logged twice, as after resuming, the later counts.
    """

    name: str
    records: Mapping[str, Mapping[float, Mapping[str, float]]]

    @property
    def validations(self) -> list[str]:
        """Names of the validation subsets, in order."""
        return [part for part in self.records if part not in _TRAINING]

    def training(self, metric: str) -> Curve | None:
        """While training: within epochs where that was logged, else at their ends; None where it was not."""
        for part in _TRAINING:
            curve = self.curve(part, metric)
            if curve is not None:
                return curve
        return None

    def curve(self, part: str, metric: str) -> Curve | None:
        """A metric of one part; None where it was not logged."""
        found = {at: values[metric] for at, values in self.records.get(part, {}).items() if metric in values}
        if not found:
            return None
        updates = np.array(sorted(found), np.float64)
        return Curve(updates, np.array([found[update] for update in updates]))


def read_log(path: Path, name: str | None = None) -> TrainingLog:
    """Read a log of fairseq-train or fairseq-hydra-train.

    Args:
        path: what the run printed, or its ``--log-file``.
        name: for the legend; else that of the file, or of its folder where all runs call it the same.

    Raises:
        UserError: a missing file, one without records, or a record that is broken before the end of the file.
    """
    lines = read_text_lines(path)
    records: dict[str, dict[float, dict[str, float]]] = {}
    for number, line in enumerate(lines, 1):
        match = _LINE.search(line)
        if match is None:
            continue
        try:
            record = json.loads(match["record"])
        except ValueError:
            if number == len(lines):
                break  # a run that is being written
            raise UserError(f"{path}:{number}: a record of the log is no JSON; was the file cut or edited?") from None
        part = match["stock"] or match["hydra"]
        values = {key.removeprefix(f"{part}_"): _number(value) for key, value in record.items()}
        update = values.get("num_updates")
        if update is not None:
            kept = {key: value for key, value in values.items() if value is not None}
            records.setdefault(part, {})[update] = kept
    if not records:
        raise UserError(f"{path}: holds no records of training; run fairseq-train with --log-format json")
    common = path.stem in {"train", "log", "training", "hydra_train"}
    return TrainingLog(name or (path.resolve().parent.name if common else path.stem), records)


def _number(value: object) -> float | None:
    try:
        number = float(value)  # type: ignore[arg-type]  # fairseq writes numbers as text
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None
