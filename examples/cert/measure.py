r"""Measures CERT at small scale from an imported encoder: dev scores of GLUE tasks without CERT, with it, without a queue.

    python examples/cert/measure.py --glue glue_data --checkpoint minilm/model.pt --imported minilm \
        --synonyms counterfitted_neighbors.json --round-trips translated --output measured --seeds 1 2 3

The paper's views are back-translations, and EDA in an ablation. Besides both, this script has two copies of each text in which
synonyms replace words. The round trips are files TASK.txt of --round-trips, aligned with what ``glue text`` writes.
"""

import argparse
import json
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from measuring import (
    PROJECT,
    UNTRAINED,
    Recipe,
    Trained,
    Untrained,
    clear,
    finetune,
    make_parser,
    measure,
    parse_with_results,
    sizes,
)
from result_tables import table

METRICS = {"CoLA": "mcc", "RTE": "accuracy", "MRPC": "accuracy"}
PLAIN = "plain"  # fine-tuned without CERT
CONFIG = PROJECT / "examples/cert/config/cert.yaml"
BATCH = PROJECT / "examples/cert/config/batch_negatives.yaml"
PAIR = "task.views='paraphrase:original,bt'"
EDA = ("+ablation=eda",)


def rate(value: float) -> tuple[str, str]:
    """Overrides for a learning rate."""
    return f"optimization.lr=[{value}]", f"optimizer.lr=[{value}]"


RECIPES = {
    "CERT, back-translation": Recipe(CONFIG, (PAIR,)),
    "CERT, EDA": Recipe(CONFIG, EDA),
    "CERT, synonym paraphrases": Recipe(CONFIG),
    "no queue (batch), EDA": Recipe(BATCH, ("task.views=same", "task.augment=eda")),
    # what lowers CoLA: rate, pooling; the control has CERT's checkpoint and vocabulary, but the weights of the start
    "CERT, EDA, no training (control)": Recipe(CONFIG, (*EDA, *UNTRAINED)),
    "CERT, EDA, lr 4e-5": Recipe(CONFIG, (*EDA, *rate(4e-5))),
    "CERT, EDA, lr 5e-4": Recipe(CONFIG, (*EDA, *rate(5e-4))),
    "CERT, EDA, mean pooling": Recipe(CONFIG, (*EDA, "model.pooling=mean")),
}
STAND_IN_SHARE = 0.3
TUNING: dict[str, float] = {"epochs": 2, "lr": 1e-4, "batch_size": 32}  # defaults


def main() -> None:
    """Prepare the data, train, fine-tune, print one table."""
    arguments = parse()
    rows: dict[str, dict[int, dict[str, float]]] = {}
    for task in arguments.tasks:
        folder = arguments.output / task
        data = prepare(arguments, task, folder)
        overrides = [
            *(f"task.data={data.resolve()}", f"checkpoint.finetune_from_model={arguments.checkpoint.resolve()}"),
            *("common.cpu=true", "dataset.num_workers=0", "++dataset.disable_validation=true"),
            *(f"++optimization.max_update={arguments.updates}", *rate(5e-3)),
            *sizes(arguments.checkpoint),
        ]

        def score(
            checkpoint: Path, recipe: Trained, seed: int, task: str = task, folder: Path = folder
        ) -> dict[str, float]:
            output = folder / "finetuned" / f"{checkpoint.parent.name}.{seed}"
            flags = ("--epochs", arguments.epochs, "--lr", arguments.lr, "--batch-size", arguments.batch_size)
            run = (checkpoint, folder / "glue-bin", task, METRICS[task], seed, output)
            return {task: finetune(*run, "--recipe", "cert", *flags)}

        chosen: dict[str, Trained] = (
            {PLAIN: Untrained(arguments.checkpoint, once=False)} if PLAIN in arguments.recipes else {}
        )
        chosen |= {name: RECIPES[name].with_overrides(overrides) for name in arguments.recipes if name != PLAIN}
        tuning = {"epochs": arguments.epochs, "lr": arguments.lr, "batch_size": arguments.batch_size}
        scoring = {name: value for name, value in tuning.items() if value != TUNING[name]}
        found = measure(chosen, arguments.seeds, folder / "runs", score, arguments.results, task, scoring)
        for name, runs in found.items():
            for run in runs:
                rows.setdefault(name, {}).setdefault(run["seed"], {}).update(run["scores"])
    print(table(rows))


