"""The look of all pictures, and writing them: PNG for the screen and SVG for print."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from fairseq_clear.errors import UserError
from fairseq_clear.files import check_output_file, write_errors

__all__ = [
    "COLOURS",
    "DASHES",
    "HATCHES",
    "MARKERS",
    "PAGE_WIDTH",
    "WIDTH",
    "check_count",
    "check_picture_path",
    "save_figure",
    "style",
]

# Okabe and Ito's palette (2008), whose colours can be distinguished with every kind of colour blindness. Its yellow, too
# pale for lines on white, comes last. Markers, dashes and hatches repeat the information of the colours, for prints in grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "--", ":", "-.")
HATCHES = ("", "///", "...", "xxx", "\\\\\\", "|||", "ooo", "+++")
WIDTH = 3.3  # inches: a column of the ACL's and the IEEE's pages
PAGE_WIDTH = 6.8  # inches: both columns
SUFFIXES = (".png", ".svg")

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


@contextmanager
def style() -> Iterator[None]:
    """Apply the project's style inside the block, without changing global settings."""
    with matplotlib.rc_context(_STYLE):
        yield


def check_picture_path(path: Path, overwrite: bool, *, flag: str = "--output") -> list[Path]:
    """Return the two files that ``save_figure`` will write.

    Raises:
        UserError: the folder does not exist, the suffix is another one, or one of the files exists.
    """
    if path.suffix and path.suffix.lower() not in SUFFIXES:
        raise UserError(f"{flag} {path}: give a name that ends in .png, in .svg or in neither; both files are written")
    files = [path.with_suffix(suffix) for suffix in SUFFIXES]
    for file in files:
        check_output_file(file, overwrite, flag=flag)
    return files


def save_figure(figure: Figure, path: Path) -> list[Path]:
    """Write a figure as PNG (300 dots per inch) and as SVG; return both paths."""
    files = [path.with_suffix(suffix) for suffix in SUFFIXES]
    for file in files:
        partial = file.with_name(f".{file.stem}.partial{file.suffix}")
        try:
            # without a date, so that equal pictures give identical files
            metadata = {"Date": None} if file.suffix == ".svg" else {"Software": None}
            with write_errors(file), style():  # settings of hatches and of the hash salt are read while saving
                figure.savefig(partial, dpi=300, metadata=metadata)
                partial.replace(file)
        finally:
            partial.unlink(missing_ok=True)
    return files
