"""Rows of a batch encoded part by part: those of like length together, and no more at a time than memory holds."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fairseq_clear.errors import UserError

__all__ = ["ENOUGH_CELLS", "Part", "Parts", "alike", "check_chunk_size", "enough_cells", "has_parts", "trim_padding"]

# A part pads rows down to this share of its longest, and shorter ones only until it has cells enough to keep the device busy.
ALIKE = 0.85
ENOUGH_CELLS = {"cpu": 1_024, "cuda": 16_384}


def enough_cells(device: torch.device) -> int:
    """How many cells (rows times width) keep a device busy."""
    return ENOUGH_CELLS.get(device.type, ENOUGH_CELLS["cuda"])


def trim_padding(tokens: Tensor, padding: int) -> Tensor:
    """Drop the columns on the right that hold nothing but padding; one column is always left. On a GPU the host waits.

    Args:
        tokens: (B, T), padded on the right.
    """
    longest = int(tokens.ne(padding).sum(dim=1).max()) if tokens.shape[0] else 1
    return tokens[:, : max(longest, 1)]


def alike(lengths: npt.NDArray[np.int64], budget: int | None, enough: int) -> Iterator[slice]:
    """Consecutive rows to compute together: until ``budget`` cells are full, or ``enough`` are and rows get much shorter.

    Args:
        lengths: (N,) of the rows, falling.
        budget: most cells; None for any number. A row that has more is computed by itself.
        enough: cells that keep the device busy.
    """
    begin = 0
    while begin < len(lengths):
        longest = max(int(lengths[begin]), 1)
        full = len(lengths) if budget is None else begin + max(budget // longest, 1)
        least = begin + -(-enough // longest)
        mostly_padding = int(np.searchsorted(-lengths, -ALIKE * longest, side="right"))  # the first that would be
        end = min(full, max(least, mostly_padding), len(lengths))
        yield slice(begin, end)
        begin = end


def check_chunk_size(value: object) -> int:
    """``--encode-chunk-size`` as it is given, on a command line or in YAML; UserError unless it is 0 or more tokens."""
    if not isinstance(value, int) or value < 0:
        raise UserError(f"--encode-chunk-size {value}: give a whole number of tokens, or 0 for all at once")
    return value


def has_parts(lengths: Sequence[int], device: torch.device) -> bool:
    """Whether rows of such lengths are better encoded in several parts, each of like ones."""
    falling = np.sort(np.asarray(lengths, np.int64))[::-1]
    return len(list(alike(falling, None, enough_cells(device)))) > 1


class Part(NamedTuple):
    """Rows that are computed together, and their lengths, the longest of which is the width."""

    rows: slice
    lengths: tuple[int, ...]


class Parts:
    """The rows of a batch in parts of like length, which costs a batch of mixed lengths less padding.

    Where a batch is one part its rows stay in their order. With ``size`` a part has at most so many cells, or is one row, and
    only its results are kept: it runs under activation checkpointing that replays the random state, so that dropout draws the
    same masks when it is computed again. Checkpointing is non-reentrant: the reentrant kind breaks DistributedDataParallel.

    Args:
        tokens: (R, T), padded on the right.
        lengths: of the rows, as the host knows them; without, no row counts as padded unless ``size`` asks for more parts,
            for which the host asks the device once.
        padding: id of the padding.
        size: cells (rows times the longest of them) at a time; 0 for all.
        recompute: False keeps the activations all the same, for what has no gradient.

    Raises:
        ValueError: not as many lengths as rows, some of which would be left out.
    """

    def __init__(
        self,
        tokens: Tensor,
        padding: int,
        lengths: Sequence[int] | None = None,
        size: int = 0,
        *,
        recompute: bool = True,
    ) -> None:
        self.tokens, self.recompute = tokens, recompute and size > 0
        self.order: Tensor | None = None
        rows, width = tokens.shape
        if lengths is None and 0 < size < tokens.numel():
            lengths = tokens.ne(padding).sum(dim=1).tolist()
        if lengths is None:
            self.parts = [Part(slice(0, rows), ())]
            return
        known = np.asarray(lengths, np.int64)
        if len(known) != rows:
            raise ValueError(f"{len(known)} lengths of {rows} rows")
        order = np.argsort(-known, kind="stable")
        slices = list(alike(known[order], size or None, enough_cells(tokens.device)))
        if len(slices) <= 1:
            self.parts = [Part(slice(0, rows), tuple(known.tolist()))]
            return
        self.parts = [Part(rows, tuple(known[order[rows]].tolist())) for rows in slices]
        self.order = torch.from_numpy(order).to(tokens.device, non_blocking=True)

    def map(self, function: Callable[..., Any], *arguments: Tensor) -> list[Any]:
        """What ``function`` gives for each part.

        Args:
            function: of a part's tokens and arguments, trimmed alike, and ``lengths``, empty where they are not known.
            arguments: (R, T) or (R,) each.
        """
        results = []
        ordered = [rows if self.order is None else rows[self.order] for rows in (self.tokens, *arguments)]
        for part in self.parts:
            width = max(part.lengths, default=self.tokens.shape[1])
            tensors = [rows[part.rows][..., :width] if rows.dim() > 1 else rows[part.rows] for rows in ordered]
            of_part = partial(function, lengths=part.lengths)
            if self.recompute and torch.is_grad_enabled():
                results.append(checkpoint(of_part, *tensors, use_reentrant=False, preserve_rng_state=True))
            else:
                results.append(of_part(*tensors))
        return results

    def in_order(self, results: Sequence[Tensor]) -> Tensor:
        """(R, ...) results of the parts in the order of the rows."""
        rows = torch.cat(list(results))
        return rows if self.order is None else rows[self.order.argsort()]
