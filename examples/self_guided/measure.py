r"""Measures Self-Guided, its Tables 5 and 7, SimCSE and Mirror-BERT at small scale: an imported encoder before and after.

    python examples/self_guided/measure.py --data-bin stsb --checkpoint minilm/model.pt \
        --sts SentEval/data --output measured --seeds 1 2 3

The recipes of back-translation need a data folder with the aligned text ``bt`` (prepare --paraphrase bt=...). All runs go to
``results.json``, the scores on STS-B's dev split during the training to ``curves.png``. Prints the table of RESULTS.md.
"""

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from measuring import PROJECT, Recipe, Trained, Untrained, clear, make_parser, measure, parse_with_results, sizes, stem
from result_tables import scores_of, seconds, table

from fairseq_clear import SentenceEncoder
from fairseq_clear.evaluation.sts import evaluate_sts, read_sts_tasks

CONFIG = PROJECT / "examples/self_guided/config/sg_opt.yaml"
RECIPES = {
    "SG-OPT": Recipe(CONFIG),
    "SG": Recipe(CONFIG, ("+ablation=sg",)),
    "SimCSE": Recipe(PROJECT / "examples/simcse/config/unsupervised.yaml", ("dataset.batch_size=16",)),
    "L opt2": Recipe(CONFIG, ("+ablation=opt2",)),
    "L opt1": Recipe(CONFIG, ("+ablation=opt1",)),
    "tau 0.1": Recipe(CONFIG, ("+ablation=tau_0.1",)),
    "tau 0.001": Recipe(CONFIG, ("+ablation=tau_0.001",)),
    "lambda 0": Recipe(CONFIG, ("+ablation=lambda_0",)),
    "lambda 1": Recipe(CONFIG, ("+ablation=lambda_1",)),
    "no head": Recipe(CONFIG, ("+ablation=no_head",)),
    "BT": Recipe(PROJECT / "examples/self_guided/config/bt.yaml"),
    "BT + SG-OPT": Recipe(CONFIG, ("+ablation=bt_sg_opt",)),
    "Mirror-BERT": Recipe(
        PROJECT / "examples/mirror_bert/config/sentence.yaml",
        (
            *(
                "dataset.batch_size=16",
                "dataset.disable_validation=false",
                "checkpoint.best_checkpoint_metric=sts_spearman",
            ),
            "++checkpoint.maximize_best_checkpoint_metric=true",
        ),
    ),
}
# Rows without training, besides the encoder as it is: what is fitted to its vectors of the sentences.
FITTED = ("whitening", "flow")
TASKS = ("STS-B-dev", "STS-B", "STS12", "STS14")


@dataclass
class Fitted:
    """A row: the untuned encoder with whitening or BERT-flow, fitted to its vectors of the sentences.

    Attributes:
        method: of FITTED.
        checkpoint, pooling: of the encoder.
        sentences: text, one sentence per line.
        place: path without suffix for what is written.
    """

    method: str
    checkpoint: Path
    pooling: str
    sentences: Path
    place: Path

    @property
    def once(self) -> bool:
        """Whitening does not depend on a seed."""
        return self.method == "whitening"

    @property
    def encoder(self) -> list[object]:
        """Flags that name the encoder."""
        return ["--encoder", self.checkpoint, "--data-bin", self.checkpoint.parent, "--pooling", self.pooling]

    def train(self, seed: int, folder: Path) -> Path:
        """Fit the flow; ``sts`` fits a whitening itself."""
        if self.method == "flow":
            output = self.place.with_suffix(".npz")
            clear("flow", self.sentences, *self.encoder, "--seed", seed, "--output", output, "--overwrite")
        return self.checkpoint

    def about(self) -> dict[str, Any]:
        """The method and the pooling."""
        return {"method": self.method, "pooling": self.pooling}

    def score(self, data: Path, tasks: list[str]) -> dict[str, float]:
        """Score with ``fairseq-clear sts``."""
        file = self.sentences if self.method == "whitening" else self.place.with_suffix(".npz")
        report = self.place.with_suffix(".json")
        clear(
            "sts", "--data", data, "--tasks", *tasks, *self.encoder, f"--{self.method}", file, "--output", report,
            "--overwrite",
        )  # fmt: skip
        scores: dict[str, float] = json.loads(report.read_text())["rows"][0]["scores"]
        return {task: scores[task] for task in tasks}


