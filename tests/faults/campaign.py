"""Kills fairseq-train with SIGKILL many times, reruns it, and compares the results with those of an undisturbed run.

``python -m tests.faults.campaign --kills 20`` prints a table; the exit status is 1 if a result differs.
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch

from tests.conftest import make_data_bin
from tests.faults.commands import Instants, fairseq_train, run, run_and_kill, same, state_of, stock_files

LAST = "checkpoint_last.pt"
KILLED = -9


@dataclass
class Row:
    """A line of the table."""

    fault: str
    kills: int = 0
    seen: Counter[str] = field(default_factory=Counter)
    wrong: int = 0

    def __str__(self) -> str:
        seen = ", ".join(f"{text}: {count}" for text, count in sorted(self.seen.items()))
        return f"| {self.fault} | {self.kills} | {seen} | {self.wrong} |"


class Training:
    """fairseq-train, killed once and rerun."""

    def __init__(self, base: Path, data: Path, draw: random.Random, stock: bool = False) -> None:
        self.base, self.data, self.draw, self.stock = base, data, draw, stock
        self.whole, passed = base / "whole", base / "passed"
        began = time.monotonic()
        code = run(self._work(self.whole), base / "log", arm=self._arm(Instants(self.whole, 0, passed)))
        self.seconds, self.instants = time.monotonic() - began, passed.read_text().splitlines()
        assert code == 0, (base / "log").read_text()[-3000:]
        self.expected = state_of(self.whole / LAST)

    def _work(self, folder: Path) -> Callable[[], int]:
        return partial(fairseq_train, self.data, folder)

    def _arm(self, instants: Instants | None = None) -> Callable[[], None]:
        def arm() -> None:
            if self.stock:
                stock_files()
            if instants:
                instants()

        return arm

    def kill(self, row: Row, instant: int | None = None) -> None:
        """Kill it while it changes the disk for the n-th time, or at a random time from its start to its end; and rerun it."""
        folder, log = self.base / "killed", self.base / "log"
        shutil.rmtree(folder, ignore_errors=True)
        if instant is None:
            code = run_and_kill(self._work(folder), log, self.draw.uniform(0, self.seconds))
        else:
            code = run(self._work(folder), log, arm=self._arm(Instants(folder, instant)))
        row.kills += code == KILLED
        last = folder / LAST
        if code != KILLED:
            row.seen["had ended" if code == 0 else f"exit {code}"] += 1
        elif not last.exists():
            row.seen["started from scratch"] += 1
        else:
            try:
                updates = torch.load(last, weights_only=True)["optimizer_history"][-1]["num_updates"]
                row.seen["resumed"] += 1
                row.wrong += updates % 3 != 0 and updates not in (15, 20)
            except Exception:
                row.seen["truncated checkpoint_last.pt"] += 1
        code = run(self._work(folder), self.base / "log", arm=self._arm())
        equal = code == 0 and same(state_of(folder / LAST), self.expected)
        equal = equal and sorted(path.name for path in folder.iterdir()) == sorted(p.name for p in self.whole.iterdir())
        row.wrong += not equal


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    kinds = ("train", "instants", "stock")
    parser.add_argument("--what", nargs="+", choices=kinds, default=kinds, help="default: all")
    parser.add_argument("--kills", type=int, default=20, help="trials of each (default: 20)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the random times and instants (default: 1)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    draw = random.Random(args.seed)
    rows = []
    with tempfile.TemporaryDirectory(prefix="faults-") as made:
        base = Path(made)
        data = make_data_bin(base)
        for what in args.what:
            rows.append(campaign(what, base / what, data, draw, args.kills))
            print(rows[-1], file=sys.stderr, flush=True)
    print("| killed | kills | state after the kill | results that differ from an undisturbed run |\n|---|---|---|---|")
    print("\n".join(map(str, rows)))
    return int(any(row.wrong for row in rows if "own files" not in row.fault))


def campaign(what: str, base: Path, data: Path, draw: random.Random, kills: int) -> Row:
    """Run ``kills`` trials of one kind and return their row."""
    base.mkdir()
    training = Training(base, data, draw, stock=what == "stock")
    if what == "train":
        row = Row("fairseq-train, at any time")
        for _ in range(kills):
            training.kill(row)
        return row
    instants = range(1, len(training.instants) + 1)
    copying = [instant for instant in instants if LAST in training.instants[instant - 1]]
    # half of them while checkpoint_last.pt is copied; with fairseq's own writing, all of them
    chosen = draw.sample(copying, kills if what == "stock" else (kills + 1) // 2)
    others = [instant for instant in instants if instant not in chosen]
    chosen += draw.sample(others, kills - len(chosen))
    stage = "while it copies, with fairseq's own files" if what == "stock" else "while it saves"
    row = Row(f"fairseq-train, {stage}: of {len(copying if what == 'stock' else instants)} instants")
    for instant in chosen:
        training.kill(row, instant)
    return row


if __name__ == "__main__":
    raise SystemExit(main())
