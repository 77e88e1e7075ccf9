"""Compares the tables of README and of the examples with their JSON sources: ``python scripts/check_tables.py``.

With ``--write``, tables of runs, benchmarks and proofs get the figures of the JSON. A comment above a table names its source:

- ``<!-- figures: rows examples/demo/refine.json -->``: rows of lists of numbers, one per seed, of examples/demo/refine.py; with
  ``#NAME``, the value NAME of the JSON;
- ``<!-- figures: demo examples/demo/scratch.json -->``: the output of examples/demo/scratch.py;
- ``<!-- figures: runs examples/refine/results.json#20news -->``: a table of the results.json of an example's measure.py. If the
  first cell of the table is "minus ROW", its cells are differences from ROW, paired by seed, with standard errors. A column
  "average" is the mean of a run's scores;
- ``<!-- figures: bench scripts/bench/results.json -->``: all rows of an output of scripts/bench;
- ``<!-- figures: proof examples/proof/correctness.json#gradient -->``: a table of examples/proof;
- ``<!-- figures: report sts.json -->``: a report of fairseq-clear.

A table of measured numbers without a comment is an error. The exit status is 1 if anything differs.
"""

import argparse
import json
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import mean, stdev
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "examples"))
sys.path += [str(ROOT / "scripts" / "bench"), str(ROOT / "examples" / "proof")]
import correctness_tables  # noqa: E402
from result_tables import differences  # noqa: E402
from results import markdown  # noqa: E402

PAGES = ("README.md", "docs/correctness.md", "docs/many-gpus.md", "examples/**/*.md", "scripts/bench/README.md")
SOURCE = re.compile(r"<!-- figures: (\S+) (\S+) -->")
# A measured number has a decimal point (a count has none) and no name before it (a setting such as tau 0.01 has one).
FIGURE = re.compile(r"^\**-?\d[\d,]*\.\d+\**( \+- [\d.]+)?$")
FEW = 3  # numbers that a table without a comment may have
Cells = dict[str, list[float]]  # column -> mean and, with several runs, standard deviation

DEMO_ROWS = {
    "TF-IDF": "TF-IDF",
    "untrained encoder": "untrained",
    "masked LM alone": "MLM",
    "CLEAR (MLM + del-word)": "CLEAR",
}
DEMO_COLUMNS = {
    "topics (accuracy)": "topics",
    "retrieval MRR": "mrr",
    "acc@1": "first",
    "MRR, centred": "centred_mrr",
    "acc@1, centred": "centred_first",
}


def over_runs(values: list[float]) -> list[float]:
    """The mean, followed by the standard deviation if there are several runs."""
    return [mean(values), *([stdev(values)] if len(values) > 1 else [])]


def read_demo(path: Path) -> dict[str, Cells]:
    """The rows of the output of examples/demo/scratch.py."""
    report = json.loads(path.read_text(encoding="utf-8"))
    rows = {}
    for label, name in DEMO_ROWS.items():
        runs, speeds = report["rows"][name], [r["tokens_per_second"] for r in report["runs"] if r["arm"] == name]
        rows[label] = {column: over_runs([run[key] for run in runs]) for column, key in DEMO_COLUMNS.items()}
        if any(speeds):
            rows[label]["tokens/s"] = [mean(speeds)]
    return rows


def read_rows(path: Path, table: str) -> dict[str, Cells]:
    """The rows of a file, or of a table in it, with a list of numbers, one per seed, for each row and column."""
    found = json.loads(path.read_text(encoding="utf-8"))
    rows = (found.get(table, {"rows": {}}) if table else found)["rows"]
    return {label: {c: over_runs(values) for c, values in cells.items() if values} for label, cells in rows.items()}