def prepare(arguments: argparse.Namespace, task: str, folder: Path) -> Path:
    """Prepare the task's texts with two synonym paraphrases, and its labelled sets; return the data folder."""
    data = folder / "data-bin"
    if not data.exists():
        prepare_texts(arguments, task, folder, data)
    if not (data / "synonyms.npz").exists():
        clear("synonyms", "--data-bin", data, "--source", arguments.synonyms)
    if not (folder / "glue-bin").exists():
        clear(
            *("glue", "prepare", "--glue-dir", arguments.glue, "--data-bin", arguments.imported, "--tasks", task),
            *("--dest", folder / "glue-bin", "--max-length", 128),
        )
    return data


def prepare_texts(arguments: argparse.Namespace, task: str, folder: Path, data: Path) -> None:
    """Write the texts of a task, their paraphrases, and the data folder of both."""
    folder.mkdir(parents=True, exist_ok=True)
    text = folder / f"{task}.txt"
    clear("glue", "text", "--glue-dir", arguments.glue, "--tasks", task, "--dest", folder)
    neighbors = json.loads(arguments.synonyms.read_text(encoding="utf-8"))
    lines = text.read_text(encoding="utf-8").splitlines()
    for seed, name in enumerate(("de", "zh")):
        rewritten = [stand_in(line, neighbors, random.Random(f"{seed} {number}")) for number, line in enumerate(lines)]
        (folder / f"{name}.txt").write_text("\n".join(rewritten) + "\n", encoding="utf-8")
    paraphrases = [f"{name}={folder / name}.txt" for name in ("de", "zh")]
    if arguments.round_trips is not None:
        paraphrases.append(f"bt={arguments.round_trips / f'{task}.txt'}")
    tokenizer = ("--tokenizer-dir", arguments.imported)
    clear("prepare", text, "--paraphrase", *paraphrases, "--document-start", ".", "--dest", data, *tokenizer)


def stand_in(line: str, neighbors: dict[str, list[str]], rng: random.Random) -> str:
    """The line, with some of its words replaced by synonyms."""

    def replace(word: str) -> str:
        known = neighbors.get(word.lower(), [])
        return rng.choice(known) if known and rng.random() < STAND_IN_SHARE else word

    return " ".join(replace(word) for word in line.split())


def parse() -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--glue", type=Path, required=True, help="folder with CoLA, RTE and MRPC in it")
    parser.add_argument("--checkpoint", type=Path, required=True, help="model.pt that fairseq-clear import made")
    parser.add_argument("--imported", type=Path, required=True, help="folder that fairseq-clear import made")
    parser.add_argument("--synonyms", type=Path, required=True, help="counterfitted_neighbors.json")
    parser.add_argument("--round-trips", type=Path, help="folder with TASK.txt of back-translate")
    parser.add_argument("--tasks", nargs="+", default=list(METRICS), choices=list(METRICS))
    parser.add_argument(
        "--recipes", nargs="+", default=[PLAIN, *RECIPES], choices=[PLAIN, *RECIPES], help="default: all"
    )
    parser.add_argument("--updates", type=int, default=100, help="updates of CERT (paper: 100 epochs)")
    parser.add_argument(
        "--epochs", type=int, default=TUNING["epochs"], help="epochs of fine-tuning (paper: CoLA 20, RTE 5)"
    )
    parser.add_argument(
        "--lr", type=float, default=TUNING["lr"], help="learning rate of fine-tuning (paper: CoLA 3e-5, RTE 2e-5)"
    )
    parser.add_argument(
        "--batch-size", type=int, default=TUNING["batch_size"], help="batch size of fine-tuning (paper: 16)"
    )
    arguments = parse_with_results(parser)
    if arguments.round_trips is None and "CERT, back-translation" in arguments.recipes:
        parser.error(
            "the recipe 'CERT, back-translation' needs --round-trips; leave it out of --recipes, or give the folder"
        )
    return arguments


if __name__ == "__main__":
    main()
