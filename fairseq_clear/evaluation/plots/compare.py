"""Draws evaluation reports side by side, as bars."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.plots.style import COLOURS, HATCHES, WIDTH, check_count, style
from fairseq_clear.evaluation.reports import REPORT_FORMAT, Row

__all__ = ["draw_compare", "read_bars"]

_BAR = 0.13  # inches
_MOST_NUMBERS = 40  # with more bars than this, the numbers at their ends are left out


def read_bars(paths: Sequence[Path]) -> list[Row]:
    """Read every row of the reports; rows with the same name get the name of their file as prefix.

    Raises:
        UserError: a missing file, or one that is not a report.
    """
    rows = [(path, row) for path in paths for row in _rows(path)]
    labels = [str(row["label"]) for _, row in rows]
    bars = []
    for (path, row), label in zip(rows, labels, strict=True):
        name = f"{path.stem}: {label}" if labels.count(label) > 1 else label
        bars.append(Row(name, row["scores"], deviations=row.get("deviations", {})))
    return bars


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot read it ({error.strerror or error})") from None
    except ValueError:
        report = None
    if not isinstance(report, dict) or report.get("format") != REPORT_FORMAT or not report.get("rows"):
        raise UserError(
            f"{path}: is not a report of fairseq-clear; give a file that sts, senteval or glue wrote (--output)"
        )
    rows: list[dict[str, Any]] = report["rows"]
    return rows


def draw_compare(bars: Sequence[Row], columns: Sequence[str] | None = None) -> Figure:
    """Horizontal bars from 0, grouped by column, so that names of any length can be read.

    Args:
        bars: up to eight rows.
        columns: columns to draw, in this order (default: all, in the order of the reports).

    Raises:
        UserError: too many rows, or a column that no report has.
    """
    check_count(bars, "rows")
    known = list(dict.fromkeys(column for row in bars for column in row.scores))
    for column in columns or []:
        if column not in known:
            raise UserError(f"--columns {column}: no report has it; there are {', '.join(known)}")
    chosen = list(columns or known)
    width = 0.8 / len(bars)
    with style():
        height = _BAR * len(chosen) * len(bars) / 0.8 + 0.16 * len(bars) + 0.6
        figure = Figure(figsize=(WIDTH, height))
        axis = figure.subplots()
        for number, row in enumerate(bars):
            places = np.arange(len(chosen)) + (number - (len(bars) - 1) / 2) * width
            present = [index for index, column in enumerate(chosen) if column in row.scores]
            values = [row.scores[chosen[index]] for index in present]
            spread = [row.deviations.get(chosen[index], 0.0) for index in present]
            drawn = axis.barh(
                places[present], values, width, label=row.label, color=COLOURS[number], hatch=HATCHES[number],
                edgecolor="white", linewidth=0.3, xerr=spread if any(spread) else None, error_kw={"linewidth": 0.7},
            )  # fmt: skip
            if len(bars) * len(chosen) <= _MOST_NUMBERS:
                axis.bar_label(drawn, [f"{value:.1f}" for value in values], padding=2, fontsize=5.5)
        axis.set_yticks(np.arange(len(chosen)), chosen)
        axis.tick_params(axis="y", length=0)
        axis.invert_yaxis()
        axis.grid(False, axis="y")
        axis.axvline(0, color="black", linewidth=0.6)
        axis.margins(x=0.12)
        axis.set_xlabel("score (x100)")
        figure.legend(loc="outside upper center", ncols=1 if max(len(row.label) for row in bars) > 22 else 2)
    return figure
