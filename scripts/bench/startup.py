"""Processor time of ``fairseq-clear --help`` and of ``fairseq-clear COMMAND --help``, each in its own process.

The figures are medians of user and system time together, on which other load has less influence than on wall time.
"""

import argparse
import resource
import subprocess
import sys
from pathlib import Path
from statistics import median

from results import finish, row

from fairseq_clear.cli import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
FRONT_DOOR, COMMAND = 0.5, 1.0  # aims in seconds: fairseq-clear --help, fairseq-clear COMMAND --help


def main() -> None:
    """Time every command once in each run, and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, metavar="N", help="number of runs (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the result to this file")
    arguments = parser.parse_args()
    calls = [(), *((name,) for name in COMMANDS)]
    help_seconds("--help")  # the first call also writes the bytecode, so it is not counted
    runs = [[help_seconds(*call, "--help") for call in calls] for _ in range(arguments.runs)]
    table = [
        row(
            " ".join(("fairseq-clear", *call, "--help")), "s", round(median(seconds), 3),
            aim=f"<= {COMMAND if call else FRONT_DOOR}",
        )
        for call, seconds in zip(calls, zip(*runs, strict=True), strict=True)
    ]  # fmt: skip
    finish({"table": table}, arguments.json)


def help_seconds(*command: str) -> float:
    """Processor time of one call."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "fairseq_clear.cli", *command], cwd=ROOT, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
