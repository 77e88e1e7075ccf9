"""Shared by all benchmarks: flags, two sides that take turns, and the result, whose ``table`` has a row per comparison."""

import argparse
import json
import operator
import os
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

__all__ = ["compare", "finish", "flags", "in_turn", "is_installed", "markdown", "missing_row", "row"]

Row = dict[str, Any]
AIMS: dict[str, Callable[[float, float], bool]] = {">=": operator.ge, "<=": operator.le}
HEAD = ("what", "ours", "compared with", "theirs", "ratio", "aim", "met", "memory, MiB: ours / theirs")


def flags(doc: str | None, **defaults: Any) -> argparse.Namespace:
    """Parse ``--repeats``, ``--json`` and a flag for each default value or type; a list takes several values."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    for name, default in ({"repeats": 5} | defaults).items():
        several = {"nargs": "+"} if isinstance(default, list) else {}
        first = default[0] if several else default
        kind, value = (first, None) if isinstance(first, type) else (type(first), default)
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=kind, default=value, help="default: %(default)s", **several
        )
    return parser.parse_args()


def in_turn(
    functions: Sequence[Callable[[int], object]],
    repeats: int,
    warm_up: int = 2,
    clock: Callable[[], float] = time.perf_counter,
) -> list[list[float]]:
    """Seconds of each function in each round. The functions take turns, so that other load slows all of them alike.

    ``clock=time.process_time`` counts the processor time of this process: for work on one core.
    """
    seconds: list[list[float]] = [[] for _ in functions]
    for number in range(warm_up + repeats):
        for index, function in enumerate(functions):
            began = clock()
            function(number)
            if number >= warm_up:
                seconds[index].append(clock() - began)
    return seconds


def compare(
    what: str,
    ours: Callable[[int], object],
    theirs: Callable[[int], object],
    repeats: int,
    *,
    baseline: str,
    aim: str = "",
    unit: str = "s",
    amount: float = 0,
    warm_up: int = 2,
    clock: Callable[[], float] = time.perf_counter,
    mib: Sequence[float | None] = (None, None),
) -> Row:
    """Let two sides take turns; print and return the row.

    Args:
        what: what is measured.
        ours, theirs: the two sides, called with the number of the round.
        repeats, warm_up, clock: see ``in_turn``.
        baseline: name of the other side.
        aim: bound such as ``>= 0.95``. With ``<=`` the ratio is our time over theirs, else theirs over ours.
        unit: unit of the figures.
        amount: what one call makes, in ``unit`` without ``/s``; 0 shows seconds.
        mib: memory of both sides.
    """
    seconds = in_turn([ours, theirs], repeats, warm_up, clock)
    mine, other = seconds if aim.startswith("<=") else seconds[::-1]
    ratio = median(a / b for a, b in zip(mine, other, strict=True))
    figures = [amount / median(times) if amount else median(times) for times in seconds]
    print(f"{what}: {figures[0]:,.4g} {unit}, {baseline} {figures[1]:,.4g}: {ratio:.2f}", flush=True)
    return row(
        what, unit, figures[0], baseline=baseline, theirs=figures[1], ratio=ratio, aim=aim, mib=mib[0], their_mib=mib[1]
    )


def row(what: str, unit: str, ours: float, *, baseline: str = "", aim: str = "", **others: float | None) -> Row:
    """A row of the table; ``others`` are some of ``theirs``, ``ratio``, ``mib`` and ``their_mib``, see ``compare``.

    The aim bounds the ratio, or ``ours`` without a ratio.
    """
    found = {"theirs": None, "ratio": None, "mib": None, "their_mib": None, **others}
    sign, _, bound = aim.partition(" ")
    met = AIMS[sign](ours if found["ratio"] is None else found["ratio"], float(bound)) if aim else None
    return {"what": what, "unit": unit, "ours": ours, "baseline": baseline, **found, "aim": aim, "met": met}


def missing_row(what: str, package: str, aim: str = "") -> Row:
    """The row of a comparison that a missing package prevents; prints a message."""
    print(f"{package} is not installed: {what} is left out (make bench-peers installs the packages that pip has)")
    return {"what": what, "baseline": package, "aim": aim, "missing": package}


def is_installed(package: str) -> bool:
    """Whether the package can be imported, without importing it."""
    return find_spec(package) is not None


def finish(table: Sequence[Row], arguments: argparse.Namespace, **further: Any) -> None:
    """Print the table, the flags and ``further`` as the last line, in JSON, and write it to the file of --json."""
    known = {name: value for name, value in vars(arguments).items() if name != "json"}
    result = {**known, "threads": os.environ.get("OMP_NUM_THREADS", "unset"), **further, "table": list(table)}
    line = json.dumps(result, default=lambda path: Path(path).name)  # not the folders of this machine
    print(line)
    if arguments.json:
        arguments.json.write_text(line + "\n", encoding="utf-8")


def markdown(results: Mapping[str, Mapping[str, Any]]) -> str:
    """The table of all benchmarks, in Markdown.

    Args:
        results: benchmark -> its JSON, or ``{"failed": reason}``.
    """
    lines = [f"| benchmark | {' | '.join(HEAD)} |", f"|{'---|' * (len(HEAD) + 1)}"]
    for name, result in results.items():
        if "failed" in result:
            lines.append(f"| {name} | failed: {_plain(result['failed'])} | | | | | | | |")
        lines += [f"| {name} | {' | '.join(_cells(one))} |" for one in result.get("table", ())]
    return "\n".join(lines) + "\n"


def _cells(one: Row) -> list[str]:
    if "missing" in one:
        return [one["what"], "", one["baseline"], "not installed", "", one["aim"], "", ""]
    met = {None: "", True: "yes", False: "no"}[one["met"]]
    memory = " / ".join(f"{value:,.0f}" for value in (one["mib"], one["their_mib"]) if value is not None)
    theirs = "" if one["theirs"] is None else _number(one["theirs"])
    ratio = "" if one["ratio"] is None else _number(one["ratio"])
    ours = f"{_number(one['ours'])} {one['unit']}"
    return [one["what"], ours, one["baseline"], theirs, ratio, one["aim"], met, memory]


def _number(value: float) -> str:
    """A number with three digits or more, without exponent."""
    size = abs(value)
    return f"{value:,.0f}" if size >= 100 or value == 0 else f"{value:.{2 if size >= 1 else 4}f}"


def _plain(text: str) -> str:
    return " ".join(str(text).replace("|", "/").split())[:200]
