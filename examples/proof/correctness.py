"""Correctness of contrastive training on two workers, after an interruption, and in half precision: ours and other libraries.

    python examples/proof/correctness.py [--peers FOLDER ...] [--output examples/proof/correctness.json]

Every library runs its own code on the same encoder, ``clear_roberta_tiny`` without dropout, and the same token batches, on gloo
workers. Those of other libraries are wrapped in DistributedDataParallel, as their users do; ours is fairseq's Trainer. SimCSE's
formula is that of its published code, written in correctness_work.py, not its package. Each measurement is a process of its
own; the message of one that fails is reported. The tables of docs/correctness.md are written too.
"""

import argparse
import json
import math
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "scripts"), str(ROOT / "examples")]

from check_tables import write  # noqa: E402
from correctness_work import BATCH, BY_TEXT, COPY, KILLED, OURS, PML, QUEUES, TEXTS, THEIRS, error, make_data  # noqa: E402
from measuring import processor  # noqa: E402

WORK, PAGE = Path(__file__).with_name("correctness_work.py"), ROOT / "docs" / "correctness.md"
PEERS = [ROOT / "build" / "bench-peers", ROOT / "build" / "proof" / "site-packages"]
LIMIT = 120  # seconds of a process
ALONE = [list(range(32))]
SHARES = {"16 + 16": [list(range(16)), list(range(16, 32))], "24 + 8": [list(range(24)), list(range(24, 32))]}
ZERO = 1e-6  # norm of a gradient
Row = dict[str, Any]
Call = Callable[..., Any]  # run, with the folder of the packages


def run(peers: Sequence[Path], size: int, function: str, *arguments: Any) -> Any:
    """What each of ``size`` workers returns of a function of correctness_work.py; a message if one fails."""
    print(function, *arguments[:1], f"({size})", flush=True)
    needs_peers = function in ("train_theirs", "sampler") or str(arguments[0]).startswith(PML)
    path = os.pathsep.join(str(folder.resolve()) for folder in peers) if needs_peers else ""
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(WORK), json.dumps([size, folder, function, arguments])],
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            start_new_session=True, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
        try:
            _, said = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return f"no end within {LIMIT} s"
        if process.returncode:
            return f"fails: {message_of(said) or f'exit status {process.returncode}'}"
        return [torch.load(f"{folder}/{rank}.pt", weights_only=False) for rank in range(size)]


def message_of(said: str) -> str:
    """The first message of an exception, of C++ or of Python, in the output of a process."""
    found = re.findall(r"what\(\): +(.*)|^[\w.]*Error: (.*)", said, flags=re.M)
    message = re.sub(r"^\[enforce fail at [^]]*/([^/]+)\] ", r"\1: ", "".join(found[0])) if found else ""
    return textwrap.shorten(message, 75, placeholder=" ...")


# The tables


def gradient_rows(call: Call, data: str) -> tuple[list[Row], list[Row]]:
    """Rows of the tables of gradients and of queues: 32 texts on two workers, compared with one worker."""
    gradients: list[Row] = []
    queues: list[Row] = []
    for system in (*OURS, *THEIRS):
        row: Row = {"system": system}
        has_queue = system in QUEUES  # which 32 other texts fill first
        alone = call(1, "update", system, data, [[[32 + text for text in ALONE[0]]], ALONE] if has_queue else [ALONE])
        for name, shares in SHARES.items():
            earlier = [[32 + text for text in share] for share in shares]
            both = call(2, "update", system, data, [earlier, shares] if has_queue else [shares])
            failed = [one for one in (alone, both) if isinstance(one, str)]
            if failed:
                row |= {f"{name}: relative error": failed[0], f"{name}: cosine": None}
                queues += [{"system": system, "texts": name, "vectors": failed[0]}] if has_queue else []
                continue
            found, expected = both[0]["gradient"], alone[0]["gradient"]
            row[f"{name}: relative error"] = error(found, expected)
            row[f"{name}: cosine"] = float(F.cosine_similarity(found.double(), expected.double(), dim=0))
            if has_queue:
                one, other = (worker["queue"] for worker in both)
                queues.append({
                    "system": system, "texts": name, "vectors": len(one),
                    "of those of one worker": sum(contains(alone[0]["queue"], one)),
                    "same vectors on both workers": all(contains(one, other)) and all(contains(other, one)),
                    "same order": one.shape == other.shape and bool((one - other).abs().max() < 1e-4),
                })  # fmt: skip
        gradients.append(row)
    without = [system for system in (*OURS, *THEIRS) if system not in QUEUES]
    return gradients, queues + [{"system": system, "vectors": "none"} for system in without]


def contains(some: Tensor, others: Tensor) -> list[bool]:
    """Whether each vector of the first is among the second, up to rounding."""
    nearest: list[bool] = (torch.cdist(some.double(), others.double()).amin(dim=1) < 1e-4).tolist()
    return nearest


