"""Draws the time of an update over the number of GPUs: computing, sending and efficiency."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter, PercentFormatter

from fairseq_clear.evaluation.plots.style import COLOURS, DASHES, MARKERS, WIDTH, style
from fairseq_clear.planning.machine import EFFICIENCY, Point

__all__ = ["draw_scaling", "gpu_axis"]


def draw_scaling(points: Sequence[Point], title: str) -> Figure:
    """Draw seconds of an update (above) and efficiency (below) over the number of GPUs, with a tick for each power of 2.

    Args:
        points: at least one point, in ascending order of GPUs.
        title: the recipe and the assumptions; several lines.
    """
    gpus = [point.gpus for point in points]
    several = [
        point for point in points if point.gpus > 1
    ]  # one GPU sends nothing, and 0 has no place on a logarithmic axis
    with style():
        figure = Figure(figsize=(WIDTH, 3.9))
        seconds, efficiency = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": [1.5, 1.0]})
        lines = (
            ("computing", points, [point.compute_seconds for point in points]),
            ("sending", several, [point.communication_seconds for point in several]),
            ("sum", points, [point.compute_seconds + point.communication_seconds for point in points]),
        )
        for (label, of, values), colour, marker, dash in zip(lines, COLOURS, MARKERS, DASHES, strict=False):
            seconds.plot([point.gpus for point in of], values, dash, color=colour, marker=marker, label=label)
        seconds.set_yscale("log")
        seconds.set_ylabel("seconds an update")
        seconds.set_title(title)
        seconds.legend(loc="best")
        efficiency.plot(gpus, [point.efficiency for point in points], "-", color=COLOURS[3], marker=MARKERS[3])
        efficiency.set_ylim(0, 1.05)
        efficiency.yaxis.set_major_formatter(PercentFormatter(xmax=1))
        efficiency.set_ylabel("efficiency")
        efficiency.set_title("efficiency = " + EFFICIENCY.replace(" / ", "\n/ "))
        gpu_axis(efficiency, gpus)
        figure.align_ylabels()
    return figure


def gpu_axis(axis: Axes, gpus: Sequence[int], name: str = "GPUs") -> None:
    """Set numbers of GPUs as ticks; if there are many, every other one including the last."""
    axis.set_xscale("log", base=2)
    axis.set_xticks(gpus if len(gpus) < 8 else gpus[(len(gpus) - 1) % 2 :: 2])
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.set_xlabel(name)
