"""Training curves: losses, accuracy, and alignment against uniformity.

The logs are those of fairseq in ``--log-format`` simple, tqdm and json, printed or in ``--log-file``.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.plotting import COLOURS, DASHES, MARKERS, PAGE_WIDTH, WIDTH, check_count, style
from fairseq_clear.files import read_text_lines

__all__ = ["Curve", "TrainingLog", "draw_curves", "read_log"]

# Metric -> label of its axis, with its unit. The total loss is only drawn for a run that does not log its two terms.
PANELS: dict[str, str] = {
    "mlm_loss": "MLM loss (bits/token)",
    "contrastive_loss": "contrastive loss (bits)",
    "contrastive_accuracy": "in-batch accuracy",
    "accuracy": "accuracy (%)",
    "sts_spearman": "STS Spearman (x100)",
    "retrieval_mrr": "retrieval MRR@10 (x100)",
}
_TOTAL, _TERMS = ("loss", "loss (bits)"), ("mlm_loss", "contrastive_loss")
_HEIGHT = 1.45  # inches a panel
# fairseq/logging/progress_bar.py writes, after the header of fairseq-train, of hydra, or (--log-file) none:
#   json             {"epoch": 1, "update": 0.1, "loss": "4.2", ..., "num_updates": "10", ...}
#                    {"epoch": 1, "valid_loss": "4.2", ..., "valid_num_updates": "10", ...}
#   simple           epoch 001:     10 / 200 loss=4.2, ..., num_updates=10, ...
#   simple and tqdm  epoch 001 | valid on 'valid' subset | loss 4.2 | ... | num_updates 10 | ...
#                    epoch 001 | loss 4.2 | ... | num_updates 10 | ...
_LINE = re.compile(
    r"(?:^|INFO \| \S+ \| |\[INFO\] - )"
    r"(?:(?P<json>\{\".*)|epoch \d+(?::\s+\d+ / \d+ (?P<inner>.*)| \| (?:valid on '(?P<subset>.+?)' subset \| )?(?P<end>.*)))$"
)
_UPDATES = "num_updates"
TRAINING = ("train_inner", "train")
Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """A metric over training: (N,) updates, ascending, and (N,) values."""

    updates: Doubles
    values: Doubles


@dataclass(frozen=True)
class TrainingLog:
    """The statistics of a training log.

    Attributes:
        name: name in the legend.
        records: part (``train_inner``, ``train``, ``valid``, ...) -> update -> name without the part -> value. If an update was
            logged twice, as after resuming, the later record counts.
    """

    name: str
    records: Mapping[str, Mapping[float, Mapping[str, float]]]

    @property
    def validations(self) -> list[str]:
        """Names of the validation subsets, in order."""
        return [part for part in self.records if part not in TRAINING]

    def training(self, metric: str) -> Curve | None:
        """A metric of training: from records within epochs if there are any, else at their ends; None if it was not logged."""
        return self.curve("train_inner", metric) or self.curve("train", metric)

    def has(self, *metrics: str) -> bool:
        """Whether any of the metrics was logged."""
        return any(self.curve(part, metric) for part in self.records for metric in metrics)

    def curve(self, part: str, metric: str) -> Curve | None:
        """A metric of one part; None if it was not logged."""
        found = {at: values[metric] for at, values in self.records.get(part, {}).items() if metric in values}
        if not found:
            return None
        updates = np.array(sorted(found), np.float64)
        return Curve(updates, np.array([found[update] for update in updates]))


def read_log(path: Path, name: str | None = None) -> TrainingLog:
    """Read a log of fairseq-train or fairseq-hydra-train.

    Args:
        path: the output of the run, or its ``--log-file``.
        name: name in the legend (default: the name of the file, or of its folder if the file has a common name).

    Raises:
        UserError: a missing file, one without statistics, or a JSON record that is cut off before the end of the file.
    """
    records: dict[str, dict[float, dict[str, float]]] = {}
    for part, values in _read_statistics(path):
        numbers = {key: number for key, value in values.items() if (number := _number(value)) is not None}
        if _UPDATES in numbers:
            records.setdefault(part, {})[numbers[_UPDATES]] = numbers
    if not records:
        raise UserError(
            f"{path}: holds no training statistics; give the log of a fairseq-train run with --log-format simple or json "
            "(none writes no statistics)"
        )
    common = path.stem in {"train", "log", "training", "hydra_train"}
    return TrainingLog(name or (path.resolve().parent.name if common else path.stem), records)


def _read_statistics(path: Path) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield (part, name -> value) of each line that holds statistics."""
    lines = read_text_lines(path)
    for number, line in enumerate(lines, 1):
        match = _LINE.search(line)
        if match is None or (number == len(lines) and not path.read_bytes().endswith(b"\n")):
            continue  # the last line of a running run may be incomplete
        if match["json"]:
            try:
                yield _read_json(match["json"])
            except ValueError:
                raise UserError(f"{path}:{number}: the JSON record is cut off; was the file edited?") from None
        elif match["inner"]:
            yield "train_inner", dict(field.split("=", 1) for field in match["inner"].split(", ") if "=" in field)
        else:
            fields = (field.split(" ", 1) for field in match["end"].split(" | ") if " " in field)
            yield match["subset"] or "train", dict(fields)  # type: ignore[arg-type]


def _read_json(text: str) -> tuple[str, dict[str, object]]:
    """Read (part, statistics). The part is the prefix of ``num_updates``, if any. ValueError if the record is cut off."""
    record = json.loads(text)
    prefix = next((key.removesuffix(_UPDATES) for key in record if key.endswith(f"_{_UPDATES}")), "")
    return prefix.removesuffix("_") or "train_inner", {key.removeprefix(prefix): value for key, value in record.items()}


