"""Shared by the measure.py of the examples: train recipes with several seeds, score each run, save the results, make a table.

A run whose result is in the JSON file already is not repeated, so an interrupted measurement resumes where it stopped, and a
table of a RESULTS.md can get further rows and seeds later: give the results.json that is next to it as ``--results``.
"""

import argparse
import json
import lzma
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from tqdm import tqdm

from fairseq_clear import patches
from fairseq_clear.evaluation.encoders import CachedEncoder
from fairseq_clear.evaluation.labelled_text import REMOVALS, LabelledText, read_labelled
from fairseq_clear.evaluation.retrieval import bootstrap, score_rankings, search
from fairseq_clear.evaluation.retrieval_data import RetrievalData
from fairseq_clear.files import write_json
from fairseq_clear.processes import die_with_parent

PROJECT = Path(__file__).resolve().parent.parent
# Overrides of a recipe: sizes for one CPU core, and settings that leave the initial weights as they are (rate 0 is an error).
TINY = tuple(
    f"++model.encoder_{name}={value}"
    for name, value in {"layers": 2, "embed_dim": 128, "ffn_embed_dim": 512, "attention_heads": 2}.items()
)
UNTRAINED = ("optimization.max_update=1", "optimization.lr=[1e-20]", "++optimizer.lr=[1e-20]")
NDCG, MRR = 1, 0  # columns of score_rankings
HYDRA = (sys.executable, "-W", "ignore", "-c", "from fairseq_cli.hydra_train import cli_main; cli_main()")


class Trained(Protocol):
    """A row of a table: something that trains an encoder."""

    @property
    def once(self) -> bool:
        """Whether the scores do not depend on the seed, so that one run is enough."""

    def train(self, seed: int, folder: Path) -> Path:
        """Train in ``folder`` and return the checkpoint to score."""

    def about(self) -> dict[str, Any]:
        """What the JSON of a run says of the row."""


@dataclass(frozen=True)
class Recipe:
    """A config of an example, with the changes of the measurement.

    Attributes:
        config: path of the YAML file.
        overrides: hydra overrides, including an ablation (``+ablation=sg``).
        once: see ``Trained``.
    """

    config: Path
    overrides: tuple[str, ...] = ()
    once: bool = False

    def train(self, seed: int, folder: Path) -> Path:
        """Run ``fairseq-hydra-train``; its log is ``FOLDER.log``."""
        settings = [
            *(f"common.user_dir={PROJECT / 'fairseq_clear'}", f"common.seed={seed}"),
            *(f"checkpoint.save_dir={folder.resolve()}", f"hydra.run.dir={folder.resolve() / 'hydra'}"),
            *self.overrides,
        ]
        named = ["--config-dir", str(self.config.parent), "--config-name", self.config.stem]
        path = folder.with_name(f"{folder.name}.log")
        with open(path, "w", encoding="utf-8") as log:
            words = [*HYDRA, *named, *settings]
            done = subprocess.run(
                words,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=PROJECT,
                env=_environment(),
                preexec_fn=die_with_parent,
            )
        if done.returncode:
            raise SystemExit(f"{path}: the training failed: {path.read_text(encoding='utf-8').splitlines()[-1]}")
        return next(folder / f for f in ("checkpoint_best.pt", "checkpoint_last.pt") if (folder / f).exists())

    def about(self) -> dict[str, Any]:
        """The config and the overrides, without paths, which say nothing on another machine."""
        overrides = [override for override in self.overrides if not Path(override.partition("=")[2]).is_absolute()]
        return {"config": str(self.config.relative_to(PROJECT)), "overrides": overrides}

    def with_overrides(self, overrides: Sequence[str]) -> "Recipe":
        """The recipe with further overrides, which its own overrides may replace."""
        return replace(self, overrides=(*overrides, *self.overrides))


