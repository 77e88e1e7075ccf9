"""Seconds and peak memory of NT-Xent, forward and backward, compared with a dense reference and pytorch-metric-learning.

    python scripts/bench/nt_xent.py [--sizes 64x16384 16384x16384] [--repeats 5] [--json FILE]

Q x K means Q views of this worker and K views of all workers; Q = K is a single worker. The dense reference is the common
implementation: one masked matrix of cosines and cross_entropy. pytorch-metric-learning (``pip install
pytorch-metric-learning``) has no support for Q < K and lists all pairs by index. It has its own row, with a size that fits into
memory. The sides take turns in every round; the ratio is the median of the ratios of the rounds.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from results import compare, finish, flags, is_installed, missing_row
from steps import held_mib
from torch import Tensor

from fairseq_clear.objectives import nt_xent
from fairseq_clear.objectives.exclusion import Exclusion

WIDTH, TEMPERATURE, AIM = 128, 0.1, ">= 1.0"
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
    """Print the rows."""
    arguments = flags(__doc__, sizes=["64x16384", "16384x16384"], metric_learning_size=512)
    pairs = [(*map(int, size.split("x")), "dense", dense) for size in arguments.sizes]
    views, table = arguments.metric_learning_size, []
    if is_installed("pytorch_metric_learning"):
        pairs.append((views, views, "pytorch-metric-learning", metric_learning))
    else:
        table = [missing_row(f"NT-Xent, {views:,} x {views:,}", "pytorch-metric-learning", AIM)]
    for queries, keys, name, other in pairs:
        mine, theirs = ours(queries, keys), other(queries, keys)
        mib = held_mib(mine), held_mib(theirs)
        what = f"NT-Xent, {queries:,} x {keys:,}"
        table.append(compare(what, mine, theirs, arguments.repeats, baseline=name, aim=AIM, mib=mib))
    finish(table, arguments)


if __name__ == "__main__":
    main()
