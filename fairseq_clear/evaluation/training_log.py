"""Reads the statistics in a log of fairseq-train: ``--log-format`` simple, tqdm or json, printed or in ``--log-file``."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from fairseq_clear.errors import UserError
from fairseq_clear.files import read_text_lines

__all__ = ["Records", "read_log"]

# fairseq/logging/progress_bar.py writes these lines, after a header of fairseq-train or hydra (none with --log-file):
#   json             {"epoch": 1, "update": 0.1, "loss": "4.2", ..., "num_updates": "10", ...}
#                    {"epoch": 1, "valid_loss": "4.2", ..., "valid_num_updates": "10", ...}
#   simple           epoch 001:     10 / 200 loss=4.2, ..., num_updates=10, ...
#   simple and tqdm  epoch 001 | valid on 'valid' subset | loss 4.2 | ... | num_updates 10 | ...
#                    epoch 001 | loss 4.2 | ... | num_updates 10 | ...
_LINE = re.compile(
    r"(?:^|INFO \| \S+ \| |\[INFO\] - )"
    r"(?:(?P<json>\{\".*)|epoch \d+(?::\s+\d+ / \d+ (?P<inner>.*)| \| (?:valid on '(?P<subset>.+?)' subset \| )?(?P<end>.*)))$"
)
_UPDATES = "num_updates"
Records = dict[str, dict[float, dict[str, float]]]


def read_log(path: Path) -> Records:
    """Read a log of fairseq-train or fairseq-hydra-train: the output of the run, or its ``--log-file``.

    Returns:
        Part (``train_inner``, ``train``, ``valid``, ...) -> number of updates -> name without the part -> value. The later
        record counts if an update was logged twice, as after resuming.

    Raises:
        UserError: the file is missing or holds no statistics.
    """
    lines = read_text_lines(path)
    if not path.read_bytes().endswith(b"\n"):
        lines = lines[:-1]  # the last line of a running run may be incomplete
    records: Records = {}
    for match in filter(None, map(_LINE.search, lines)):
        with suppress(ValueError):  # a run that was killed may have left half a record
            part, values = _read_statistics(match)
            numbers = dict(_numbers(values))
            if _UPDATES in numbers:
                records.setdefault(part, {})[numbers[_UPDATES]] = numbers
    if not records:
        raise UserError(
            f"{path}: holds no training statistics; give the log of a fairseq-train run with --log-format simple or json "
            "(--log-format none writes no statistics)"
        )
    return records


def _read_statistics(match: re.Match[str]) -> tuple[str, Mapping[str, object]]:
    """Return the part and the statistics of a matched line; ValueError if the JSON is cut off."""
    if match["json"]:
        record = json.loads(match["json"])
        prefix = next((key.removesuffix(_UPDATES) for key in record if key.endswith(f"_{_UPDATES}")), "")
        return prefix.removesuffix("_") or "train_inner", {key.removeprefix(prefix): v for key, v in record.items()}
    if match["inner"]:
        return "train_inner", dict(field.split("=", 1) for field in match["inner"].split(", ") if "=" in field)
    return match["subset"] or "train", dict(f.split(" ", 1) for f in match["end"].split(" | ") if " " in f)


def _numbers(values: Mapping[str, object]) -> Iterator[tuple[str, float]]:
    """Yield the values that are finite numbers, converted from fairseq's text."""
    for name, value in values.items():
        with suppress(TypeError, ValueError):
            if math.isfinite(number := float(value)):  # type: ignore[arg-type]
                yield name, number
