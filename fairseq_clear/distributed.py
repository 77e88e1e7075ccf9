"""Chooses a worker's device, and gathers rows from all workers with gradient, even if their numbers of rows differ."""

import os
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fairseq_clear.errors import UserError


def choose_device(name: str | torch.device | None) -> torch.device:
    """Return the device of this name; raise UserError if it does not exist.

    None and ``cuda`` mean the GPU with this worker's LOCAL_RANK, which torchrun and ``launch.sh`` set, else the first GPU.
    Without a GPU, None means the CPU.
    """
    count = torch.cuda.device_count()
    if name is None and not count:
        return torch.device("cpu")
    if name is None or (name == "cuda" and count):
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) % count)
    try:
        device: torch.device | None = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise UserError(f"device {name}: no such device; give cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(f"device {name}: there are {torch.cuda.device_count()} CUDA devices here; give cpu or another")
    return device


def world_size(group: Any = None) -> int:
    """Number of workers in ``group``; 1 if ``torch.distributed`` is not in use."""
    return dist.get_world_size(group) if dist.is_available() and dist.is_initialized() else 1


def all_reduce_sum(values: Tensor, group: Any = None) -> Tensor:
    """Sum of ``values`` over all workers, without gradient; ``values`` is not modified."""
    total = values.detach().clone()
    if world_size(group) > 1:
        dist.all_reduce(total, group=group)
    return total


@dataclass(frozen=True)
class Layout:
    """Row counts of all workers of ``group``, and the rank of this worker."""

    counts: tuple[int, ...]
    rank: int = 0
    group: Any = None

    @property
    def offset(self) -> int:
        """Index of this worker's first row among the rows of all workers."""
        return sum(self.counts[: self.rank])


def agree_on_counts(count: int, device: torch.device, group: Any = None) -> Layout:
    """Gather the row counts of all workers. A collective: every worker must call it. Synchronises with the GPU."""
    if world_size(group) == 1:
        return Layout((count,))
    mine = torch.tensor([count], device=device)
    sizes = [torch.zeros_like(mine) for _ in range(world_size(group))]
    dist.all_gather(sizes, mine, group=group)
    return Layout(tuple(torch.cat(sizes).tolist()), dist.get_rank(group), group)


def all_gather_rows(rows: Tensor, layout: Layout) -> Tensor:
    """Concatenate the rows of all workers in the order of their ranks: (n_0 + n_1 + ..., ...); of one worker, ``rows`` itself.

    The backward pass sums the gradients that all workers computed for the rows of this worker. If the gather were
    detached, the update would have a wrong direction; if only the local slice were re-inserted, a wrong scale. Workers may
    hold different numbers of rows, even 0. A collective: every worker must call it.

    Args:
        rows: (n, ...) on this worker, where n is its count in ``layout``. Trailing dimensions and dtype are the same on all
            workers.
        layout: row counts of all workers, from ``agree_on_counts``.
    """
    if len(layout.counts) == 1:
        return rows
    return _GatherRows.apply(rows, layout.counts, layout.rank, layout.group)


def _pad_rows(rows: Tensor, length: int) -> Tensor:
    padded = rows.new_zeros((length, *rows.shape[1:]))
    padded[: rows.shape[0]] = rows
    return padded


class _GatherRows(torch.autograd.Function):
    """Forward: all-gather of rows padded to the largest count. Backward: sum over workers; each keeps its own rows."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, counts: tuple[int, ...], rank: int, group: Any) -> Tensor:
        ctx.counts, ctx.rank, ctx.group = counts, rank, group
        longest = max(counts)
        parts = [rows.new_empty((longest, *rows.shape[1:])) for _ in counts]
        dist.all_gather(parts, _pad_rows(rows.detach(), longest), group=group)
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = gradients
        counts, rank = ctx.counts, ctx.rank
        if dist.get_backend(ctx.group) == "gloo":  # gloo has no reduce-scatter for every dtype
            total = gradient.contiguous().clone()
            dist.all_reduce(total, group=ctx.group)
            begin = sum(counts[:rank])
            return total[begin : begin + counts[rank]], None, None, None
        longest = max(counts)
        parts = torch.cat([_pad_rows(part, longest) for part in gradient.split(list(counts))])
        own = parts.new_empty((longest, *gradient.shape[1:]))
        dist.reduce_scatter_tensor(own, parts, group=ctx.group)
        return own[: counts[rank]], None, None, None
