"""Weak scaling on gloo workers of one machine, and what ``fairseq-clear plan`` says of the same runs.

    python examples/proof/scaling.py [--workers 1 2 4] [--batch 32] [--updates 10 60] [--output examples/proof/scaling.json]

Each run is ``fairseq-hydra-train`` of one recipe on random sentences, with the same number of texts on every worker and one
thread each. What an update costs is the difference of two runs of different length, so that the start and the checkpoint
cancel out. "Without communication" are as many runs of one worker at the same time: they share the cores as the workers do.
Bytes are those that the loopback device sent, which all workers use; nothing else should use it meanwhile. Memory is the
largest resident size of a process, of which the difference between two batch sizes is compared. The tables of
docs/many-gpus.md are written too.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "scripts"), str(ROOT / "scripts" / "bench")]

from check_tables import write  # noqa: E402
from measuring import provenance  # noqa: E402
from steps import make_text  # noqa: E402

from fairseq_clear.files import write_json  # noqa: E402
from fairseq_clear.plan import Plan, Recipe, make_plan, read_recipe  # noqa: E402

CONFIG, PAGE = ROOT / "examples/clear/config/tiny.yaml", ROOT / "docs" / "many-gpus.md"
Row = dict[str, Any]


def main() -> None:
    """Measure, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4], help="1 comes first")
    parser.add_argument("--batch", type=int, default=32, help="texts of a worker")
    parser.add_argument("--updates", type=int, nargs=2, default=[10, 60], help="lengths of the two runs")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_suffix(".json"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = make_text(folder, 6_000, (10, 60))
        overrides = [f"task.data={data}", f"common.user_dir={ROOT / 'fairseq_clear'}", "dataset.num_workers=0"]
        tables = tables_of(arguments, folder, overrides, data)
    about = {**provenance(), "machine": f"{os.cpu_count()} cores, one thread a worker, CPU, gloo"}
    rows = [{"what": what, "value": value} for what, value in about.items()]
    write_json(arguments.output, {"tables": {"about": rows, **tables}}, flag="--output")
    write(PAGE, ROOT)
    print(json.dumps(tables, indent=1))


def tables_of(arguments: argparse.Namespace, folder: Path, overrides: list[str], data: Path) -> dict[str, list[Row]]:
    """The rows of both tables."""
    batch, lengths = arguments.batch, arguments.updates
    scaling: list[Row] = []
    for size in arguments.workers:
        short, long = (run(folder, overrides, size, batch, updates) for updates in lengths)
        plan = planned(overrides, data, size, batch)
        count = lengths[1] - lengths[0]
        second = (long["seconds"] - short["seconds"]) / count
        alone = second
        if size > 1:
            one, other = (run(folder, overrides, size, batch, updates, together=False) for updates in lengths)
            alone = (other["seconds"] - one["seconds"]) / count
        sent = (long["bytes"] - short["bytes"]) / count / size / 2**20
        scaling.append({
            "workers": size, "texts": size * batch, "s/update": second, "without communication": alone,
            "share of communication": max(0.0, 1 - alone / second), "sent by a worker, MiB": sent,
            "sent, plan": plan.sent / 2**20, "GFLOP of a worker, plan": plan.flops / 1e9,
            "GFLOP/s of a worker": plan.flops / second / 1e9,
        })  # fmt: skip
        print(scaling[-1], flush=True)
    memory: list[Row] = []
    small, large = batch, 4 * batch
    sizes = {texts: run(folder, overrides, 1, texts, lengths[0])["resident"] / 2**20 for texts in (small, large)}
    plans = {texts: planned(overrides, data, 1, texts).activations / 2**20 for texts in (small, large)}
    memory.append({
        "texts": f"{large} minus {small}", "resident size, MiB": sizes[large] - sizes[small],
        "activations, plan": plans[large] - plans[small],
    })  # fmt: skip
    return {"scaling": scaling, "memory": memory}


def planned(overrides: list[str], data: Path, workers: int, batch: int) -> Plan:
    """What ``plan`` says of a run."""
    recipe = Recipe(read_recipe(str(CONFIG), overrides, str(data)))
    return make_plan(recipe, workers, 2**40, 1e12, workers * batch)


def run(
    folder: Path, overrides: list[str], workers: int, batch: int, updates: int, *, together: bool = True
) -> dict[str, float]:
    """Train with this number of workers, or as many trainings of one worker side by side; return what it cost."""
    words = [
        "--config-dir", str(CONFIG.parent), "--config-name", CONFIG.stem, *overrides, f"dataset.batch_size={batch}",
        f"optimization.max_update={updates}", "checkpoint.no_save=true", "dataset.disable_validation=true",
    ]  # fmt: skip
    torchrun = ("torch.distributed.run", "--standalone", "--nproc-per-node", str(workers), "-m")
    command = [sys.executable, "-m", *(torchrun if together and workers > 1 else ()), "fairseq_cli.hydra_train", *words]
    # memory that is freed goes back to the system, so that the resident size is what is needed
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "PYTHONPATH": str(ROOT)}
    began, sent, resident = time.monotonic(), loopback(), 0
    started = []
    for number in range(1 if together else workers):
        own = [f"hydra.run.dir={folder / f'hydra-{number}'}", f"checkpoint.save_dir={folder / f'save-{number}'}"]
        path = folder / f"{number}.log"
        with open(path, "w") as log:
            process = subprocess.Popen([*command, *own], stdout=log, stderr=log, env=environment, cwd=ROOT)
        started.append((process.pid, path))
    for pid, path in started:
        _, status, used = os.wait4(pid, 0)
        if status:
            raise SystemExit(f"{' '.join(command)} failed:\n{path.read_text()[-2000:]}")
        resident = max(resident, used.ru_maxrss * 1024)
    return {"seconds": time.monotonic() - began, "bytes": loopback() - sent, "resident": resident}


def loopback() -> int:
    """Bytes that the loopback device has sent since the machine started."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    (line,) = [line for line in lines if line.strip().startswith("lo:")]
    return int(line.split(":")[1].split()[8])


if __name__ == "__main__":
    main()
