"""What a benchmark hands on: a last line of JSON whose ``table`` holds one row for each comparison."""

import json
import operator
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

__all__ = ["AIMS", "finish", "is_installed", "markdown", "missing_row", "row"]

Row = dict[str, Any]
AIMS: dict[str, Callable[[float, float], bool]] = {">=": operator.ge, "<=": operator.le}
HEAD = ("what", "ours", "beside", "theirs", "ratio", "aim", "met", "memory, MiB: ours / theirs")


def row(
    what: str,
    unit: str,
    ours: float,
    *,
    beside: str = "",
    theirs: float | None = None,
    ratio: float | None = None,
    aim: str = "",
    mib: float | None = None,
    their_mib: float | None = None,
) -> Row:
    """One comparison.

    Args:
        what: is measured.
        unit: of ``ours`` and ``theirs``.
        ours: median.
        beside: the name of the other; its figures are ``theirs`` and ``their_mib``.
        ratio: median of the rounds' ratios, in the sense that ``aim`` speaks of.
        aim: such as ``>= 0.95``, of the ratio; of ``ours`` where there is no ratio; empty where none is set.
        mib: memory in MiB, by the measure that the benchmark's own text names.

    Raises:
        ValueError: an aim that cannot be read.
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
        "beside": beside,
        "theirs": theirs,
        "ratio": ratio,
        "aim": aim,
        "met": is_met,
        "mib": mib,
        "their_mib": their_mib,
    }


def missing_row(what: str, package: str, aim: str = "") -> Row:
    """The comparison that a missing package keeps from being made; says so on the screen."""
    print(f"{package} is not installed: {what} is left out (make bench-peers installs what pip has)")
    return {"what": what, "beside": package, "aim": aim, "missing": package}


def is_installed(package: str) -> bool:
    """Whether the package can be imported, without importing it."""
    return find_spec(package) is not None


def finish(result: Mapping[str, Any], path: Path | None) -> None:
    """Print the result as a line of JSON, the last one, and keep it where --json says."""
    line = json.dumps(result)
    print(line)
    if path:
        path.write_text(line + "\n", encoding="utf-8")


def markdown(results: Mapping[str, Mapping[str, Any]]) -> str:
    """The one table.

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
        return [one["what"], "", one["beside"], "not installed", "", one["aim"], "", ""]
    met = {None: "", True: "yes", False: "no"}[one["met"]]
    memory = " / ".join(f"{value:,.0f}" for value in (one["mib"], one["their_mib"]) if value is not None)
    theirs = "" if one["theirs"] is None else _number(one["theirs"])
    ratio = "" if one["ratio"] is None else _number(one["ratio"])
    return [one["what"], f"{_number(one['ours'])} {one['unit']}", one["beside"], theirs, ratio, one["aim"], met, memory]


def _number(value: float) -> str:
    """Three digits or more, no exponent."""
    size = abs(value)
    return f"{value:,.0f}" if size >= 100 or value == 0 else f"{value:.{2 if size >= 1 else 4}f}"


def _plain(text: str) -> str:
    return " ".join(str(text).replace("|", "/").split())[:200]
