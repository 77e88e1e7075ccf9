"""Reports of all evaluations, as a table and as JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fairseq_clear.errors import UserError
from fairseq_clear.files import versions, write_json

__all__ = ["REPORT_FORMAT", "Report", "Row", "check_seeds"]

REPORT_FORMAT = 1
WIDE = 10  # with more columns than this, the table is transposed
BOLD, PLAIN = "\033[1m", "\033[0m"


def check_seeds(seeds: Sequence[int]) -> None:
    """Raise UserError unless there are seeds, all different: equal runs would make the standard deviation too small."""
    if not seeds or len(set(seeds)) < len(seeds):
        raise UserError(f"--seeds {' '.join(map(str, seeds))}: give one or more different seeds")


@dataclass(frozen=True)
class Row:
    """A row of a report: the scores of one encoder with one pooling.

    Attributes:
        label: the encoder's name in the table.
        scores: column -> score (shares x100); with several seeds, their mean.
        encoder: description of the encoder, such as checkpoint, pooling and sizes.
        deviations: column -> what follows ± in the table: the standard deviation over seeds (n - 1), or half the width of a
            confidence interval; empty if neither is known.
        details: further values for the JSON, such as both correlations, subsets, counts, chosen regularisation.
    """

    label: str
    scores: Mapping[str, float]
    encoder: Mapping[str, Any] = field(default_factory=dict)
    deviations: Mapping[str, float] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """The report of an evaluation command: scores of all encoders, and how they were measured.

    Attributes:
        command: name of the command, such as ``sts``.
        protocol: settings that change the scores, such as metric, aggregation and classifier.
        data: task -> file -> SHA-256.
        columns: names of the columns, in order.
        rows: one for each encoder and pooling, in order.
        seeds: empty if nothing is random.
    """

    command: str
    protocol: Mapping[str, Any]
    data: Mapping[str, Mapping[str, str]]
    columns: Sequence[str]
    rows: Sequence[Row]
    seeds: Sequence[int] = ()

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON values."""
        return {
            "format": REPORT_FORMAT,
            "command": self.command,
            "protocol": dict(self.protocol),
            "data": {task: dict(files) for task, files in self.data.items()},
            "seeds": list(self.seeds),
            "versions": versions(),
            "columns": list(self.columns),
            "rows": [asdict(row) for row in self.rows],
        }

    def table(self, *, bold: bool = False) -> str:
        """Format the report as an aligned table, with a row per encoder, or transposed if it has more than WIDE columns.

        Args:
            bold: print the best score of a column in bold (ANSI codes) instead of marking it with ``*``.
        """
        cells = [
            [(self._cell(row, column), self._is_best(row, column)) for column in self.columns] for row in self.rows
        ]
        down, across = [row.label for row in self.rows], list(self.columns)
        if len(self.columns) > WIDE:
            cells, down, across = [list(line) for line in zip(*cells, strict=True)], across, down
        if not bold and any(is_best for line in cells for _, is_best in line):
            cells = [[(f"{cell}{'*' if is_best else ' '}", is_best) for cell, is_best in line] for line in cells]
        grid = [[(cell, False) for cell in ["", *across]]]
        grid += [[(name, False), *line] for name, line in zip(down, cells, strict=True)]
        widths = [max(len(cell) for cell, _ in column) for column in zip(*grid, strict=True)]
        lines = []
        for (name, _), *line in grid:
            padded = [(cell.rjust(width), is_best) for (cell, is_best), width in zip(line, widths[1:], strict=True)]
            shown = [f"{BOLD}{cell}{PLAIN}" if bold and is_best else cell for cell, is_best in padded]
            lines.append("  ".join([name.ljust(widths[0]), *shown]).rstrip())
        return "\n".join(lines)

    def caption(self) -> str:
        """The protocol and the seeds in one line, for printing under the table."""
        parts = [f"{key} {_short(value)}" for key, value in self.protocol.items()]
        if self.seeds:
            parts.append(f"seeds {' '.join(map(str, self.seeds))}")
        return "; ".join(parts)

    def write(self, path: Path) -> None:
        """Write the JSON; UserError if that fails."""
        write_json(path, self.to_dict(), flag="--output")

    def _cell(self, row: Row, column: str) -> str:
        if column not in row.scores:
            return "-"
        spread = row.deviations.get(column)
        return f"{row.scores[column]:.2f}" + (f"\u00b1{spread:.2f}" if spread is not None else "")

    def _is_best(self, row: Row, column: str) -> bool:
        """Whether a row has the best of several scores, rounded to two decimals."""
        scores = [round(other.scores[column], 2) for other in self.rows if column in other.scores]
        if len(scores) < 2 or column not in row.scores:
            return False
        return round(row.scores[column], 2) == max(scores)


def _short(value: object) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{key}={_short(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(value)
