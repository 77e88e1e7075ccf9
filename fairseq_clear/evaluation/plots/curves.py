"""Training curves: losses, accuracy, and alignment against uniformity."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.plots.logs import Curve, TrainingLog
from fairseq_clear.evaluation.plots.style import COLOURS, DASHES, WIDTH, style

__all__ = ["PANELS", "draw_curves"]

# metric -> label of its axis, with its unit; the total is drawn only where a run does not log its parts
PANELS: dict[str, str] = {
    "mlm_loss": "MLM loss (bits/token)",
    "contrastive_loss": "contrastive loss (bits)",
    "contrastive_accuracy": "in-batch accuracy",
    "accuracy": "accuracy (%)",
    "sts_spearman": "STS Spearman (x100)",
}
_TOTAL = ("loss", "loss (bits)")
_HEIGHT = 1.45  # inches a panel


def draw_curves(logs: Sequence[TrainingLog], metrics: Sequence[str] | None = None) -> Figure:
    """One panel for each metric that was logged, and the way through alignment and uniformity where both were.

    Solid lines are of training, dashed ones of validation; a colour is a run.

    Args:
        logs: up to eight.
        metrics: names as logged, in place of PANELS.

    Raises:
        UserError: too many logs, or none of the metrics in any of them.
    """
    if len(logs) > len(COLOURS):
        raise UserError(f"{len(logs)} logs are too many to tell apart in one picture; give at most {len(COLOURS)}")
    panels = _choose(logs, metrics)
    paths = [] if metrics else [_way(log) for log in logs]
    has_ways = any(path is not None for path in paths)
    if not panels and not has_ways:
        wanted = ", ".join(metrics or [*PANELS, _TOTAL[0]])
        raise UserError(f"{', '.join(log.name for log in logs)}: no log has any of {wanted}")
    rows = len(panels) + has_ways
    with style():
        figure = Figure(figsize=(WIDTH, _HEIGHT * rows + 0.25 * len(logs) + (0.7 if has_ways else 0.2)))
        ratios = [1.0] * len(panels) + [1.5] * has_ways
        axes = figure.subplots(rows, 1, squeeze=False, gridspec_kw={"height_ratios": ratios})[:, 0]
        for (metric, label), axis in zip(panels.items(), axes, strict=False):
            _draw_metric(axis, logs, metric, label)
        for axis in axes[1 : len(panels)]:
            axis.sharex(axes[0])
        if panels:
            axes[len(panels) - 1].set_xlabel("updates")
        if has_ways:
            _draw_ways(axes[-1], paths)
        figure.align_ylabels()
        _legend(figure, logs, has_validation=any(log.validations for log in logs))
    return figure


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


def _draw_metric(axis: Axes, logs: Sequence[TrainingLog], metric: str, label: str) -> None:
    for log, colour in zip(logs, COLOURS, strict=False):
        if label == _TOTAL[1] and _has_parts(log):
            continue  # a sum of two losses beside a loss would compare what is not comparable
        curve = log.training(metric)
        if curve is not None:
            axis.plot(curve.updates, curve.values, DASHES[0], color=colour, **_points(curve, "."))
        for part in log.validations:
            curve = log.curve(part, metric)
            if curve is not None:
                axis.plot(curve.updates, curve.values, DASHES[1], color=colour, marker="o", markerfacecolor="white")
    axis.set_ylabel(label)


def _points(curve: Curve, marker: str) -> dict[str, str]:
    """A single point is no line: mark it."""
    return {"marker": marker} if len(curve.updates) == 1 else {}


def _way(log: TrainingLog) -> tuple[Curve, Curve] | None:
    """Alignment and uniformity at the same updates: of validation where there are several, else of training."""
    for part in (*log.validations, "train_inner", "train"):
        alignment, uniformity = log.curve(part, "alignment"), log.curve(part, "uniformity")
        is_last = part == "train"
        if alignment is not None and uniformity is not None and (len(alignment.updates) > 1 or is_last):
            return alignment, uniformity
    return None


def _draw_ways(axis: Axes, ways: Sequence[tuple[Curve, Curve] | None]) -> None:
    """Wang and Isola (2020, arXiv:2005.10242): both are better the lower; hollow where training starts."""
    for way, colour in zip(ways, COLOURS, strict=False):
        if way is None:
            continue
        x, y = way[0].values, way[1].values
        axis.plot(x, y, "-", color=colour, linewidth=0.8)
        axis.plot(x[:1], y[:1], "o", color=colour, markerfacecolor="white")
        axis.plot(x[-1:], y[-1:], "o", color=colour, markersize=5)
    axis.set_xlabel("alignment (lower is better)")
    axis.set_ylabel("uniformity (lower is better)")
    axis.set_title("from the first (hollow) to the last update")


def _legend(figure: Figure, logs: Sequence[TrainingLog], has_validation: bool) -> None:
    lines = [
        Line2D([], [], color=colour, label=log.name, linewidth=2) for log, colour in zip(logs, COLOURS, strict=False)
    ]
    if has_validation:
        lines += [
            Line2D([], [], color="0.3", linestyle=DASHES[0], label="training"),
            Line2D([], [], color="0.3", linestyle=DASHES[1], marker="o", markerfacecolor="white", label="validation"),
        ]
    figure.legend(handles=lines, loc="outside upper center", ncols=2)