def read_runs(path: Path, name: str, base: str | None) -> dict[str, Cells]:
    """The rows of a table of results.json, or their differences from the row ``base``."""
    scores: dict[str, dict[int, dict[str, float]]] = {}
    fixed = set()  # rows that are not trained
    for run in json.loads(path.read_text(encoding="utf-8"))[name]:
        numbered = scores.setdefault(run["name"], {})
        numbered[int(run.get("seed", 0))] = {"average": mean(run["scores"].values()), **run["scores"]}
        if not run.get("train_seconds") or "optimization.max_update=1" in run.get("overrides", ()):
            fixed.add(run["name"])
    if base is not None:
        return {
            row: {c: list(found) for c, found in cells.items()}
            for row, cells in differences(scores, base, fixed).items()
        }
    columns = dict.fromkeys(column for runs in scores.values() for run in runs.values() for column in run)
    numbers = {row: {c: [run[c] for run in runs.values() if c in run] for c in columns} for row, runs in scores.items()}
    return {row: {c: over_runs(values) for c, values in cells.items() if values} for row, cells in numbers.items()}


def read_report(path: Path) -> dict[str, Cells]:
    """The rows of a report that sts, senteval, classify or glue writes with ``--output``."""
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return {row["label"]: {c: [v, row["deviations"].get(c, 0.0)] for c, v in row["scores"].items()} for row in rows}


READERS: dict[str, Callable[[Path], dict[str, Cells]]] = {
    "demo": read_demo,
    "report": read_report,
}


def read(kind: str, source: str, head: list[str], root: Path) -> dict[str, Cells] | None:
    """The figures of the rows that have one in the columns of a table; None if there is no such kind, file or table.

    Args:
        kind, source: of the comment.
        head: the first row of the table.
        root: the project.
    """
    found = _read(kind, source, head[0], root)
    return found and {row: cells for row, cells in found.items() if any(cells.get(column) for column in head[1:])}


def _read(kind: str, source: str, corner: str, root: Path) -> dict[str, Cells] | None:
    name, _, table = source.partition("#")
    path = root / name
    if not path.is_file():
        return None
    if kind == "runs":
        base = corner.removeprefix("minus ") if corner.startswith("minus ") else None
        return read_runs(path, table, base) if table in json.loads(path.read_text(encoding="utf-8")) else None
    if kind == "rows":
        return read_rows(path, table)
    return READERS[kind](path) if kind in READERS else None


def pages(root: Path) -> list[Path]:
    """The pages whose tables are checked."""
    return sorted({path for pattern in PAGES for path in root.glob(pattern)})


def tables(text: str) -> list[tuple[int, str, list[list[str]]]]:
    """Every table of a page: number of its first line, the line above it, its rows of cells without the row of dashes."""
    found, lines = [], [line.strip() for line in text.splitlines()]
    for number, line in enumerate(lines):
        if line.startswith("|") and (number == 0 or not lines[number - 1].startswith("|")):
            rows = []
            for row in lines[number:]:
                if not row.startswith("|"):
                    break
                rows.append([cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]])
            above = next((other for other in reversed(lines[:number]) if other.strip()), "")
            found.append((number + 1, above, [rows[0], *rows[2:]]))
    return found


def compare(rows: list[list[str]], wanted: dict[str, Cells]) -> list[str]:
    """Messages about cells that differ from the JSON, rounded to the digits of the table."""
    head, wrong = rows[0], []
    for row in rows[1:]:
        if row[0] not in wanted:
            wrong.append(f"row {row[0]!r}: not in the JSON, which has {', '.join(wanted)}")
            continue
        for column, cell in zip(head[1:], row[1:], strict=True):
            shown = re.findall(r"-?\d[\d,]*(?:\.\d+)?", cell)
            expected = [value for value in wanted[row[0]].get(column, []) if not math.isnan(value)]
            right = [f"{value:,.{len(text.partition('.')[2])}f}" for text, value in zip(shown, expected, strict=False)]
            if shown != right or len(shown) < len(expected):
                wrong.append(f"row {row[0]!r}, column {column!r}: shows {cell!r}, the JSON gives {expected}")
    absent = [name for name in wanted if name not in {row[0] for row in rows[1:]}]
    return wrong + [f"row {name!r} of the JSON: not in the table" for name in absent]


