r"""Measures Self-Guided, its ablations of Table 5 and SimCSE at small scale: [CLS] of an imported encoder before and after.

    python examples/self_guided/measure.py --data-bin stsb --checkpoint minilm/model.pt \
        --sts SentEval/data --output measured --seeds 1 2 3

Writes all runs to ``results.json`` and prints the table of RESULTS.md.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from measuring import PROJECT, Recipe, Trained, Untrained, add_results, measure, sizes
from result_tables import scores_of, seconds, table

from fairseq_clear import SentenceEncoder
from fairseq_clear.evaluation.sts import evaluate_sts

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
}
TASKS = ("STS-B-dev", "STS-B", "STS12", "STS14")


def main() -> None:
    """Train, score, print."""
    arguments = parse()
    starting = sizes(arguments.checkpoint)
    updates = arguments.updates
    overrides = [
        *(f"task.data={arguments.data_bin.resolve()}", f"task.eval_sts={arguments.sts.resolve()}"),
        *(
            f"checkpoint.finetune_from_model={arguments.checkpoint.resolve()}",
            "common.cpu=true",
            "dataset.num_workers=0",
        ),
        *(f"optimization.max_update={updates}", f"lr_scheduler.total_num_update={updates}"),
        *(f"lr_scheduler.warmup_updates={updates // 10}", "dataset.validate_interval_updates=50"),
        *("checkpoint.save_interval_updates=50", *starting),
    ]

    def score(checkpoint: Path, recipe: Recipe | Untrained, seed: int) -> dict[str, float]:
        encoder = SentenceEncoder.from_pretrained(checkpoint, arguments.data_bin, pooling=recipe.pooling)
        result = evaluate_sts(encoder, arguments.sts, arguments.tasks)
        return {task: result.scores[task].spearman for task in arguments.tasks}

    rows: dict[str, Trained] = {
        f"untuned, {pooling}": Untrained(arguments.checkpoint, pooling) for pooling in ("cls", "mean")
    }
    width = next(setting.split("=")[1] for setting in starting if "embed_dim" in setting)
    for name in arguments.recipes:  # the head of SimCSE is as wide as the encoder
        head = [f"model.projection_dim={width}"] if name == "SimCSE" else []
        rows[name] = RECIPES[name].with_overrides([*overrides, *head])
    found = measure(rows, arguments.seeds, arguments.output / "runs", score, arguments.results)
    print(table(scores_of(found)))
    print(seconds(found))


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data-bin", type=Path, required=True, help="sentences, binarized with the encoder's tokenizer"
    )
    parser.add_argument("--checkpoint", type=Path, required=True, help="model.pt that fairseq-clear import made")
    parser.add_argument("--sts", type=Path, required=True, help="folder with STS12, STS14 and STSBenchmark")
    parser.add_argument("--output", type=Path, required=True, help="folder for the results of the runs")
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES), choices=list(RECIPES), help="default: all")
    parser.add_argument(
        "--tasks", nargs="+", default=list(TASKS), choices=TASKS, help="tasks that score a run (default: all)"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--updates", type=int, default=100, help="updates of each run (paper: one epoch, 718)")
    add_results(parser)
    arguments = parser.parse_args()
    arguments.results = arguments.results or arguments.output / "results.json"
    return arguments


if __name__ == "__main__":
    main()