def equal_rows(call: Call, data: str) -> list[Row]:
    """Rows of the table of equal texts: gradients of a batch of two texts, different ones or a text and its copy."""
    found = []
    for system in (*OURS, *THEIRS, *BY_TEXT):
        row: Row = {"system": system}
        for name, shares in (("one worker", [[[0, 1]], [[0, COPY]]]), ("two workers", [[[0], [1]], [[0], [COPY]]])):
            steps = [[share] * (1 + (system in QUEUES)) for share in shares]
            given = call(len(shares[0]), "updates", system, data, steps)
            if isinstance(given, str):
                row[f"{name}: the copy"] = given
                continue
            different, equal = (float(one["gradient"].norm()) for one in given[0])
            row |= {f"{name}: different texts": different, f"{name}: a text and its copy": equal}
            verdict = (
                "is a negative" if equal > ZERO else "is no negative" if different > ZERO else "no negatives at all"
            )
            row[f"{name}: the copy"] = verdict
        found.append(row)
    return found


def half_rows(call: Call) -> list[Row]:
    """Rows of the table of half precision."""
    found = []
    for system in (*OURS, *THEIRS):
        if "gather" in system or system.endswith("CrossBatchMemory"):  # the loss of another row
            continue
        row: Row = {"system": system}
        given = call(1, "half", system)
        for part in [{"length": 0, "loss": given}] if isinstance(given, str) else given[0]:
            name = f"length {part['length']:.0f}"
            row |= {f"{name}: loss finite": part["loss"], f"{name}: gradient finite": part.get("gradient")}
            row[f"{name}: relative error"] = part.get("error")
        found.append(row)
    return found


def resume_rows(call: Call, data: str, folder: Path) -> list[Row]:
    """Rows of the table of an interruption."""
    found: list[Row] = []
    for system, function in (("fairseq_clear", "train_ours"), ("sentence-transformers", "train_theirs")):
        whole, killed = folder / f"{function}.whole", folder / f"{function}.killed"
        for each in (whole, killed):
            each.mkdir()
        expected, _ = call(1, function, data, str(whole), 0), call(1, function, data, str(killed), KILLED)
        resumed = call(1, function, data, str(killed), 0)
        failed = [one for one in (expected, resumed) if isinstance(one, str)]
        if failed:
            found.append({"system": system, "weights": failed[0]})
            continue
        pairs = [(value, resumed[0][name]) for name, value in expected[0].items() if torch.is_tensor(value)]
        (_, undisturbed), (repeated, seen) = texts_of(whole), texts_of(killed)
        length = math.ceil((TEXTS + 1) / BATCH)  # updates of an epoch; the first two are whole
        epochs = [Counter(row for u in range(length) for row in seen[1 + e * length + u]) for e in (0, 1)]
        found.append({
            "system": system, "weights": sum(value.numel() for value, _ in pairs),
            "weights that differ": sum(int((value != other).sum()) for value, other in pairs),
            "updates": len(seen), "updates made twice": repeated,
            "updates with other texts": sum(seen[update] != texts for update, texts in undisturbed.items()),
            "texts seen twice in an epoch": sum(count > 1 for epoch in epochs for count in epoch.values()),
            "texts never seen in an epoch": sum(row not in epoch for epoch in epochs for row in range(TEXTS + 1)),
        })  # fmt: skip
    return found + [{"system": name, "weights": "a loss, no trainer"} for name in ("SimCSE's formula", PML[:-2])]


def texts_of(folder: Path) -> tuple[int, dict[int, list[int]]]:
    """How many updates were made twice; update -> texts of the run that led to the last weights."""
    lines = [json.loads(line) for line in (folder / "texts.jsonl").read_text(encoding="utf-8").splitlines()]
    found = {update: rows for update, *rows in lines}
    return len(lines) - len(found), found


def about(peers: Sequence[Path]) -> list[Row]:
    """Rows of the table of versions and of the machine."""
    git = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, cwd=ROOT)
    found = {"commit": git.stdout.strip(), "Python": platform.python_version()}
    found |= {
        name: metadata.version(name) for name in ("torch", "fairseq-fixed", "sentence-transformers", "transformers")
    }
    installed = {one.name: one.version for one in metadata.distributions(path=[str(folder) for folder in peers])}
    found |= {name: installed.get(name, "not installed") for name in (PML[:-2], "accelerate", "datasets")}
    found["machine"] = f"{processor()}, {os.cpu_count()} cores, CPU only"
    return [{"what": name, "version": value} for name, value in found.items()]


def main() -> None:
    """Measure, write the JSON and the tables of the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--peers", type=Path, nargs="+", default=PEERS, help="folders of make bench-peers and make proof"
    )
    parser.add_argument("--output", type=Path, default=Path(__file__).with_suffix(".json"), help="the JSON file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        call, data = partial(run, arguments.peers), make_data(Path(temporary))
        tables = {"about": about(arguments.peers), "resume": resume_rows(call, data, Path(temporary))}
        tables |= {"half": half_rows(call), "equal": equal_rows(call, data)}
        drawn = call(1, "sampler", data)
        tables["sampler"] = [{"epochs": drawn}] if isinstance(drawn, str) else drawn
        tables["gradient"], tables["queue"] = gradient_rows(call, data)
    arguments.output.write_text(json.dumps({"tables": tables}, indent=1) + "\n", encoding="utf-8")
    write(PAGE, ROOT)


if __name__ == "__main__":
    main()
