"""Splits a batch into parts with rows of similar length. Encoding one part at a time saves padding and memory."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

# Rows shorter than this share of a part's longest row join the part only until it has ENOUGH_CELLS.
ALIKE = 0.85
ENOUGH_CELLS = {"cpu": 1_024, "cuda": 16_384}


def enough_cells(device: torch.device) -> int:
    """Number of cells (rows times width) that keeps a device busy."""
    return ENOUGH_CELLS.get(device.type, ENOUGH_CELLS["cuda"])


def trim_padding(tokens: Tensor, padding: int) -> Tensor:
    """Drop the columns on the right of (B, T) tokens that hold only padding; at least one stays. Synchronises with the GPU."""
    longest = int(tokens.ne(padding).sum(dim=1).max()) if tokens.shape[0] else 1
    return tokens[:, : max(longest, 1)]


def alike(lengths: npt.NDArray[np.int64], budget: int | None, enough: int) -> Iterator[slice]:
    """Yield slices of rows to compute together, of up to ``budget`` cells. Much shorter rows join only up to ``enough`` cells.

    Args:
        lengths: (N,) lengths of the rows, in descending order.
        budget: maximum number of cells; None for no limit. A row with more cells is computed by itself.
        enough: number of cells that keeps the device busy.
    """
    # of the type of what is searched; else numpy converts all in every step
    begin, rising = 0, -lengths.astype(np.float64)
    while begin < len(lengths):
        longest = max(int(lengths[begin]), 1)
        full = len(lengths) if budget is None else begin + max(budget // longest, 1)
        least = begin + -(-enough // longest)
        mostly_padding = int(np.searchsorted(rising, -ALIKE * longest, side="right"))  # first row shorter than that
        end = min(full, max(least, mostly_padding), len(lengths))
        yield slice(begin, end)
        begin = end


def has_parts(lengths: Sequence[int], device: torch.device) -> bool:
    """Whether a batch with rows of these lengths is encoded in several parts."""
    falling = np.sort(np.asarray(lengths, np.int64))[::-1]
    return len(list(alike(falling, None, enough_cells(device)))) > 1


class Parts:
    """Splits the rows of a batch into parts of similar length, which are as wide as their longest row.

    A batch of one part keeps the order of its rows. With ``size``, a part has at most ``size`` cells, or is one row, and runs
    under activation checkpointing, which stores only the part's results. The recomputation restores the random state, so
    dropout draws the same masks. Checkpointing is non-reentrant: reentrant checkpointing breaks DistributedDataParallel.

    Args:
        tokens: (R, T), padded on the right.
        lengths: lengths of the rows, on the CPU. None means unpadded rows, unless ``size`` makes several parts: the lengths
            are then read from the device, with one synchronisation.
        size: maximum number of cells (rows times width) of a part; 0 for no limit.
        recompute: False runs the parts without activation checkpointing, for encoders without gradient.

    Raises:
        ValueError: the number of lengths differs from the number of rows.
    """

    def __init__(
        self, tokens: Tensor, padding: int, lengths: Sequence[int] | None, size: int = 0, *, recompute: bool = True
    ) -> None:
        self.tokens, self.recompute = tokens, recompute and size > 0
        self.order: Tensor | None = None
        rows = len(tokens)
        self.parts: list[tuple[slice, tuple[int, ...]]] = [(slice(0, rows), ())]  # rows, and their lengths if known
        if lengths is None and 0 < size < tokens.numel():
            lengths = tokens.ne(padding).sum(dim=1).tolist()
        if lengths is None:
            return
        known = np.asarray(lengths, np.int64)
        if len(known) != rows:
            raise ValueError(f"got {len(known)} lengths for {rows} rows")
        order = np.argsort(-known, kind="stable")
        slices = list(alike(known[order], size or None, enough_cells(tokens.device)))
        if len(slices) <= 1:
            self.parts = [(slice(0, rows), tuple(known.tolist()))]
            return
        self.parts = [(part, tuple(known[order[part]].tolist())) for part in slices]
        self.order = torch.from_numpy(order).to(tokens.device, non_blocking=True)

    def map(self, function: Callable[..., Any], *arguments: Tensor) -> list[Any]:
        """Apply ``function`` to each part.

        Args:
            function: called with a part's tokens and arguments, cut to the part's width, and ``lengths`` (empty if unknown).
            arguments: (R, T) or (R,) each.
        """
        results = []
        ordered = [rows if self.order is None else rows[self.order] for rows in (self.tokens, *arguments)]
        for part, lengths in self.parts:
            width = max(lengths, default=self.tokens.shape[1])
            tensors = [rows[part][..., :width] if rows.dim() > 1 else rows[part] for rows in ordered]
            of_part = partial(function, lengths=lengths)
            if self.recompute and torch.is_grad_enabled():
                results.append(checkpoint(of_part, *tensors, use_reentrant=False, preserve_rng_state=True))
            else:
                results.append(of_part(*tensors))
        return results

    def in_order(self, results: Sequence[Tensor]) -> Tensor:
        """Concatenate the results of the parts, (R, ...), in the order of the batch's rows."""
        rows = torch.cat(list(results))
        return rows if self.order is None else rows[self.order.argsort()]