@dataclass(frozen=True)
class Untrained:
    """A row that scores a given checkpoint; ``once`` if the scores do not depend on the seed."""

    checkpoint: Path
    pooling: str | None = None
    once: bool = True

    def train(self, seed: int, folder: Path) -> Path:
        """Return the checkpoint."""
        return self.checkpoint

    def about(self) -> dict[str, Any]:
        """Nothing: the checkpoint's path says nothing elsewhere."""
        return {}


def measure(
    rows: Mapping[str, Trained],
    seeds: Sequence[int],
    output: Path,
    score: Callable[[Path, Any, int], dict[str, float]],
    results: Path,
    table: str = "all",
    scoring: Mapping[str, Any] | None = None,
) -> dict[str, list[dict[str, Any]]]:
    """Train and score every row with every seed. Runs that ``results`` has already are not repeated.

    Args:
        rows: name -> row.
        seeds: different seeds of every row.
        output: folder for the logs; special characters of a name become ``_``.
        score: checkpoint, row, seed -> the numbers of a row.
        results: JSON file, written after each run: table -> list of runs.
        table: name of the table.
        scoring: settings of ``score`` that are not the default ones.

    Returns:
        Name -> the runs of its seeds.

    Raises:
        SystemExit: a seed is repeated; or ``results`` has a run of one of the rows that was made with other settings or data.
    """
    if len(set(seeds)) < len(seeds):
        raise SystemExit(f"--seeds {' '.join(map(str, seeds))}: give different seeds; equal runs are not independent")
    output.mkdir(parents=True, exist_ok=True)
    kept: dict[str, list[dict[str, Any]]] = json.loads(results.read_text()) if results.exists() else {}
    known = {(run["name"], run["seed"]): run for run in kept.setdefault(table, [])}
    once = {name: next((n for other, n in known if other == name), seeds[0]) for name in rows if rows[name].once}
    runs = [*once.items(), *((name, seed) for seed in seeds for name in rows if name not in once)]
    for name, seed in runs:
        run, about = known.get((name, seed), {}), json.loads(json.dumps(rows[name].about()))
        differing = [key for key in about if run and run.get(key) != about[key]]
        differing += ["scoring"] if run and run.get("scoring", {}) != json.loads(json.dumps(scoring or {})) else []
        if differing:
            raise SystemExit(
                f"{results}: {table}, {name}, seed {seed} was made with another {', '.join(differing)}; give another "
                "--results, or remove the run"
            )
    for name, seed in tqdm(runs, desc=table, disable=None):
        if (name, seed) not in known:
            run = _run(name, rows[name], seed, output / stem(name, seed), score)
            known[name, seed] = run = run | ({"scoring": dict(scoring)} if scoring else {})
            kept[table].append(run)
            write_json(results, kept, flag="--results")
            print(f"{table}, {name}, seed {seed}: {run['scores']}, {run['train_seconds']:.0f} s", flush=True)
    return {name: [known[name, seed] for other, seed in runs if other == name] for name in rows}


def _run(
    name: str, row: Trained, seed: int, folder: Path, score: Callable[[Path, Any, int], dict[str, float]]
) -> dict[str, Any]:
    began, used = time.monotonic(), _processor_seconds()
    checkpoint = row.train(seed, folder)
    times = {
        "train_seconds": round(time.monotonic() - began, 1),
        "train_processor_seconds": round(_processor_seconds() - used, 1),
    }
    scores = score(checkpoint, row, seed)
    for file in [path for path in folder.rglob("*") if path.suffix in (".pt", ".safetensors")]:
        file.unlink()  # checkpoints and exports of many runs would fill the disk
    return {"name": name, "seed": seed, "scores": scores, **times, **row.about(), **provenance()}


def _processor_seconds() -> float:
    """Processor time of this program and of those that it has run, on all cores."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _environment() -> dict[str, str]:
    """Environment variables with this project first on Python's path."""
    others = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(PROJECT), *([others] if others else [])])}


