"""Trains CLEAR on 1, 2, 4 and 8 CPU workers; compares the bytes they send with the plan, and the losses with one worker's.

    python examples/clear/scaling/simulate.py --output simulation

All runs train on the same texts in each update, and encode at most about an eighth of them at a time. Writes simulation.json
and a plot, and prints a table. The exit status is 1 if a byte differs from the plan or a loss differs by more than 3e-5.
Seconds are not measured, because the workers share the cores of one machine.
"""

import argparse
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from measuring import PROJECT, provenance

from fairseq_clear.planning.costs import Recipe
from fairseq_clear.planning.machine import GPUS
from fairseq_clear.planning.metering import Collective
from fairseq_clear.planning.recipe import SYMBOLS, compose_recipe

HERE = Path(__file__).resolve().parent
CONFIG = HERE / "simulation.yaml"
TOLERANCE = 3e-5  # nats per masked token; sums are in another order, and differences of 6e-6 were measured
WORDS = 200
LONGEST = 29 + 2  # tokens of a sentence, <s> and </s> included
Exchanges = list[tuple[str, int]]


@dataclass(frozen=True)
class Run:
    """The record of a run.

    Attributes:
        workers: number of workers.
        texts: texts of a worker in an update.
        losses: name -> loss of each update, over all workers.
        exchanged: for each worker and update, the (operation, bytes) that the worker gave to collectives.
    """

    workers: int
    texts: int
    losses: dict[str, list[float]]
    exchanged: list[list[Exchanges]]

    @property
    def sent(self) -> float:
        """Bytes that the first worker sends around a ring in its last update."""
        return ring([Collective("", *one) for one in self.exchanged[0][-1]], self.workers)


def ring(exchanges: Sequence[Collective], workers: int) -> float:
    """Bytes that a worker sends around a ring for these collectives."""
    return sum(exchange.sent(workers) for exchange in exchanges)


def main() -> int:
    """Run, check, draw, print; return 1 if anything differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--output", required=True, type=Path, metavar="NAME", help="write NAME.json, NAME.png and NAME.svg"
    )
    parser.add_argument(
        "--workers",
        nargs="+",
        type=int,
        default=[1, 2, 4, 8],
        metavar="K",
        help="numbers of workers (default: 1 2 4 8)",
    )
    parser.add_argument(
        "--updates", type=int, default=20, metavar="N", help="updates of each run (default: %(default)s)"
    )
    args = parser.parse_args()
    if args.workers[0] != 1:
        parser.error("--workers: the first number must be 1, because the other runs are compared with it")
    if not args.output.parent.is_dir():
        parser.error(f"--output {args.output}: the folder {args.output.parent} does not exist; make it first")
    with tempfile.TemporaryDirectory() as folder:
        data = make_data(Path(folder), args.updates * batch_size())
        vocabulary = len((data / "dict.txt").read_text(encoding="utf-8").splitlines()) + SYMBOLS
        runs = [simulate(workers, args.updates, data, Path(folder)) for workers in args.workers]
    recipe = Recipe(compose_recipe(str(CONFIG)), vocabulary)
    mistakes = [mistake for run in runs for mistake in check(run, runs[0], recipe)]
    found = rows(runs, recipe)
    print(table(found))
    report: dict[str, Any] = {"updates": args.updates, "tolerance": TOLERANCE, "mistakes": mistakes, **provenance()}
    report["rows"] = found
    report["runs"] = [asdict(run) | {"planned": exchanges_of(recipe, run)} for run in runs]
    args.output.with_suffix(".json").write_text(json.dumps(report) + "\n")
    draw(runs, recipe, args.output)
    print(
        "\n".join(mistakes)
        or "every worker sends the planned bytes in every update; the losses equal those of one worker"
    )
    return 1 if mistakes else 0


def batch_size() -> int:
    """Texts of an update."""
    return int(compose_recipe(str(CONFIG))["dataset"]["batch_size"])


def make_data(folder: Path, texts: int) -> Path:
    """Binarize ``texts`` made-up sentences, in which the previous word determines most words."""
    rng = random.Random(1)
    follows = [rng.randrange(WORDS) for _ in range(WORDS)]
    lines = []
    for _ in range(texts):
        words = [rng.randrange(WORDS)]
        for _ in range(rng.randrange(7, LONGEST - 2)):
            words.append(follows[words[-1]] if rng.random() < 0.8 else rng.randrange(WORDS))
        lines.append(" ".join(f"w{word}" for word in words))
    (folder / "train.txt").write_text("\n".join(lines) + "\n")
    call = (sys.executable, "-W", "ignore", "-c", "from fairseq_cli.preprocess import cli_main; cli_main()")
    flags = ("--only-source", "--trainpref", str(folder / "train.txt"), "--destdir", str(folder / "bin"))
    subprocess.run([*call, *flags], check=True, capture_output=True)
    return folder / "bin"


def simulate(workers: int, updates: int, data: Path, folder: Path, worker: Path = HERE / "worker.py") -> Run:
    """Train with ``workers`` processes that connect through a file.

    Args:
        workers: number of workers; must divide the batch.
        updates: updates of the run.
        data: folder of ``make_data``, with one batch per update.
        folder: folder for the records.
        worker: script that each process runs.
    """
    everyone = batch_size()
    texts, at_a_time = everyone // workers, max(everyone // 8, 1)
    records = [folder / f"{workers}.{rank}.json" for rank in range(workers)]
    settings = [
        *(f"common.user_dir={PROJECT / 'fairseq_clear'}", f"task.data={data}", f"optimization.max_update={updates}"),
        *(f"dataset.batch_size={texts}", f"model.encode_chunk_size={LONGEST * at_a_time if texts > at_a_time else 0}"),
        *(f"hydra.run.dir={folder}", "hydra.output_subdir=null"),
    ]
    if workers > 1:
        meeting = f"distributed_training.distributed_init_method=file://{folder}/{workers}.{time.monotonic_ns()}"
        settings += [meeting, "distributed_training.distributed_no_spawn=true"]
        settings.append(f"distributed_training.distributed_world_size={workers}")
    call = (sys.executable, "-W", "ignore", str(worker))
    calls = [
        [*call, str(record), "--config-dir", str(HERE), "--config-name", CONFIG.stem, *settings]
        + ([f"distributed_training.distributed_rank={rank}"] if workers > 1 else [])
        for rank, record in enumerate(records)
    ]
    run_together(calls, [record.with_suffix(".log") for record in records])
    found = [json.loads(record.read_text()) for record in records]
    if any(len(one) != updates for one in found):
        raise SystemExit(f"{workers} workers: {[len(one) for one in found]} updates, expected {updates} each")
    losses = {name: [update[name] for update in found[0]] for name in ("loss", "mlm_loss", "contrastive_loss")}
    exchanged = [[[(name, size) for name, size in update["exchanged"]] for update in one] for one in found]
    return Run(workers, texts, losses, exchanged)


def run_together(calls: Sequence[Sequence[str]], logs: Sequence[Path]) -> None:
    """Run processes in parallel; if one fails, kill the others, which would wait for it."""
    path = os.pathsep.join([str(PROJECT), str(HERE), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    processes = []
    for call, log in zip(calls, logs, strict=True):
        with open(log, "w", encoding="utf-8") as output:
            processes.append(
                subprocess.Popen(call, stdout=output, stderr=subprocess.STDOUT, env=environment, cwd=PROJECT)
            )
    try:
        while True:
            states = [process.poll() for process in processes]
            for state, log in zip(states, logs, strict=True):
                if state:
                    raise SystemExit(f"a worker failed:\n{log.read_text()[-4000:]}")
            if None not in states:
                return
            time.sleep(0.1)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def exchanges_of(recipe: Recipe, run: Run) -> Exchanges:
    """The planned (operation, bytes) of each worker in an update."""
    planned = recipe.exchanges(run.texts, run.workers, backend="gloo")
    return sorted((one.operation, one.size) for one in planned for _ in range(one.times))


def check(run: Run, alone: Run, recipe: Recipe) -> list[str]:
    """Messages about bytes that differ from the plan, and about losses that differ from one worker's."""
    planned = exchanges_of(recipe, run)
    mistakes = [
        f"{run.workers} workers: worker {rank} in update {number + 1} gives {sorted(given)}, but the plan is {planned}"
        for rank, updates in enumerate(run.exchanged)
        for number, given in enumerate(updates)
        if sorted(given) != planned
    ]
    for number, away in enumerate(difference(run, alone)):
        if not away <= TOLERANCE:  # also true for NaN
            mistakes.append(f"{run.workers} workers: the loss of update {number + 1} differs by {away:.2g}")
    return mistakes