def write(path: Path, root: Path) -> None:
    """Replace the tables of RENDERERS, and the cells of those of ``runs``; rows of runs that only the JSON has come last."""
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, above, rows in reversed(tables("\n".join(lines))):
        source = SOURCE.fullmatch(above)
        rendered = rendered_table(source[1], source[2], root) if source else None
        if rendered:
            lines[number - 1 : number + len(rows)] = rendered.splitlines()
        if source is None or source[1] != "runs":
            continue
        wanted = read("runs", source[2], rows[0], root)
        if wanted is not None:
            lines[number + 1 : number + len(rows)] = render(rows, wanted)  # below the head and the dashes
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def render(rows: list[list[str]], wanted: dict[str, Cells]) -> list[str]:
    """Lines of a table: the order of the rows and the digits of a column are kept; the best of a column is bold."""
    head, is_difference = rows[0], rows[0][0].startswith("minus ")
    names = [row[0] for row in rows[1:] if row[0] in wanted]
    names += [name for name in wanted if name not in names]
    digits = [max([1, *(len(d) for row in rows[1:] for d in re.findall(r"\.(\d+)", row[i]))]) for i in range(len(head))]
    best = {c: max((cells[c][0] for cells in wanted.values() if cells.get(c)), default=None) for c in head[1:]}
    lines = []
    for name in names:
        cells = []
        for column, places in zip(head[1:], digits[1:], strict=True):
            values = [value for value in wanted[name].get(column, []) if not math.isnan(value)]
            shown = [f"{value:,.{places}f}" for value in values]
            if is_difference and values:
                shown[0] = f"{values[0]:+,.{places}f}"
            elif values and values[0] == best[column]:
                shown[0] = f"**{shown[0]}**"
            cells.append(shown[0] + f" ({shown[1]})" if is_difference and shown[1:] else " +- ".join(shown))
        lines.append(f"| {' | '.join([name, *cells])} |")
    return lines


RENDERERS: dict[str, Callable[[dict[str, Any], str], str]] = {
    "bench": lambda result, _: markdown(result["results"]),
    "proof": correctness_tables.markdown,
}


def rendered_table(kind: str, source: str, root: Path) -> str | None:
    """The whole table of a source that a program renders; None if there is no such kind, file or table."""
    name, _, table = source.partition("#")
    if kind not in RENDERERS or not (root / name).is_file():
        return None
    try:
        return RENDERERS[kind](json.loads((root / name).read_text(encoding="utf-8")), table)
    except KeyError:
        return None


def check(root: Path) -> list[str]:
    """The mistakes in the pages of a project folder."""
    mistakes = []
    for path in pages(root):
        for line, above, rows in tables(path.read_text(encoding="utf-8")):
            where = f"{path.relative_to(root)}:{line}"
            source = SOURCE.fullmatch(above)
            figures = sum(bool(FIGURE.match(cell)) for row in rows[1:] for cell in row[1:])
            rendered = rendered_table(source[1], source[2], root) if source else None
            if source and rendered:
                if tables(rendered)[0][2] != rows:
                    mistakes.append(f"{where}: differs from {source[2]}; run scripts/check_tables.py --write")
            elif source:
                wanted = read(source[1], source[2], rows[0], root)
                if wanted is None:
                    kinds = ", ".join([*RENDERERS, "rows", "runs", *READERS])
                    mistakes.append(f"{where}: {above}: no such kind, file or table; kinds: {kinds}")
                else:
                    mistakes += [f"{where}: {wrong}" for wrong in compare(rows, wanted)]
            elif figures > FEW:
                mistakes.append(f"{where}: {figures} figures, and no <!-- figures: ... --> above the table")
    return mistakes


def main() -> int:
    """Print the mistakes; return 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--write", action="store_true", help="give tables of runs, benchmarks and proofs the figures of the JSON"
    )
    if parser.parse_args().write:
        for path in pages(ROOT):
            write(path, ROOT)
    mistakes = check(ROOT)
    print(*mistakes, f"check_tables: {len(mistakes)} mistakes", sep="\n")
    return int(bool(mistakes))


if __name__ == "__main__":
    sys.exit(main())