def clear(*command: object) -> None:
    """Run a command of this project's fairseq-clear from any folder; if it fails, exit with the end of its output."""
    # -P: otherwise -m looks in the working directory first, which may hold another checkout
    words: Sequence[str] = [sys.executable, "-P", "-W", "ignore", "-m", "fairseq_clear.cli", *map(str, command)]
    done = subprocess.run(words, capture_output=True, text=True, env=_environment(), preexec_fn=die_with_parent)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")


def import_encoder(source: Path, output: Path) -> Path:
    """Import a Hugging Face or sentence-transformers folder, once, as ``OUTPUT/encoder``, which refine trains; return that."""
    output.mkdir(parents=True, exist_ok=True)
    encoder = output / "encoder"
    if not encoder.exists():
        clear("import", source, "--dest", encoder, "--arch", "clear_hf")
    return encoder


def finetune(checkpoint: Path, data: Path, task: str, metric: str, seed: int, output: Path, *flags: object) -> float:
    """Fine-tune on a task of GLUE; return the metric of its dev set, x100.

    Args:
        data: folder of ``glue prepare``.
        output: folder for the run, which is replaced: an interrupted measurement may have used another checkpoint.
        flags: further flags of ``glue run``, such as ``--recipe``.
    """
    shutil.rmtree(output, ignore_errors=True)
    words = ("--tasks", task, "--seeds", seed, "--output", output, "--device", "cpu")
    clear("glue", "run", "--checkpoint", checkpoint, "--data", data, *words, *flags)
    (result,) = output.rglob("result.json")
    value: float = json.loads(result.read_text())["metrics"]["valid"][metric]
    shutil.rmtree(output)  # checkpoints of many runs would fill the disk
    return value


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
    return [_block(text) for text in read_newsgroups(corpora).texts["train"] if text.strip()]


def read_newsgroups(corpora: Path) -> LabelledText:
    """Both splits of 20 Newsgroups, ``20news.{train,test}.jsonl.xz``, without headers, footers and quotes."""
    paths = (corpora / f"20news.{split}.jsonl.xz" for split in ("train", "test"))
    return read_labelled(*paths, label_field="group", remove=tuple(REMOVALS))


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


def values_of(encoder: Any, data: RetrievalData) -> np.ndarray:
    """The metrics of each query, x100: (Q, 7)."""
    cached = CachedEncoder.of(encoder)
    queries, passages = (cached.encode(list(texts)) for texts in (data.queries, data.passages))
    ranked = search(queries, [passages], 101).passages.numpy()[:, :100]
    return 100 * score_rankings(ranked, data.relevant)


def means(values: np.ndarray) -> dict[str, float]:
    """The metrics of a table, of ``values_of``."""
    return {"nDCG@10": float(values[:, NDCG].mean()), "MRR@10": float(values[:, MRR].mean())}


def interval(values: np.ndarray, untouched: np.ndarray) -> tuple[float, float]:
    """Bounds of the difference of nDCG@10 from the untouched encoder: 95 %, paired bootstrap over queries."""
    low, high = bootstrap(values[:, NDCG : NDCG + 1] - untouched[:, NDCG : NDCG + 1], 1)
    return float(low[0]), float(high[0])


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with ``--output`` and ``--seeds``."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder for the data and the runs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="one run per seed (default: 1 2 3)")
    return parser


def parse_with_results(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Declare ``--results``, and parse the command line."""
    text = "JSON file of all runs; runs in it are not repeated (default: OUTPUT/results.json)"
    parser.add_argument("--results", type=Path, help=text)
    arguments = parser.parse_args()
    arguments.results = arguments.results or arguments.output / "results.json"
    return arguments


def stem(name: str, seed: int) -> str:
    """The name of a run's files."""
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
    patches.apply()  # a checkpoint of import holds what torch alone does not load
    from fairseq_clear.patches.checkpoint_files import read_checkpoint

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
        "machine": f"{processor()}, {torch.get_num_threads()} threads, CPU",
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def processor() -> str:
    """The name of the processor, on which the rounding of sums depends."""
    file = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*: (.*)$", file.read_text(encoding="utf-8"), re.M) if file.exists() else None
    return found[1] if found else platform.machine()
