"""Reports of all evaluations, as a table and as JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fairseq_clear.errors import UserError
from fairseq_clear.files import versions, write_json

WIDE = 10  # with more columns than this, the table is transposed
MAX_SEED = 2**32 - 1  # of numpy's RandomState


def check_seeds(seeds: Sequence[int]) -> None:
    """Raise UserError unless there are valid seeds, all different: equal runs would make the standard deviation too small."""
    if not seeds or len(set(seeds)) < len(seeds) or not all(0 <= seed <= MAX_SEED for seed in seeds):
        raise UserError(f"--seeds {' '.join(map(str, seeds))}: give one or more different seeds, from 0 to {MAX_SEED}")


@dataclass(frozen=True)
class Row:
    """A row of a report: the scores of one encoder with one pooling."""

    label: str  # the encoder's name in the table
    scores: Mapping[str, float]  # column -> score (shares x100); with several seeds, their mean
    encoder: Mapping[str, Any] = field(default_factory=dict)  # description, such as checkpoint, pooling and sizes
    # column -> what follows ± in the table: the deviation over seeds (n - 1), or half the width of a confidence interval
    deviations: Mapping[str, float] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)  # further values for the JSON, such as subsets and counts


@dataclass(frozen=True)
class Report:
    """The report of an evaluation command: scores of all encoders, and how they were measured."""

    command: str
    protocol: Mapping[str, Any]  # settings that change the scores, such as metric, aggregation and classifier
    data: Mapping[str, Mapping[str, str]]  # task -> file -> SHA-256
    columns: Sequence[str]
    rows: Sequence[Row]
    seeds: Sequence[int] = ()  # empty if nothing is random

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON values."""
        return {"format": 1, "versions": versions(), **asdict(self)}

    def table(self) -> str:
        """Format the report as an aligned table; ``*`` marks the best score of a column.

        Each row is an encoder. With more than WIDE columns, the table is transposed.
        """
        grid = [["", *self.columns]]
        grid += [[row.label, *(self._cell(row, column) for column in self.columns)] for row in self.rows]
        if len(self.columns) > WIDE:
            grid = [list(line) for line in zip(*grid, strict=True)]
        if any(cell.endswith("*") for line in grid[1:] for cell in line[1:]):
            grid[1:] = [
                [name, *(cell if cell.endswith("*") else f"{cell} " for cell in line)] for name, *line in grid[1:]
            ]
        widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
        return "\n".join(
            "  ".join([name.ljust(widths[0]), *map(str.rjust, line, widths[1:])]).rstrip() for name, *line in grid
        )

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
        scores = [round(other.scores[column], 2) for other in self.rows if column in other.scores]
        is_best = len(scores) > 1 and round(row.scores[column], 2) == max(scores)
        spread = f"\u00b1{row.deviations[column]:.2f}" if column in row.deviations else ""
        return f"{row.scores[column]:.2f}{spread}{'*' * is_best}"


def _short(value: object) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{key}={_short(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(value)
