"""Run benchmarks, each in its own process, and write one table and one JSON file.

    python scripts/bench [NAME ...] [--output build/bench] [--peers build/bench-peers] [-- FLAGS OF THE ONE BENCHMARK]

NAME is one of BENCHES (default: all). A benchmark that fails gives a row with the error, the others still run, and the exit
status is 1. ``OUTPUT.json`` and ``OUTPUT.md`` are rewritten after each benchmark, so an interrupted run keeps its results, and
those of benchmarks that are not run are kept.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from results import markdown

FOLDER = Path(__file__).resolve().parent
# In the order of the table. Without gpu.py, which gpu.sh runs.
BENCHES = (
    "clear_step",
    "sentence_transformers_step",
    "nt_xent",
    "views",
    "encode",
    "clear_hf",
    "prepare",
    "growth",
    "criterions",
    "longformer",
    "retrieval",
    "startup",
)
KEPT_OF_ERRORS = 2_000  # last characters of the output


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmarks; return 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(BENCHES)} (default: all)")
    parser.add_argument("--output", type=Path, default=Path("build/bench"), help="write OUTPUT.json and OUTPUT.md")
    parser.add_argument("--peers", type=Path, default=Path("build/bench-peers"), help="folder made by make bench-peers")
    given = list(sys.argv[1:] if arguments is None else arguments)
    split = given.index("--") if "--" in given else len(given)
    known, flags = parser.parse_args(given[:split]), given[split + 1 :]
    for name in known.names:
        if name not in BENCHES:
            parser.error(f"{name}: no such benchmark; choose from {', '.join(BENCHES)}")
    if flags and len(known.names) != 1:
        parser.error("flags after -- belong to one benchmark: name exactly one")
    file, names = known.output.with_suffix(".json"), known.names or BENCHES
    results: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))["results"] if file.exists() else {}
    for name in names:
        told = [Path(flag).name if Path(flag).exists() else flag for flag in flags]  # not the folders of this machine
        results[name] = {"flags": told, "machine": machine(), **run(FOLDER / f"{name}.py", flags, known.peers)}
        results = {other: results[other] for other in BENCHES if other in results}
        keep(results, known.output)
    print(markdown(results), end="")
    return int(any("failed" in results[name] for name in names))


def run(script: Path, flags: Sequence[str], peers: Path) -> dict[str, Any]:
    """Run a benchmark; return the JSON of its last line, or ``{"failed": its last message}`` if it fails.

    The other output of the benchmark goes to standard error, so that standard output holds only the table.
    """
    path = os.pathsep.join(filter(None, (str(peers.resolve()), os.environ.get("PYTHONPATH"))))
    began, last = time.monotonic(), ""
    print(f"{script.stem} ...", file=sys.stderr, flush=True)
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", str(script), *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    ) as process:
        assert process.stdout is not None
        said = ""
        for line in process.stdout:
            if line.startswith("{"):
                last = line
            else:
                print(f"  {line}", end="", file=sys.stderr, flush=True)
                said = (said + line)[-KEPT_OF_ERRORS:]
    if process.returncode == 0:
        try:
            return {**json.loads(last), "seconds": round(time.monotonic() - began, 1)}
        except ValueError:
            said = f"{script.name} ended without a line of JSON"
    return {"failed": said.strip().splitlines()[-1] if said.strip() else f"exit status {process.returncode}"}


def keep(results: Mapping[str, Any], output: Path) -> None:
    """Write the JSON and the Markdown file."""
    output.parent.mkdir(parents=True, exist_ok=True)
    content = json.dumps({"results": results}, indent=1)
    output.with_suffix(".json").write_text(f"{content}\n", encoding="utf-8")
    output.with_suffix(".md").write_text(markdown(results), encoding="utf-8")


def machine() -> dict[str, Any]:
    """Commit, date, processor and versions of a run."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=FOLDER, capture_output=True, text=True)
    return {
        "commit": commit.stdout.strip() or "unknown",
        "date": time.strftime("%Y-%m-%d"),
        "cpu": processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "unset"),
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
    }


def processor() -> str:
    """The name of the processor, as far as the system tells it."""
    try:
        found = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    except OSError:
        found = []
    return found[0].partition(":")[2].strip() if found else platform.processor()


if __name__ == "__main__":
    sys.exit(main())
