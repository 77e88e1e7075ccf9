"""What the examples' measure.py share: train recipes for several seeds, score each, keep every run, make one table.

A run whose result is there already is not repeated, so an interrupted measurement goes on where it stopped.
"""

import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from fairseq.checkpoint_utils import load_checkpoint_to_cpu
from tqdm import tqdm

import fairseq_clear  # noqa: F401  (lets torch read checkpoints of fairseq)

PROJECT = Path(__file__).resolve().parent.parent
HYDRA = (sys.executable, "-W", "ignore", "-c", "from fairseq_cli.hydra_train import cli_main; cli_main()")


@dataclass(frozen=True)
class Recipe:
    """A config of an example, with what the measurement changes in it.

    Attributes:
        config: path of the YAML file.
        overrides: hydra's, an ablation (``+ablation=sg``) among them.
        pooling: of the scores; None for the checkpoint's.
        trains: False scores the checkpoint that the others start from.
    """

    config: Path
    overrides: tuple[str, ...] = ()
    pooling: str | None = None
    trains: bool = True


def measure(
    recipes: Mapping[str, Recipe],
    seeds: Sequence[int],
    output: Path,
    score: Callable[[Path, Recipe, int], dict[str, float]],
    overrides: Sequence[str] = (),
    start: Path | None = None,
) -> dict[str, list[dict[str, Any]]]:
    """Train and score every recipe with every seed.

    Args:
        recipes: name -> what to train.
        seeds: of each.
        output: a folder; ``NAME.SEED.json`` of each run, its log beside it, with ``_`` for what neither a file nor hydra likes.
        score: checkpoint, recipe, seed -> the numbers of a row.
        overrides: hydra's, of all runs.
        start: the checkpoint that runs which do not train are scored on.
    """
    output.mkdir(parents=True, exist_ok=True)
    runs = [(name, seed) for seed in seeds for name in recipes]
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in recipes}
    for name, seed in tqdm(runs, desc="runs"):
        result = output / f"{_stem(name, seed)}.json"
        if not result.exists():
            run = _run(name, recipes[name], seed, output, [*overrides, *recipes[name].overrides], score, start)
            temporary = result.with_suffix(".partial")
            temporary.write_text(json.dumps(run, indent=1) + "\n")
            os.replace(temporary, result)
        found[name].append(json.loads(result.read_text()))
    return found


def _run(
    name: str,
    recipe: Recipe,
    seed: int,
    output: Path,
    overrides: Sequence[str],
    score: Callable[[Path, Recipe, int], dict[str, float]],
    start: Path | None,
) -> dict[str, Any]:
    checkpoint, trained = (start, 0.0) if not recipe.trains else _train(name, recipe, seed, output, overrides)
    assert checkpoint is not None
    scores = score(checkpoint, recipe, seed)
    for file in (output / _stem(name, seed)).glob("*.pt"):
        file.unlink()  # many runs of many megabytes
    return {
        "name": name,
        "seed": seed,
        "scores": scores,
        "train_seconds": round(trained, 1),
        "overrides": list(overrides),
        "config": str(recipe.config.relative_to(PROJECT)),
        **provenance(),
    }


def _train(name: str, recipe: Recipe, seed: int, output: Path, overrides: Sequence[str]) -> tuple[Path, float]:
    """The checkpoint of one run, and how many seconds it took."""
    folder = output / _stem(name, seed)
    settings = [
        *(f"common.user_dir={PROJECT / 'fairseq_clear'}", f"common.seed={seed}"),
        *(f"checkpoint.save_dir={folder.resolve()}", f"hydra.run.dir={folder.resolve() / 'hydra'}"),
        *overrides,
    ]
    command = [*HYDRA, "--config-dir", str(recipe.config.parent), "--config-name", recipe.config.stem, *settings]
    began = time.monotonic()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(PROJECT), os.environ.get("PYTHONPATH", "")])}
    with open(folder.with_name(f"{folder.name}.log"), "w", encoding="utf-8") as log:
        subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=True, cwd=PROJECT, env=environment)
    trained = time.monotonic() - began
    return next(folder / f for f in ("checkpoint_best.pt", "checkpoint_last.pt") if (folder / f).exists()), trained


def _stem(name: str, seed: int) -> str:
    return f"{re.sub(r'[^A-Za-z0-9.-]+', '_', name)}.{seed}"


def sizes(checkpoint: Path) -> list[str]:
    """The sizes of an imported checkpoint as overrides of a recipe for another."""
    model = vars(load_checkpoint_to_cpu(str(checkpoint))["cfg"]["model"])
    names = (
        *("encoder_layers", "encoder_embed_dim", "encoder_ffn_embed_dim", "encoder_attention_heads", "activation_fn"),
        *("layer_norm_eps", "max_positions"),
    )
    return [f"++model.{name}={model[name]}" for name in names]


def provenance() -> dict[str, Any]:
    """Commit, machine and versions of a run."""
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=PROJECT)
    return {
        "commit": git.stdout.strip() or "unknown",
        "machine": f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads, CPU",
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def table(rows: Mapping[str, Sequence[Mapping[str, float]]], digits: int = 2) -> str:
    """Rows as Markdown: mean, and standard deviation where there are several; the best of each column in bold.

    Args:
        rows: name -> the numbers of each seed.
        digits: after the point.
    """
    columns = list(dict.fromkeys(column for runs in rows.values() for run in runs for column in run))
    means = {name: {c: mean(run[c] for run in runs) for c in columns if c in runs[0]} for name, runs in rows.items()}
    best = {c: max(found[c] for found in means.values() if c in found) for c in columns}
    lines = ["| | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for name, runs in rows.items():
        cells = []
        for column in columns:
            if column not in means[name]:
                cells.append("")
                continue
            text = f"{means[name][column]:.{digits}f}"
            text = f"**{text}**" if means[name][column] == best[column] else text
            spread = f" +- {stdev(run[column] for run in runs):.{digits}f}" if len(runs) > 1 else ""
            cells.append(text + spread)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
