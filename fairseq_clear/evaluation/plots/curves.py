"""Draws training curves: losses, accuracy, and alignment against uniformity."""

from collections.abc import Iterator, Sequence
from itertools import cycle

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.plots.logs import TRAINING, Curve, TrainingLog
from fairseq_clear.evaluation.plots.style import COLOURS, DASHES, MARKERS, PAGE_WIDTH, WIDTH, style

__all__ = ["PANELS", "draw_curves"]

# Metric -> label of its axis, with its unit. The total loss is only drawn for a run that does not log its two terms.
PANELS: dict[str, str] = {
    "mlm_loss": "MLM loss (bits/token)",
    "contrastive_loss": "contrastive loss (bits)",
    "contrastive_accuracy": "in-batch accuracy",
    "accuracy": "accuracy (%)",
    "sts_spearman": "STS Spearman (x100)",
    "retrieval_mrr": "retrieval MRR@10 (x100)",
}
_TOTAL = ("loss", "loss (bits)")
_HEIGHT = 1.45  # inches a panel


def draw_curves(logs: Sequence[TrainingLog], metrics: Sequence[str] | None = None) -> Figure:
    """Draw a row for each metric: training on the left, validation on the right; last, alignment against uniformity.

    Colours show runs; dashes and markers show validation subsets. Without validation there is one column.

    Args:
        logs: up to eight logs.
        metrics: names of metrics as logged (default: those of PANELS).

    Raises:
        UserError: too many logs, or none of the metrics in any of them.
    """
    if len(logs) > len(COLOURS):
        raise UserError(f"{len(logs)} logs are too many for one picture; give at most {len(COLOURS)}")
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
            _draw_column(axes, logs, parts, panels, has_ways=bool(ways))
        for axis in grid[: len(panels)].flat[1:]:
            axis.sharex(grid[0, 0])
        if subsets:
            grid[0, 0].set_title("training")
            grid[0, 1].set_title("validation")
        figure.align_ylabels()
        _legend(figure, logs, subsets)
    return figure


def _draw_column(
    axes: Sequence[Axes], logs: Sequence[TrainingLog], parts: Sequence[str], panels: dict[str, str], *, has_ways: bool
) -> None:
    """Draw the panels of training or of validation, from top to bottom."""
    for (metric, label), axis in zip(panels.items(), axes, strict=False):
        _draw_metric(axis, logs, parts, metric, label)
    if has_ways:
        _draw_ways(axes[-1], [_way(log, parts) for log in logs])
    for axis in axes:
        if not axis.lines:
            axis.set_axis_off()
            axis.text(0.5, 0.5, "not logged", transform=axis.transAxes, ha="center", color="0.5")
    updates = [axis for axis in axes[: len(panels)] if axis.lines]
    if updates:
        updates[-1].set_xlabel("updates")


def _choose(logs: Sequence[TrainingLog], metrics: Sequence[str] | None) -> dict[str, str]:
    names = {metric: PANELS.get(metric, metric) for metric in metrics} if metrics else PANELS
    found = {name: label for name, label in names.items() if any(_has(log, name) for log in logs)}
    if not metrics and any(_has(log, _TOTAL[0]) and not _has_parts(log) for log in logs):
        return {_TOTAL[0]: _TOTAL[1], **found}
    return found


def _has(log: TrainingLog, metric: str) -> bool:
    return any(log.curve(part, metric) is not None for part in log.records)


def _has_parts(log: TrainingLog) -> bool:
    return any(_has(log, part) for part in ("mlm_loss", "contrastive_loss"))


def _draw_metric(axis: Axes, logs: Sequence[TrainingLog], parts: Sequence[str], metric: str, label: str) -> None:
    for log, colour in zip(logs, COLOURS, strict=False):
        if label == _TOTAL[1] and _has_parts(log):
            continue  # the sum of two losses is not comparable with a single loss
        if parts == TRAINING:
            curve = log.training(metric)
            if curve is not None:
                axis.plot(curve.updates, curve.values, "-", color=colour, marker="." if len(curve.updates) == 1 else "")
            continue
        for subset, form in zip(parts, _forms(), strict=False):
            curve = log.curve(subset, metric)
            if curve is not None:
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
        if alignment is not None and uniformity is not None and (len(alignment.updates) > 1 or part == parts[-1]):
            return alignment, uniformity
    return None


def _draw_ways(axis: Axes, ways: Sequence[tuple[Curve, Curve] | None]) -> None:
    """Draw alignment against uniformity (Wang and Isola 2020, arXiv:2005.10242)."""
    for way, colour in zip(ways, COLOURS, strict=False):
        if way is None:
            continue
        x, y = way[0].values, way[1].values
        axis.plot(x, y, "-", color=colour, linewidth=0.8)
        axis.plot(x[:1], y[:1], "o", color=colour, markerfacecolor="white")
        axis.plot(x[-1:], y[-1:], "o", color=colour, markersize=5)
    axis.set_xlabel("alignment (lower is better); hollow: first update")
    axis.set_ylabel("uniformity (lower is better)")


def _legend(figure: Figure, logs: Sequence[TrainingLog], subsets: Sequence[str]) -> None:
    lines = [
        Line2D([], [], color=colour, label=log.name, linewidth=2) for log, colour in zip(logs, COLOURS, strict=False)
    ]
    if len(subsets) > 1:
        lines += [
            Line2D([], [], color="0.3", label=subset, **form) for subset, form in zip(subsets, _forms(), strict=False)
        ]
    figure.legend(handles=lines, loc="outside upper center", ncols=2 if len(subsets) < 1 else 4)
