"""The look of all pictures, their files (PNG for the screen, SVG for print), and scores side by side as bars."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.reports import Row
from fairseq_clear.files import check_output_file, write_errors, write_whole

__all__ = ["check_count", "draw_compare", "picture_files", "save_figure", "style"]

# Okabe and Ito's palette (2008), whose colours can be distinguished with every kind of colour blindness. Its yellow, too
# pale for lines on white, comes last. Markers, dashes and hatches repeat the information of the colours, for prints in grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "--", ":", "-.")
HATCHES = ("", "///", "...", "xxx", "\\\\\\", "|||", "ooo", "+++")
WIDTH = 3.3  # inches: a column of the ACL's and the IEEE's pages
SUFFIXES = (".png", ".svg")
_STYLE = {
    "font.size": 7,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
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


def picture_files(path: Path, overwrite: bool) -> list[Path]:
    """Return the files that ``save_figure`` writes, NAME.png and NAME.svg; UserError if they cannot be written."""
    name = path.with_suffix("") if path.suffix.lower() in SUFFIXES else path  # v1.2 keeps its .2
    files = [Path(f"{name}{suffix}") for suffix in SUFFIXES]
    for file in files:
        check_output_file(file, overwrite)
    return files


def save_figure(figure: Figure, path: Path) -> list[Path]:
    """Write a figure as PNG (300 dots per inch) and as SVG, replacing existing files; return both paths."""
    files = picture_files(path, overwrite=True)
    for file in files:
        # without a date, so that equal pictures give identical files
        metadata = {"Date": None} if file.suffix == ".svg" else {"Software": None}
        # the style gives the hatches and the hash salt, which are read while saving
        with style(), write_errors(file), write_whole(file) as stream:
            figure.savefig(stream, format=file.suffix[1:], dpi=300, metadata=metadata)
    return files


def draw_compare(rows: Sequence[Row], columns: Sequence[str]) -> Figure:
    """Draw the scores of up to eight rows as horizontal bars from 0, grouped by column; UserError if there are more."""
    check_count(rows, "rows")
    width = 0.8 / len(rows)
    with style():
        figure = Figure(figsize=(WIDTH, 0.16 * len(columns) * len(rows) + 0.16 * len(rows) + 0.6))
        axis = figure.subplots()
        for number, row in enumerate(rows):
            present = [place for place, column in enumerate(columns) if column in row.scores]
            values = [row.scores[columns[place]] for place in present]
            spread = [row.deviations.get(columns[place], 0.0) for place in present]
            drawn = axis.barh(
                np.array(present) + (number - (len(rows) - 1) / 2) * width, values, width, label=row.label,
                color=COLOURS[number], hatch=HATCHES[number], edgecolor="white", linewidth=0.3,
                xerr=spread if any(spread) else None, error_kw={"linewidth": 0.7},
            )  # fmt: skip
            axis.bar_label(drawn, [f"{value:.1f}" for value in values], padding=2, fontsize=5.5)
        axis.set_yticks(np.arange(len(columns)), columns)
        axis.invert_yaxis()
        axis.grid(False, axis="y")
        axis.margins(x=0.12)
        axis.set_xlabel("score (x100)")
        figure.legend(loc="outside upper center", ncols=1 if max(len(row.label) for row in rows) > 22 else 2)
    return figure