def curve(log: Path) -> dict[int, float]:
    """Update -> Spearman correlation on STS-B's dev split, from the log of a run."""
    # " sts_spearman", since the same line ends with best_sts_spearman
    found = re.findall(r" sts_spearman ([\d.]+) .* num_updates (\d+)", log.read_text(errors="replace"))
    return {int(update): float(value) for value, update in found}


def draw_curves(found: Mapping[str, Sequence[Mapping[str, Any]]], output: Path) -> None:
    """Draw the dev score of every run whose log is there, one panel per recipe."""
    curves = {
        name: [curve(log) for run in runs if (log := output / "runs" / f"{stem(name, run['seed'])}.log").exists()]
        for name, runs in found.items()
    }
    curves = {name: some for name, some in curves.items() if any(some)}
    if not curves:
        return
    columns = min(4, len(curves))
    shape = (-(-len(curves) // columns), columns)
    figure, axes = plt.subplots(*shape, figsize=(2.6 * columns, 2.2 * shape[0]), sharey=True, squeeze=False)
    for axis, (name, some) in zip(axes.flat, curves.items(), strict=False):
        for one in some:
            axis.plot(list(one), list(one.values()), marker=".", linewidth=1)
        axis.set_title(name, fontsize=9)
    for axis in axes.flat[len(curves) :]:
        axis.set_visible(False)
    figure.supxlabel("updates", fontsize=9)
    figure.supylabel("Spearman x100, STS-B dev", fontsize=9)
    figure.tight_layout()
    figure.savefig(output / "curves.png", dpi=150)


def main() -> None:
    """Train, score, print."""
    arguments = parse()
    starting = sizes(arguments.checkpoint)
    updates = arguments.updates
    overrides = [
        *(f"++task.data={arguments.data_bin.resolve()}", f"++task.eval_sts={arguments.sts.resolve()}"),
        *(
            f"++checkpoint.finetune_from_model={arguments.checkpoint.resolve()}",
            "++checkpoint.save_interval_updates=50",
        ),
        *("++common.cpu=true", "++dataset.num_workers=0", "++dataset.validate_interval_updates=50"),
        *(f"++optimization.max_update={updates}", f"++lr_scheduler.total_num_update={updates}"),
        *(f"++lr_scheduler.warmup_updates={updates // 10}", *starting),
    ]

    def score(checkpoint: Path, recipe: Recipe | Untrained | Fitted, seed: int) -> dict[str, float]:
        if isinstance(recipe, Fitted):
            return recipe.score(arguments.sts, arguments.tasks)
        encoder = SentenceEncoder.from_pretrained(checkpoint, arguments.data_bin, pooling=recipe.pooling)
        result = evaluate_sts(encoder, read_sts_tasks(arguments.sts, arguments.tasks))
        return {task: result[task].spearman for task in arguments.tasks}

    rows: dict[str, Trained] = {}
    for pooling in ("cls", "mean"):
        rows[f"untuned, {pooling}"] = Untrained(arguments.checkpoint, pooling)
        for method in FITTED if arguments.sentences else ():
            place = arguments.output / "runs" / f"{pooling}.{method}"
            rows[f"{method}, {pooling}"] = Fitted(method, arguments.checkpoint, pooling, arguments.sentences, place)
    width = next(setting.split("=")[1] for setting in starting if "embed_dim" in setting)
    for name in arguments.recipes:  # the head of SimCSE is as wide as the encoder
        head = [f"model.projection_dim={width}"] if name == "SimCSE" else []
        rows[name] = RECIPES[name].with_overrides([*overrides, *head])
    found = measure(rows, arguments.seeds, arguments.output / "runs", score, arguments.results)
    draw_curves({name: found[name] for name in arguments.recipes}, arguments.output)
    print(table(scores_of(found)))
    print(seconds(found))


def parse() -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__)
    parser.add_argument(
        "--data-bin", type=Path, required=True, help="sentences, binarized with the encoder's tokenizer"
    )
    parser.add_argument("--checkpoint", type=Path, required=True, help="model.pt that fairseq-clear import made")
    parser.add_argument("--sts", type=Path, required=True, help="folder with STS12, STS14 and STSBenchmark")
    parser.add_argument("--sentences", type=Path, help="text for whitening and flow, one sentence per line")
    parser.add_argument("--recipes", nargs="*", default=list(RECIPES), choices=list(RECIPES), help="default: all")
    parser.add_argument(
        "--tasks", nargs="+", default=list(TASKS), choices=TASKS, help="tasks that score a run (default: all)"
    )
    parser.add_argument("--updates", type=int, default=100, help="updates of each run (paper: one epoch, 718)")
    return parse_with_results(parser)


if __name__ == "__main__":
    main()
