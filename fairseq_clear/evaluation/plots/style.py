"""How every picture looks, and how it is written: PNG for the screen and SVG for print."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from fairseq_clear.errors import UserError
from fairseq_clear.files import check_output_file

__all__ = [
    "COLOURS",
    "DASHES",
    "HATCHES",
    "MARKERS",
    "PAGE_WIDTH",
    "WIDTH",
    "check_picture_path",
    "save_figure",
    "style",
]

# Okabe and Ito's palette (2008), told apart with every kind of colour blindness; its yellow, too pale for lines on white,
# comes last. Markers, dashes and hatches repeat what the colour says, for prints in grey.
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
    "svg.hashsalt": "fairseq_clear",  # the same picture is the same file
}


@contextmanager
def style() -> Iterator[None]:
    """The project's look, within; nothing global is changed."""
    with matplotlib.rc_context(_STYLE):
        yield


def check_picture_path(path: Path, overwrite: bool, *, flag: str = "--output") -> list[Path]:
    """The two files that ``save_figure`` will write.

    Raises:
        UserError: no such folder, another suffix, or one of them exists.
    """
    if path.suffix and path.suffix.lower() not in SUFFIXES:
        raise UserError(f"{flag} {path}: give a name ending in .png or .svg, or in neither; both are written")
    files = [path.with_suffix(suffix) for suffix in SUFFIXES]
    for file in files:
        check_output_file(file, overwrite, flag=flag)
    return files


def save_figure(figure: Figure, path: Path) -> list[Path]:
    """Write ``path`` as PNG (300 dots an inch) and as SVG; return both names."""
    files = [path.with_suffix(suffix) for suffix in SUFFIXES]
    for file in files:
        beside = file.with_name(f".{file.stem}.partial{file.suffix}")
        try:
            # no date in the file, so that it changes only when the picture does
            metadata = {"Date": None} if file.suffix == ".svg" else {"Software": None}
            with style():  # hatches and the salt of names are read only now
                figure.savefig(beside, dpi=300, metadata=metadata)
            beside.replace(file)
        except OSError as error:
            raise UserError(f"--output {file}: cannot write it ({error.strerror or error})") from None
        finally:
            beside.unlink(missing_ok=True)
    return files
