"""Seconds and peak memory of NT-Xent, forward and backward, compared with a dense reference and pytorch-metric-learning.

    python scripts/bench/nt_xent.py [--sizes 64x16384 16384x16384] [--repeats 5] [--json FILE]

Q x K means Q views of this worker and K views of all workers; Q = K is a single worker. The dense reference is the common
implementation: one masked matrix of cosines and cross_entropy. pytorch-metric-learning (``pip install
pytorch-metric-learning``) has no support for Q < K and lists all pairs by index. It has its own row, with a size that fits into
memory. The sides take turns in every round; the ratio is the median of the ratios of the rounds.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F
from results import finish, is_installed, missing_row, row
from steps import held_mib, in_turn, ratio
from torch import Tensor

from fairseq_clear.objectives import nt_xent
from fairseq_clear.objectives.exclusion import Exclusion

WIDTH, TEMPERATURE = 128, 0.1
Step = Callable[[int], None]


def inputs(rows: int, columns: int) -> tuple[Tensor, Tensor, Tensor]:
    """Keys, whose first rows are the queries; the row of each query; the row of its positive."""
    torch.manual_seed(1)
    return torch.randn(columns, WIDTH, requires_grad=True), torch.arange(rows), torch.arange(rows).roll(rows // 2)


def ours(rows: int, columns: int) -> Step:
    """NT-Xent as the criterion calls it, with duplicates of a text excluded."""
    keys, own, positive = inputs(rows, columns)
    texts = torch.arange(columns)
    rules = Exclusion(own.unsqueeze(1), (texts[:rows], texts))

    def step(_: int) -> None:
        keys.grad = None
        nt_xent(keys[:rows], keys, positive, temperature=TEMPERATURE, excluded=rules)[0].backward()

    return step


def dense(rows: int, columns: int) -> Step:
    """NT-Xent with one matrix of all pairs."""
    keys, own, positive = inputs(rows, columns)

    def step(_: int) -> None:
        keys.grad = None
        z = F.normalize(keys, dim=1)
        logits = z[:rows] @ z.T / TEMPERATURE
        logits = logits.masked_fill(own.unsqueeze(1) == torch.arange(columns), float("-inf"))
        F.cross_entropy(logits, positive, reduction="sum").backward()

    return step


def metric_learning(rows: int, columns: int) -> Step:
    """The NTXentLoss of pytorch-metric-learning; two views of one text have the same label."""
    from pytorch_metric_learning.losses import NTXentLoss

    keys, _, _ = inputs(rows, columns)
    loss, labels = NTXentLoss(TEMPERATURE), torch.arange(rows) % (rows // 2)

    def step(_: int) -> None:
        keys.grad = None
        loss(keys, labels).backward()

    return step


def main() -> None:
    """Print a table; --json also writes it to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["64x16384", "16384x16384"], help="Q x K")
    parser.add_argument("--metric-learning-size", type=int, default=512, help="views, for pytorch-metric-learning")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    pairs = [(*map(int, size.split("x")), "dense", dense) for size in arguments.sizes]
    views, aim = arguments.metric_learning_size, ">= 1.0"
    absent = []
    if is_installed("pytorch_metric_learning"):
        pairs.append((views, views, "pytorch-metric-learning", metric_learning))
    else:
        absent = [missing_row(f"NT-Xent, {views:,} x {views:,}", "pytorch-metric-learning", aim)]
    rows, table = [], []
    for queries, keys, name, other in pairs:
        mine, theirs = ours(queries, keys), other(queries, keys)
        seconds = in_turn([mine, theirs], arguments.repeats)
        found = {"queries": queries, "keys": keys, "baseline": name}
        found |= {"seconds": median(seconds[0]), "their_seconds": median(seconds[1])}
        found |= {"ratio": ratio(seconds[1], seconds[0]), "mib": held_mib(mine), "their_mib": held_mib(theirs)}
        rows.append(found)
        table.append(
            row(
                f"NT-Xent, {queries:,} x {keys:,}", "s", found["seconds"], baseline=name, theirs=found["their_seconds"],
                ratio=found["ratio"], aim=aim, mib=found["mib"], their_mib=found["their_mib"],
            )
        )  # fmt: skip
        print(
            f"{queries:>6} x {keys:<6} {found['seconds']:8.4f} s {found['mib']:7.0f} MiB   {name} "
            f"{found['their_seconds']:8.4f} s {found['their_mib']:7.0f} MiB   {found['ratio']:6.2f} times as fast",
            flush=True,
        )
    report = {
        "rows": rows,
        "repeats": arguments.repeats,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "table": table + absent,
    }
    finish(report, arguments.json)


if __name__ == "__main__":
    main()
