"""Kills commands with SIGKILL many times, reruns them, and compares the results with those of an undisturbed run.

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

from tests.conftest import run as call
from tests.conftest import sentences, tool
from tests.faults.commands import (
    Instants,
    contents,
    fairseq_clear_command,
    fairseq_train,
    run,
    run_and_kill,
    same,
    state_of,
    stock_files,
)
from tests.preparation.back_translation.archives import make_archive
from tests.preparation.corpora import write_corpus

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


def data_folder(folder: Path) -> Path:
    """A data folder of 120 sentences, as fairseq-preprocess makes it."""
    folder.mkdir()
    for split, count, seed in (("train", 120, 1), ("valid", 20, 2)):
        (folder / f"{split}.txt").write_text("\n".join(sentences(count, seed)) + "\n")
    texts = (
        *("--only-source", "--trainpref", folder / "train.txt", "--validpref", folder / "valid.txt"),
        *("--workers", "1"),
    )
    call(*tool("preprocess"), *texts, "--destdir", folder / "bin")
    return folder / "bin"


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

    def at_instant(self, row: Row, instant: int) -> None:
        """Kill it while it changes the disk for the n-th time."""
        folder = self._folder()
        code = run(self._work(folder), self.base / "log", arm=self._arm(Instants(folder, instant)))
        self._go_on(row, folder, code)

    def at_random(self, row: Row) -> None:
        """Kill it at a random time from its start to its end."""
        folder = self._folder()
        code = run_and_kill(self._work(folder), self.base / "log", self.draw.uniform(0, self.seconds))
        self._go_on(row, folder, code)

    def _folder(self) -> Path:
        folder = self.base / "killed"
        shutil.rmtree(folder, ignore_errors=True)
        return folder

    def _go_on(self, row: Row, folder: Path, code: int) -> None:
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


class Command:
    """A command of fairseq-clear that makes one file or folder, killed up to twice and rerun."""

    def __init__(self, base: Path, arguments: Callable[[Path], list[object]], draw: random.Random) -> None:
        self.base, self.arguments, self.draw = base, arguments, draw
        base.mkdir()
        began = time.monotonic()
        code = run(self._work(base / "made"), base / "log")
        self.seconds = time.monotonic() - began
        assert code == 0, (base / "log").read_text()[-3000:]
        self.expected = self._made(base / "made")

    def _work(self, made: Path) -> Callable[[], int]:
        return partial(fairseq_clear_command, *self.arguments(made))

    def _made(self, path: Path) -> object:
        return contents(path) if path.is_dir() else path.read_bytes()

    def at_random(self, row: Row) -> None:
        """Kill it at a random time, and if it had not finished, a second time in the rerun."""
        made = self.base / "made"
        for path in self.base.glob("*made*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for _ in range(2):
            code = run_and_kill(self._work(made), self.base / "log", self.draw.uniform(0, self.seconds))
            if code != KILLED:
                row.seen["had ended"] += 1
                break
            row.kills += 1
            if made.exists():  # then it must be complete
                row.seen["complete output"] += 1
                row.wrong += self._made(made) != self.expected
                break
            row.seen["no output"] += 1
        code = 0 if made.exists() else run(self._work(made), self.base / "log")
        row.wrong += code != 0 or self._made(made) != self.expected
        row.wrong += len(list(self.base.glob("*partial*"))) > 0  # a successful run removes its partial files


def main() -> int:
    """Run the campaign; return 0 if no result differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    kinds = ("train", "instants", "stock", "prepare", "back-translate")
    parser.add_argument("--what", nargs="+", choices=kinds, default=kinds, help="default: all")
    parser.add_argument("--kills", type=int, default=20, help="trials of each (default: 20)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the random times and instants (default: 1)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    draw = random.Random(args.seed)
    rows = []
    with tempfile.TemporaryDirectory(prefix="faults-") as made:
        base = Path(made)
        data = data_folder(base / "data") if set(args.what) & {"train", "instants", "stock"} else base
        for what in args.what:
            rows.append(campaign(what, base / what, data, draw, args.kills))
            print(rows[-1], file=sys.stderr, flush=True)
    print("| killed | kills | state after the kill | results that differ from an undisturbed run |\n|---|---|---|---|")
    print("\n".join(map(str, rows)))
    return int(any(row.wrong for row in rows if "own files" not in row.fault))


def campaign(what: str, base: Path, data: Path, draw: random.Random, kills: int) -> Row:
    """Run ``kills`` trials of one kind and return their row."""
    if what in ("prepare", "back-translate"):
        row = Row(f"fairseq-clear {what}, at any time")
        command = Command(base, arguments_of(what, base.parent), draw)
        for _ in range(kills):
            command.at_random(row)
        return row
    base.mkdir()
    training = Training(base, data, draw, stock=what == "stock")
    if what == "train":
        row = Row("fairseq-train, at any time")
        for _ in range(kills):
            training.at_random(row)
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
        training.at_instant(row, instant)
    return row


def arguments_of(what: str, base: Path) -> Callable[[Path], list[object]]:
    """The command line that makes a path."""
    if what == "prepare":
        text = write_corpus(base / "corpus.txt", 60)
        return lambda made: ["prepare", text, "--dest", made, "--vocab-size", 300, "--workers", 2]
    for source, target in (("en", "de"), ("de", "en")):
        make_archive(base / f"{source}-{target}", source, target)
    text = base / "text"
    text.write_text("".join(f"the cat sat {number} .\n" for number in range(24)))
    models = ["--forward", base / "en-de", "--backward", base / "de-en", "--chunk-lines", 4]
    return lambda made: ["back-translate", "--input", text, "--output", made, *models, "--max-len-b", 10]


if __name__ == "__main__":
    raise SystemExit(main())