def _number(value: object) -> float | None:
    try:
        number = float(value)  # type: ignore[arg-type]  # fairseq writes numbers as text
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def draw_curves(logs: Sequence[TrainingLog], metrics: Sequence[str] | None = None) -> Figure:
    """Draw a row for each metric: training on the left, validation on the right; last, alignment against uniformity.

    Colours show runs; dashes and markers show validation subsets. Without validation there is one column.

    Args:
        logs: up to eight logs.
        metrics: names of metrics as logged (default: those of PANELS).

    Raises:
        UserError: too many logs, or none of the metrics in any of them.
    """
    check_count(logs, "logs")
    panels = _choose(logs, metrics)
    subsets = list(dict.fromkeys(subset for log in logs for subset in log.validations))
    columns: list[Sequence[str]] = [TRAINING, subsets] if subsets else [TRAINING]
    ways = [] if metrics else [column for column in columns if any(_way(log, column) for log in logs)]
    if not panels and not ways:
        wanted = ", ".join(metrics or [*PANELS, _TOTAL[0]])
        raise UserError(f"{', '.join(log.name for log in logs)}: no log has any of {wanted}")
    rows = len(panels) + bool(ways)
    with style():
        size = (WIDTH if len(columns) == 1 else PAGE_WIDTH, _HEIGHT * rows + 0.25 * len(logs) + (0.7 if ways else 0.2))
        figure = Figure(figsize=size)
        ratios = [1.0] * len(panels) + [1.5] * bool(ways)
        grid = figure.subplots(rows, len(columns), squeeze=False, gridspec_kw={"height_ratios": ratios})
        for parts, axes in zip(columns, grid.T, strict=True):
            for (metric, label), axis in zip(panels.items(), axes, strict=False):
                _draw_metric(axis, logs, parts, metric, label)
            if ways:
                _draw_ways(axes[-1], [_way(log, parts) for log in logs])
            for axis in axes:
                if not axis.lines:
                    axis.set_axis_off()
                    axis.text(0.5, 0.5, "not logged", transform=axis.transAxes, ha="center", color="0.5")
            if drawn := [axis for axis in axes[: len(panels)] if axis.lines]:
                drawn[-1].set_xlabel("updates")
        for axis in grid[: len(panels)].flat[1:]:
            axis.sharex(grid[0, 0])
        if subsets:
            grid[0, 0].set_title("training")
            grid[0, 1].set_title("validation")
        figure.align_ylabels()
        _draw_legend(figure, logs, subsets)
    return figure


def _choose(logs: Sequence[TrainingLog], metrics: Sequence[str] | None) -> dict[str, str]:
    """Metric -> label of the panels to draw."""
    names = {metric: PANELS.get(metric, metric) for metric in metrics} if metrics else PANELS
    found = {name: label for name, label in names.items() if any(log.has(name) for log in logs)}
    if not metrics and any(log.has(_TOTAL[0]) and not log.has(*_TERMS) for log in logs):
        return {_TOTAL[0]: _TOTAL[1], **found}
    return found


def _draw_metric(axis: Axes, logs: Sequence[TrainingLog], parts: Sequence[str], metric: str, label: str) -> None:
    for log, colour in zip(logs, COLOURS, strict=False):
        if label == _TOTAL[1] and log.has(*_TERMS):
            continue  # the sum of two losses is not comparable with a single loss
        if parts == TRAINING:
            if curve := log.training(metric):
                axis.plot(curve.updates, curve.values, "-", color=colour, marker="." if len(curve.updates) == 1 else "")
            continue
        for subset, form in zip(parts, _forms(), strict=False):
            if curve := log.curve(subset, metric):
                axis.plot(curve.updates, curve.values, color=colour, **form)
    axis.set_ylabel(label)


def _forms() -> Iterator[dict[str, str]]:
    """Yield a dash and a marker for each validation subset. There are few values, so each gets a marker."""
    for dash, marker in cycle(zip(DASHES, MARKERS, strict=False)):
        yield {"linestyle": dash, "marker": marker, "markerfacecolor": "white"}


def _way(log: TrainingLog, parts: Sequence[str]) -> tuple[Curve, Curve] | None:
    """Alignment and uniformity of the first part that has several updates, else of the last part."""
    for part in parts:
        alignment, uniformity = log.curve(part, "alignment"), log.curve(part, "uniformity")
        if alignment and uniformity and (len(alignment.updates) > 1 or part == parts[-1]):
            return alignment, uniformity
    return None


def _draw_ways(axis: Axes, ways: Sequence[tuple[Curve, Curve] | None]) -> None:
    """Draw alignment against uniformity (Wang and Isola 2020, arXiv:2005.10242)."""
    for way, colour in zip(ways, COLOURS, strict=False):
        if way is not None:
            x, y = way[0].values, way[1].values
            axis.plot(x, y, "-", color=colour, linewidth=0.8)
            axis.plot(x[:1], y[:1], "o", color=colour, markerfacecolor="white")
            axis.plot(x[-1:], y[-1:], "o", color=colour, markersize=5)
    axis.set_xlabel("alignment (lower is better); hollow: first update")
    axis.set_ylabel("uniformity (lower is better)")


def _draw_legend(figure: Figure, logs: Sequence[TrainingLog], subsets: Sequence[str]) -> None:
    named = zip(logs, COLOURS, strict=False)
    lines = [Line2D([], [], color=colour, label=log.name, linewidth=2) for log, colour in named]
    if len(subsets) > 1:
        marked = zip(subsets, _forms(), strict=False)
        lines += [Line2D([], [], color="0.3", label=subset, **form) for subset, form in marked]
    figure.legend(handles=lines, loc="outside upper center", ncols=4 if subsets else 2)
