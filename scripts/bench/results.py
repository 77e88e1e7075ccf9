"""The result of a benchmark: a last line of JSON whose ``table`` holds one row per comparison."""

import json
import operator
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

__all__ = ["AIMS", "finish", "is_installed", "markdown", "missing_row", "row"]

Row = dict[str, Any]
AIMS: dict[str, Callable[[float, float], bool]] = {">=": operator.ge, "<=": operator.le}
HEAD = ("what", "ours", "compared with", "theirs", "ratio", "aim", "met", "memory, MiB: ours / theirs")


def row(
    what: str,
    unit: str,
    ours: float,
    *,
    baseline: str = "",
    theirs: float | None = None,
    ratio: float | None = None,
    aim: str = "",
    mib: float | None = None,
    their_mib: float | None = None,
) -> Row:
    """One comparison, as a row of the table.

    Args:
        what: what is measured.
        unit: unit of ``ours`` and ``theirs``.
        ours: our median.
        baseline: name of the other side; the figures of the other side are ``theirs`` and ``their_mib``.
        theirs: median of the other side.
        ratio: median of the ratios of the rounds; the benchmark decides which side is divided by which.
        aim: bound such as ``>= 0.95`` for the ratio, or for ``ours`` without a ratio; empty for none.
        mib: our memory in MiB; the benchmark's docstring defines it.
        their_mib: memory of the other side.

    Raises:
        ValueError: the aim cannot be read.
    """
    is_met = None
    if aim:
        sign, _, bound = aim.partition(" ")
        if sign not in AIMS:
            raise ValueError(f"aim {aim!r}: write one of {', '.join(AIMS)}, a space and a number")
        is_met = AIMS[sign](ours if ratio is None else ratio, float(bound))
    return {
        "what": what,
        "unit": unit,
        "ours": ours,
        "baseline": baseline,
        "theirs": theirs,
        "ratio": ratio,
        "aim": aim,
        "met": is_met,
        "mib": mib,
        "their_mib": their_mib,
    }


def missing_row(what: str, package: str, aim: str = "") -> Row:
    """The row of a comparison that a missing package prevents; prints a message."""
    print(f"{package} is not installed: {what} is left out (make bench-peers installs the packages that pip has)")
    return {"what": what, "baseline": package, "aim": aim, "missing": package}


def is_installed(package: str) -> bool:
    """Whether the package can be imported, without importing it."""
    return find_spec(package) is not None


def finish(result: Mapping[str, Any], path: Path | None) -> None:
    """Print the result as the last line, in JSON, and write it to the file of --json."""
    line = json.dumps(result)
    print(line)
    if path:
        path.write_text(line + "\n", encoding="utf-8")


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
    return [
        one["what"],
        f"{_number(one['ours'])} {one['unit']}",
        one["baseline"],
        theirs,
        ratio,
        one["aim"],
        met,
        memory,
    ]


def _number(value: float) -> str:
    """A number with three digits or more, without exponent."""
    size = abs(value)
    return f"{value:,.0f}" if size >= 100 or value == 0 else f"{value:.{2 if size >= 1 else 4}f}"


def _plain(text: str) -> str:
    return " ".join(str(text).replace("|", "/").split())[:200]
