"""Reads the statistics in a log of fairseq-train: ``--log-format`` simple, tqdm or json, printed or in ``--log-file``."""

import json
import re
from pathlib import Path

from fairseq_clear.errors import UserError
from fairseq_clear.files import CorpusFile, read_text_lines

# fairseq/logging/progress_bar.py writes, after a header or none:
#   json             {"epoch": 1, "update": 0.1, "loss": "4.2", ..., "num_updates": "10", ...}
#                    {"epoch": 1, "valid_loss": "4.2", ..., "valid_num_updates": "10", ...}
#   simple           epoch 001:     10 / 200 loss=4.2, ..., num_updates=10, ...
#   simple and tqdm  epoch 001 | valid on 'valid' subset | loss 4.2 | ... | num_updates 10 | ...
#                    epoch 001 | loss 4.2 | ... | num_updates 10 | ...
_JSON = re.compile(r"\{\"epoch\": [^{]*\}$")  # of a line that was cut off by the end of a run, the next one
_TEXT = re.compile(r"epoch \d+(:\s+\d+ / \d+ | \| (?:valid on '(.+?)' subset \| )?)(.*)$")
_VALUE = re.compile(r"(\w+)[= ](\S+?)(?:, | \| |$)")
_NUMBER = re.compile(r"-?\d+(?:\.\d*)?(?:e[+-]?\d+)?")  # neither inf nor nan
Records = dict[str, dict[float, dict[str, float]]]


def read_log(path: Path) -> Records:
    """Read a log of fairseq-train or fairseq-hydra-train: the output of the run, or its ``--log-file``.

    Returns:
        Part (``train_inner``, ``train``, ``valid``, ...) -> number of updates -> name without the part -> value. If an update
        was logged twice, as after resuming, the later record counts.

    Raises:
        UserError: a missing file, or one without statistics.
    """
    lines = read_text_lines(path)
    if not CorpusFile(path).compression and not path.read_bytes().endswith(b"\n"):
        lines = lines[:-1]  # the last line of a running run may be incomplete
    records: Records = {}
    for line in lines:
        values, part = {}, "train_inner"
        if match := _JSON.search(line):
            try:
                values = json.loads(match[0])
            except ValueError:  # a run that was killed left half a record
                continue
            prefix = next((key.removesuffix("num_updates") for key in values if key.endswith("num_updates")), "")
            part, values = prefix[:-1] or part, {key.removeprefix(prefix): value for key, value in values.items()}
        elif match := _TEXT.search(line):
            part, values = match[2] or ("train" if "|" in match[1] else part), dict(_VALUE.findall(match[3]))
        numbers = {name: float(value) for name, value in values.items() if _NUMBER.fullmatch(str(value))}
        if "num_updates" in numbers:
            records.setdefault(part, {})[numbers["num_updates"]] = numbers
    if not records:
        raise UserError(f"{path}: holds no training statistics; give a log written with --log-format simple or json")
    return records
