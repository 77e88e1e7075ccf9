"""Training curves: losses, accuracy, scores, alignment and uniformity over the updates of one or several runs."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.plotting import COLOURS, DASHES, MARKERS, WIDTH, check_count, style
from fairseq_clear.evaluation.training_log import TRAINING, Records

__all__ = ["draw_curves"]

# Metric -> label of its axis, with its unit. The total loss is only drawn for runs that do not log its two terms.
PANELS: dict[str, str] = {
    "loss": "loss (bits)",
    "mlm_loss": "MLM loss (bits/token)",
    "contrastive_loss": "contrastive loss (bits)",
    "contrastive_accuracy": "in-batch accuracy",
    "accuracy": "accuracy (%)",
    "sts_spearman": "STS Spearman (x100)",
    "retrieval_mrr": "retrieval MRR@10 (x100)",
    "alignment": "alignment",
    "uniformity": "uniformity",
}


def draw_curves(logs: Mapping[str, Records], metrics: Sequence[str] | None = None) -> Figure:
    """Draw a panel for each metric. Colours show runs; lines are training, dashes and markers validation subsets.

    Args:
        logs: name of a run -> its log, see ``training_log.read_log``; up to eight.
        metrics: names of metrics as logged, without the part (default: PANELS).

    Raises:
        UserError: too many logs, or none of the metrics in any of them.
    """
    check_count(list(logs), "logs")
    lines = {metric: _lines(logs, metric) for metric in metrics or PANELS}
    if metrics is None and (lines["mlm_loss"] or lines["contrastive_loss"]):
        del lines["loss"]
    panels = {metric: found for metric, found in lines.items() if found}
    if not panels:
        raise UserError(f"{', '.join(logs)}: no log has any of {', '.join(lines)}")
    subsets = dict.fromkeys(part for found in panels.values() for _, part, _ in found if part not in TRAINING)
    forms = {part: (DASHES[1 + n % 3], MARKERS[n % len(MARKERS)]) for n, part in enumerate(subsets)}
    with style():
        figure = Figure(figsize=(WIDTH, 1.3 * len(panels) + 0.2 * (len(logs) + len(subsets)) + 0.3))
        axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
        for axis, (metric, found) in zip(axes, panels.items(), strict=True):
            for number, part, curve in found:
                dash, marker = forms.get(part, ("-", "." if len(curve) == 1 else ""))
                axis.plot(list(curve), list(curve.values()), dash, marker=marker, color=COLOURS[number])
            axis.set_ylabel(PANELS.get(metric, metric))
        axes[-1].set_xlabel("updates")
        figure.align_ylabels()
        handles = [Line2D([], [], color=colour, label=name) for name, colour in zip(logs, COLOURS, strict=False)]
        for part, (dash, marker) in forms.items():
            handles.append(Line2D([], [], linestyle=dash, marker=marker, color="0.4", label=part))
        figure.legend(handles=handles, loc="outside upper center", ncols=2)
    return figure


def _lines(logs: Mapping[str, Records], metric: str) -> list[tuple[int, str, dict[float, float]]]:
    """The lines of a panel: number of the run, part, updates -> value. Training is that within epochs, or at their ends."""
    found = []
    for number, records in enumerate(logs.values()):
        curves = {
            part: {at: values[metric] for at, values in sorted(updates.items()) if metric in values}
            for part, updates in records.items()
        }
        within, ends = TRAINING
        if curves.get(within):
            curves.pop(ends, None)
        found += [(number, part, curve) for part, curve in curves.items() if curve]
    return found
