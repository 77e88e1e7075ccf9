"""Processor time of ``fairseq-clear --help`` and of ``fairseq-clear COMMAND --help``, each in its own process.

The figures are medians of user and system time together, on which other load has less influence than on wall time.
"""

import resource
import subprocess
import sys
from pathlib import Path
from statistics import median

from results import finish, flags, row

from fairseq_clear.cli import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
FRONT_DOOR, COMMAND = 0.5, 1.0  # aims in seconds: fairseq-clear --help, fairseq-clear COMMAND --help


def main() -> None:
    """Time every command once in each run, and print the medians."""
    arguments = flags(__doc__)
    calls = [(), *((name,) for name in COMMANDS)]
    help_seconds("--help")  # the first call also writes the bytecode, so it is not counted
    runs = [[help_seconds(*call, "--help") for call in calls] for _ in range(arguments.repeats)]
    table = []
    for call, seconds in zip(calls, zip(*runs, strict=True), strict=True):
        what, aim = " ".join(("fairseq-clear", *call, "--help")), f"<= {COMMAND if call else FRONT_DOOR}"
        table.append(row(what, "s", round(median(seconds), 3), aim=aim))
    finish(table, arguments)


def help_seconds(*command: str) -> float:
    """Processor time of one call."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "fairseq_clear.cli", *command], cwd=ROOT, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