def difference(run: Run, alone: Run) -> list[float]:
    """Greatest difference of the loss and its two parts in each update."""
    pairs = [zip(values, alone.losses[name], strict=True) for name, values in run.losses.items()]
    # the key is needed because max may skip NaN
    return [
        max((abs(one - other) for one, other in update), key=lambda away: (math.isnan(away), away))
        for update in zip(*pairs, strict=True)
    ]


def rows(runs: Sequence[Run], recipe: Recipe) -> dict[str, dict[str, list[float]]]:
    """The numbers of the table: workers -> column -> one number, or none."""
    found = {}
    for run in runs:
        away = [] if run is runs[0] else [1e6 * max(difference(run, runs[0]))]
        planned = ring(recipe.exchanges(run.texts, run.workers, backend="gloo"), run.workers)
        found[f"{run.workers}"] = {
            "texts each": [run.texts],
            "given, B": [sum(size for _, size in run.exchanged[0][-1])],
            "sent around a ring, B": [run.sent],
            "planned, B": [planned],
            "first loss": [run.losses["loss"][0]],
            "last loss": [run.losses["loss"][-1]],
            "differs by, 1e-6": away,
        }
    return found


def table(rows: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """The Markdown table, with a row for each number of workers."""
    columns = list(rows["1"])
    lines = [f"| workers | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for workers, cells in rows.items():
        digits = {column: 6 if "loss" in column else 1 if "differs" in column else 0 for column in columns}
        shown = (" ".join(f"{value:,.{digits[column]}f}" for value in cells[column]) for column in columns)
        lines.append(f"| {workers} | {' | '.join(shown)} |")
    return "\n".join(lines)


def draw(runs: Sequence[Run], recipe: Recipe, path: Path) -> None:
    """Draw counted and planned bytes, the losses of all runs, and their differences."""
    from picture import draw_simulation

    texts = runs[0].texts
    line = [(gpus, max(texts // gpus, 1)) for gpus in GPUS if gpus > 1]
    planned = [(gpus, ring(recipe.exchanges(each, gpus, backend="gloo"), gpus)) for gpus, each in line]
    draw_simulation(
        path,
        planned=planned,
        last_of_same_batch=texts,
        measured=[(run.workers, run.sent) for run in runs if run.workers > 1],
        losses={run.workers: run.losses["loss"] for run in runs},
        differences={run.workers: difference(run, runs[0]) for run in runs[1:]},
        tolerance=TOLERANCE,
    )


if __name__ == "__main__":
    sys.exit(main())
