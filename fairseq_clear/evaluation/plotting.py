"""The look of all pictures, their files (PNG for the screen, SVG for print), and evaluation reports side by side as bars."""

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.figure import Figure

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.reports import REPORT_FORMAT, Row
from fairseq_clear.files import check_output_file, write_errors, write_whole

__all__ = ["check_count", "check_picture_path", "draw_compare", "read_bars", "save_figure", "style"]

# Okabe and Ito's palette (2008), whose colours can be distinguished with every kind of colour blindness. Its yellow, too
# pale for lines on white, comes last. Markers, dashes and hatches repeat the information of the colours, for prints in grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "--", ":", "-.")
HATCHES = ("", "///", "...", "xxx", "\\\\\\", "|||", "ooo", "+++")
WIDTH = 3.3  # inches: a column of the ACL's and the IEEE's pages
PAGE_WIDTH = 6.8  # inches: both columns
SUFFIXES = (".png", ".svg")
_BAR = 0.13  # inches
_MOST_NUMBERS = 40  # with more bars than this, the numbers at their ends are left out

_STYLE = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "hatch.linewidth": 0.5,
    "figure.constrained_layout.use": True,
    "svg.hashsalt": "fairseq_clear",  # so that equal pictures give identical files
}


def check_count(drawn: Sequence[object], what: str, most: int = len(COLOURS)) -> None:
    """Raise UserError if there are more things to draw than a picture can tell apart, by default the colours."""
    if len(drawn) > most:
        raise UserError(f"{len(drawn)} {what} are too many for one picture; give at most {most}")


def style() -> AbstractContextManager[None]:
    """Apply the project's style inside a ``with`` block, without changing global settings."""
    return matplotlib.rc_context(_STYLE)


def check_picture_path(path: Path, overwrite: bool, *, flag: str = "--output") -> list[Path]:
    """Return the two files that ``save_figure`` will write; UserError for other pictures, or if they cannot be written."""
    if path.suffix.lower() not in SUFFIXES and path.suffix[1:].lower() in FigureCanvasBase.filetypes:
        raise UserError(f"{flag} {path}: pictures are written as .png and .svg; give a name without {path.suffix}")
    files = _picture_files(path)
    for file in files:
        check_output_file(file, overwrite, flag=flag)
    return files


def _picture_files(path: Path) -> list[Path]:
    name = path.with_suffix("") if path.suffix.lower() in SUFFIXES else path  # v1.2 keeps its .2
    return [Path(f"{name}{suffix}") for suffix in SUFFIXES]


def save_figure(figure: Figure, path: Path) -> list[Path]:
    """Write a figure as PNG (300 dots per inch) and as SVG; return both paths."""
    files = _picture_files(path)
    for file in files:
        # without a date, so that equal pictures give identical files
        metadata = {"Date": None} if file.suffix == ".svg" else {"Software": None}
        # the style gives the hatches and the hash salt, which are read while saving
        with style(), write_errors(file), write_whole(file) as stream:
            figure.savefig(stream, format=file.suffix[1:], dpi=300, metadata=metadata)
    return files


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
    """Draw horizontal bars from 0, grouped by column.

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
        figure = Figure(figsize=(WIDTH, _BAR * len(chosen) * len(bars) / 0.8 + 0.16 * len(bars) + 0.6))
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
