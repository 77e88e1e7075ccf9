"""Prints the table of the demonstration and draws its plot."""

from math import nan
from pathlib import Path
from statistics import mean, stdev

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

COLUMNS = {
    "topics": "topics",
    "mrr": "MRR",
    "first": "acc@1",
    "centred_mrr": "MRR*",
    "centred_first": "acc@1*",
    "anisotropy": "mean cos",
}
# Okabe and Ito's colours, which colour-blind readers can distinguish.
COLOURS = {"TF-IDF": "#999999", "untrained": "#56B4E9", "MLM": "#E69F00", "CLEAR": "#009E73"}


def print_table(report: dict) -> None:
    """Print means over seeds, with standard deviations for topics if there are several seeds."""
    rows = report["rows"]
    speeds = {arm: [run["tokens_per_second"] for run in report["runs"] if run["arm"] == arm] for arm in rows}
    print()
    print(
        f"{'':10s} {'topics':>16s} "
        + " ".join(f"{title:>9s}" for title in list(COLUMNS.values())[1:])
        + f" {'tokens/s':>9s}"
    )
    for name, found in rows.items():
        error = found[0]["topics_error"] if len(found) == 1 else stdev(scores["topics"] for scores in found)
        cells = [f"{_mean(found, 'topics'):.3f} +- {error:.3f}"]
        cells += [f"{_mean(found, column):.3f}" for column in list(COLUMNS)[1:]]
        speed = f"{mean(speeds[name]):,.0f}" if any(speeds[name]) else ""
        print(f"{name:10s} {cells[0]:>16s} " + " ".join(f"{cell:>9s}" for cell in cells[1:]) + f" {speed:>9s}")
    many = len(report["seeds"]) > 1
    print(f"\ntopics: accuracy of predicting the package, out of {len(report['documents']['topics'])}, of a docstring")
    print(f"  ({report['counts']['topic_test']} of held-out modules), logistic regression; +- {_deviation(many)}")
    print(
        f"MRR, acc@1: find a docstring's body by its first sentence among {report['counts']['retrieval']}; *: mean-centred"
    )
    print("mean cos: mean cosine of random pairs; near 1, cosines without centring tell little")
    best = {
        title: max(rows, key=lambda name, column=column: _mean(rows[name], column))
        for column, title in list(COLUMNS.items())[:-1]
    }
    for name in ("TF-IDF", "untrained"):
        won = [title for title, winner in best.items() if winner == name]
        if won:
            print(f"note: {name} is best in {', '.join(won)}: examples/demo/README.md explains why")
    print()


def draw(report: dict, path: Path) -> None:
    """Draw learning curves on the left and scores on the right."""
    figure, (losses, accuracy, bars) = plt.subplots(
        1, 3, figsize=(11, 3.4), width_ratios=(1, 1, 1.5), constrained_layout=True
    )
    for run in report["runs"]:
        if not run["curve"]:
            continue
        colour = COLOURS[run["arm"]]
        label = run["arm"] if run["seed"] == report["seeds"][0] else None
        tokens = [point["tokens"] / 1e6 for point in run["curve"]]
        losses.plot(tokens, [point.get("mlm_loss", point["loss"]) for point in run["curve"]], color=colour, label=label)
        if "contrastive_accuracy" in run["curve"][0]:
            accuracy.plot(tokens, [point["contrastive_accuracy"] for point in run["curve"]], color=colour, label=label)
    losses.set(xlabel="million tokens read", ylabel="masked LM loss (bits)")
    accuracy.set(xlabel="million tokens read", ylabel="contrastive accuracy", ylim=(0, 1))
    losses.legend(frameon=False)
    rows = report["rows"]
    columns = ["topics", "centred_mrr", "centred_first"]
    width = 0.8 / len(rows)
    for number, (name, found) in enumerate(rows.items()):
        places = [column + (number - (len(rows) - 1) / 2) * width for column in range(len(columns))]
        errors = [_error(found, column) for column in columns]
        bars.bar(
            places, [_mean(found, c) for c in columns], width, yerr=errors, capsize=2, color=COLOURS[name], label=name
        )
    bars.set_xticks(range(len(columns)), ["topic accuracy", "retrieval MRR\n(centred)", "retrieval acc@1\n(centred)"])
    bars.set(ylim=(0, 1))
    bars.legend(frameon=False, ncols=2)
    for axes in (losses, accuracy, bars):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _mean(found: list[dict], column: str) -> float:
    return mean(scores[column] for scores in found)


def _error(found: list[dict], column: str) -> float:
    if len(found) > 1:
        return stdev(scores[column] for scores in found)
    return found[0].get(f"{column}_error", nan)  # no bar where no error is known


def _deviation(many: bool) -> str:
    error = "standard error of the accuracy"
    return f"standard deviation over seeds (TF-IDF, which has no seed: {error})" if many else error
