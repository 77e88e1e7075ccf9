"""Draws the plot of simulate.py."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from fairseq_clear.errors import UserError

for _name in ("matplotlib", "PIL"):  # importing fairseq turns on the info logs of all libraries
    logging.getLogger(_name).setLevel(logging.WARNING)
try:
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    from fairseq_clear.evaluation.plotting import COLOURS, DASHES, MARKERS, WIDTH, save_figure, style
    from fairseq_clear.planning.report import gpu_axis
except ImportError:
    raise UserError("matplotlib is not installed; pip install 'fairseq_clear[eval]'") from None

__all__ = ["draw_simulation"]

Points = Sequence[tuple[int, float]]


def draw_simulation(
    path: Path,
    *,
    planned: Points,
    last_of_same_batch: int,
    measured: Points,
    losses: Mapping[int, Sequence[float]],
    differences: Mapping[int, Sequence[float]],
    tolerance: float,
) -> list[Path]:
    """Draw three panels, one below the other, as PNG and SVG.

    Args:
        path: path of the plot.
        planned: planned bytes that a worker sends in an update, by number of workers.
        last_of_same_batch: number of workers with one text each; with more workers the batch grows.
        measured: counted bytes that a worker sends in an update, by number of workers.
        losses: loss of each update, by number of workers, starting with one worker.
        differences: difference of each update from one worker's, by number of workers.
        tolerance: greatest allowed difference.

    Returns:
        The files written.
    """
    with style():
        figure = Figure(figsize=(WIDTH, 5.2))
        sent, curves, apart = figure.subplots(3, 1, gridspec_kw={"height_ratios": [1.3, 1.0, 0.8]})
        planned, measured = ([(workers, size / 1e6) for workers, size in points] for points in (planned, measured))
        same = [point for point in planned if point[0] <= last_of_same_batch]
        more = [point for point in planned if point[0] >= last_of_same_batch]
        label = f"planned, {last_of_same_batch} texts an update"
        sent.plot(*zip(*same, strict=True), DASHES[0], color=COLOURS[0], label=label)
        sent.plot(*zip(*more, strict=True), DASHES[1], color=COLOURS[0], label="planned, one text a worker")
        sent.plot(*zip(*measured, strict=True), MARKERS[0], color=COLOURS[1], markersize=5, label="counted")
        sent.set_ylabel("MB that a worker sends\nan update, ring")
        sent.set_yscale("log", base=2)
        sent.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        sent.legend(loc="upper left")
        gpu_axis(sent, [workers for workers, _ in planned], "workers")
        for (workers, values), colour, dash, width in zip(
            losses.items(), COLOURS, DASHES, (3.2, 2.4, 1.6, 0.8), strict=False
        ):
            updates = range(1, len(values) + 1)
            curves.plot(updates, values, dash, color=colour, linewidth=width, label=str(workers))
        curves.set_ylabel("loss (nats a\nmasked token)")
        curves.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(losses), title="workers")
        for (workers, values), colour, marker in zip(differences.items(), COLOURS[1:], MARKERS[1:], strict=False):
            apart.plot(
                range(1, len(values) + 1),
                [max(value, 1e-9) for value in values],
                marker,
                color=colour,
                label=f"{workers}",
            )
        apart.axhline(tolerance, color="0.3", linestyle=":", label="allowed")
        apart.set_yscale("log")
        apart.set_ylabel("difference from\none worker")
        apart.set_xlabel("updates")
        apart.sharex(curves)
        figure.align_ylabels()
    return save_figure(figure, path)
