"""The tables of docs/correctness.md, from the JSON of correctness.py. Needs only the standard library."""

from collections.abc import Mapping, Sequence
from typing import Any


def markdown(result: Mapping[str, Any], name: str) -> str:
    """A table in Markdown.

    Args:
        result: the JSON.
        name: of the table. Its rows are dictionaries; the longest one has the names of the columns, and a value that another
            row lacks is an empty cell.

    Raises:
        KeyError: there is no such table.
    """
    rows: Sequence[Mapping[str, Any]] = result["tables"][name]
    head = max(map(list, rows), key=len)
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    lines += [f"| {' | '.join(cell(row.get(column)) for column in head)} |" for row in rows]
    return "\n".join(lines) + "\n"


def cell(value: Any) -> str:
    """A value in a table: counts in full, numbers below a thousandth with an exponent, text in one line."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return "0" if value == 0 else f"{value:.1e}" if abs(value) < 1e-3 else f"{value:.4f}"
    return " ".join(str("" if value is None else value).replace("|", "/").split())
