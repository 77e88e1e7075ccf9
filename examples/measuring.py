"""Shared by the measure.py of the examples: train recipes with several seeds, score each run, save the results, make a table.

A run whose result exists already is not repeated, so an interrupted measurement resumes where it stopped.
"""

import json
import lzma
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
from tqdm import tqdm

from fairseq_clear.evaluation.topics import REMOVALS, read_topics
from fairseq_clear.patches.checkpoint_files import read_checkpoint

PROJECT = Path(__file__).resolve().parent.parent
# Overrides of a recipe: sizes for one CPU core, and settings that leave the initial weights unchanged.
TINY = tuple(
    f"++model.encoder_{name}={value}"
    for name, value in {"layers": 2, "embed_dim": 128, "ffn_embed_dim": 512, "attention_heads": 2}.items()
)
UNTRAINED = ("optimization.max_update=1", "optimization.lr=[0.0]", "++optimizer.lr=[0.0]")
HYDRA = (sys.executable, "-W", "ignore", "-c", "from fairseq_cli.hydra_train import cli_main; cli_main()")


@dataclass(frozen=True)
class Recipe:
    """A config of an example, with the changes of the measurement.

    Attributes:
        config: path of the YAML file.
        overrides: hydra overrides, including an ablation (``+ablation=sg``).
        pooling: pooling for the scores; None for the checkpoint's.
        trains: if False, the checkpoint that the other runs start from is scored instead.
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
        recipes: name -> recipe.
        seeds: seeds of every recipe.
        output: folder for ``NAME.SEED.json`` and the log of each run; special characters of NAME become ``_``.
        score: checkpoint, recipe, seed -> the numbers of a row.
        overrides: hydra overrides of all runs.
        start: the checkpoint to score for recipes that do not train.

    Returns:
        Name -> the results of its seeds, as in the JSON files.
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
        file.unlink()  # checkpoints of many runs would fill the disk
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
    """Train one run; return its checkpoint and the seconds that it took."""
    folder = output / _stem(name, seed)
    settings = [
        *(f"common.user_dir={PROJECT / 'fairseq_clear'}", f"common.seed={seed}"),
        *(f"checkpoint.save_dir={folder.resolve()}", f"hydra.run.dir={folder.resolve() / 'hydra'}"),
        *overrides,
    ]
    command = [*HYDRA, "--config-dir", str(recipe.config.parent), "--config-name", recipe.config.stem, *settings]
    began = time.monotonic()
    with open(folder.with_name(f"{folder.name}.log"), "w", encoding="utf-8") as log:
        subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=True, cwd=PROJECT, env=_environment())
    trained = time.monotonic() - began
    return next(folder / f for f in ("checkpoint_best.pt", "checkpoint_last.pt") if (folder / f).exists()), trained


def _environment() -> dict[str, str]:
    """Environment variables with this project first on Python's path."""
    others = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(PROJECT), *([others] if others else [])])}


def clear(*command: object) -> None:
    """Run a command of this project's fairseq-clear from any folder; if it fails, exit with the end of its output."""
    # -P: otherwise -m looks in the working directory first, which may hold another checkout
    words: Sequence[str] = [sys.executable, "-P", "-W", "ignore", "-m", "fairseq_clear.cli", *map(str, command)]
    done = subprocess.run(words, capture_output=True, text=True, env=_environment())
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")


def prepare_documents(corpora: Path, names: Sequence[str], folder: Path, tokenizer: Sequence[object] = ()) -> Path:
    """Make a data folder with the documents of some corpora, and return it.

    Args:
        corpora: folder of ``20news.train.jsonl.xz``, ``movie_reviews.jsonl.xz`` and ``wikitext2.*.txt.xz``.
        names: keys of DOCUMENTS.
        folder: where to write ``documents.txt`` and ``data-bin``; an existing ``data-bin`` is kept.
        tokenizer: tokenizer flags of ``prepare``.
    """
    data = folder / "data-bin"
    if data.exists():
        return data
    folder.mkdir(parents=True, exist_ok=True)
    blocks = [block for name in names for block in DOCUMENTS[name](corpora)]
    text = folder / "documents.txt"
    text.write_text("\n\n".join(blocks) + "\n", encoding="utf-8")
    clear("prepare", text, "--dest", data, *tokenizer)
    return data


def _posts(corpora: Path) -> list[str]:
    """Posts of 20 Newsgroups' training split, without the parts that scikit-learn can remove too."""
    return [_block(text) for text in read_topics(corpora, tuple(REMOVALS)).texts["train"] if text.strip()]


def _reviews(corpora: Path) -> list[str]:
    with lzma.open(corpora / "movie_reviews.jsonl.xz", "rt", encoding="utf-8") as lines:
        return [_block(json.loads(line)["text"]) for line in lines]


def _articles(corpora: Path) -> list[str]:
    """Articles of the available parts of WikiText-2; each starts with a title."""
    text = "".join(lzma.decompress(p.read_bytes()).decode() for p in sorted(corpora.glob("wikitext2.*.txt.xz")))
    return [_block(article) for article in re.split(r"(?m)^ (?== [^=])", text) if article.strip()]


def _block(text: str) -> str:
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())


DOCUMENTS = {"20news": _posts, "movie_reviews": _reviews, "wikitext2": _articles}


def _stem(name: str, seed: int) -> str:
    return f"{re.sub(r'[^A-Za-z0-9.-]+', '_', name)}.{seed}"


def schedule(updates: int, rate: float) -> list[str]:
    """Overrides for ``updates`` updates on a CPU without validation; the first tenth warms up to the learning rate."""
    return [
        *("common.cpu=true", "common.fp16=false", "dataset.num_workers=0", "++dataset.disable_validation=true"),
        *(f"optimization.lr=[{rate}]", f"++optimizer.lr=[{rate}]", f"optimization.max_update={updates}"),
        *(f"lr_scheduler.total_num_update={updates}", f"lr_scheduler.warmup_updates={max(1, updates // 10)}"),
    ]


def sizes(checkpoint: Path) -> list[str]:
    """The sizes of an imported checkpoint, as overrides of a recipe for another size."""
    model = vars(read_checkpoint(str(checkpoint))["cfg"]["model"])
    names = (
        *("encoder_layers", "encoder_embed_dim", "encoder_ffn_embed_dim", "encoder_attention_heads", "activation_fn"),
        *("layer_norm_eps", "max_positions"),
    )
    return [f"++model.{name}={model[name]}" for name in names]


def provenance() -> dict[str, Any]:
    """Commit, machine and versions of a run."""
    git = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, cwd=PROJECT)
    return {
        "commit": git.stdout.strip() or "unknown",
        "machine": f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads, CPU",
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def seconds(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """A line with the mean training time of each recipe over its runs."""
    means = {name: mean(run["train_seconds"] for run in runs) for name, runs in found.items()}
    return "\nseconds per run: " + ", ".join(f"{name} {value:.0f}" for name, value in means.items())


def table(rows: Mapping[str, Sequence[Mapping[str, float]]], digits: int = 2) -> str:
    """A Markdown table of means, with standard deviations if there are several seeds; the best of each column is bold.

    Args:
        rows: name -> the numbers of each seed.
        digits: digits after the decimal point.
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
