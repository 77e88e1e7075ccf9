"""Training curves: losses, accuracy, and alignment against uniformity.

The logs are those of fairseq in ``--log-format`` simple, tqdm and json, printed or in ``--log-file``.
"""

from collections.abc import Iterator, Sequence
from itertools import cycle

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.plotting import COLOURS, DASHES, MARKERS, PAGE_WIDTH, WIDTH, check_count, style
from fairseq_clear.evaluation.training_log import TRAINING, Curve, TrainingLog

__all__ = ["draw_curves"]

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
