"""Tables of measured runs: means, standard deviations, differences paired by seed. Needs only the standard library."""

from collections.abc import Container, Mapping, Sequence
from statistics import mean, stdev
from typing import Any


def seconds(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """A line with the mean training time of each recipe over its runs."""
    means = {name: mean(run["train_seconds"] for run in runs) for name, runs in found.items()}
    return "\nseconds per run: " + ", ".join(f"{name} {value:.0f}" for name, value in means.items())


def scores_of(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, dict[int, dict[str, float]]]:
    """Name -> seed -> the scores of the run."""
    return {name: {run["seed"]: run["scores"] for run in runs} for name, runs in found.items()}


def differences(
    rows: Mapping[str, Mapping[int, Mapping[str, float]]], base: str, fixed: Container[str] = ()
) -> dict[str, dict[str, tuple[float, float]]]:
    """Differences of each row from the row ``base``, paired by seed, and their standard errors (NaN with one seed).

    Seeds that only one of the two rows has are left out, and so are runs that lack a column. The only run of a row in
    ``fixed``, and the only run of a base, do not depend on the seed and count for each.

    Args:
        rows: name -> seed -> the scores of the run.
    """
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for name, runs in rows.items():
        if name == base:
            continue
        theirs = rows[base]
        ours = dict.fromkeys(theirs, *runs.values()) if name in fixed and len(runs) == 1 else runs
        theirs = dict.fromkeys(ours, *theirs.values()) if len(theirs) == 1 else theirs
        both = [(run, theirs[seed]) for seed, run in ours.items() if seed in theirs]
        for column in dict.fromkeys(column for run, _ in both for column in run):
            values = [run[column] - other[column] for run, other in both if column in run and column in other]
            if not values:
                continue
            error = stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
            found.setdefault(name, {})[column] = (mean(values), error)
    return found


def table(rows: Mapping[str, Mapping[int, Mapping[str, float]]], digits: int = 2) -> str:
    """A Markdown table of means, with standard deviations if there are several seeds; the best of each column is bold.

    Args:
        rows: name -> seed -> the numbers of the run, which may lack columns.
        digits: digits after the decimal point.
    """
    columns = list(dict.fromkeys(column for runs in rows.values() for run in runs.values() for column in run))
    numbers = {name: {c: [run[c] for run in runs.values() if c in run] for c in columns} for name, runs in rows.items()}
    best = {c: max(mean(found[c]) for found in numbers.values() if found[c]) for c in columns}
    lines = ["| | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for name, found in numbers.items():
        cells = []
        for column, values in found.items():
            if not values:
                cells.append("")
                continue
            text = f"{mean(values):.{digits}f}"
            text = f"**{text}**" if mean(values) == best[column] else text
            cells.append(text + (f" +- {stdev(values):.{digits}f}" if len(values) > 1 else ""))
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def difference_table(rows: Mapping[str, Mapping[int, Mapping[str, float]]], base: str, digits: int = 2) -> str:
    """A Markdown table of ``differences`` from the row ``base``, with standard errors."""
    found = differences(rows, base)
    columns = list(dict.fromkeys(column for cells in found.values() for column in cells))
    lines = [f"| minus {base} | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for name, cells in found.items():
        shown = [f"{cells[c][0]:+.{digits}f} ({cells[c][1]:.{digits}f})" if c in cells else "" for c in columns]
        lines.append(f"| {name} | " + " | ".join(shown) + " |")
    return "\n".join(lines)
