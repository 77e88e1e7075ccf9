"""Encoding a large batch in chunks of rows whose activations are recomputed in the backward pass."""

from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

Result = TypeVar("Result")

__all__ = ["map_chunks", "row_chunks", "take_chunk", "trim_padding"]


def trim_padding(tokens: Tensor, padding: int) -> Tensor:
    """Drop the columns on the right that hold nothing but padding; one column is always left. On a GPU the host waits.

    Args:
        tokens: (B, T), padded on the right.
    """
    longest = int(tokens.ne(padding).sum(dim=1).max()) if tokens.shape[0] else 1
    return tokens[:, : max(longest, 1)]


def take_chunk(tokens: Tensor, rows: slice, padding: int) -> Tensor:
    """Some of the rows, no wider than they need; all of them as they are, which asks nothing of the device.

    Args:
        tokens: (B, T), padded on the right.
        rows: consecutive ones.
        padding: its id.
    """
    chunk = tokens[rows]
    return chunk if chunk.shape[0] == tokens.shape[0] else trim_padding(chunk, padding)


def row_chunks(rows: int, size: int) -> Iterator[slice]:
    """Consecutive slices of at most ``size`` rows."""
    for begin in range(0, rows, size):
        yield slice(begin, min(begin + size, rows))


def map_chunks(
    function: Callable[..., Result], rows: int, size: int, *arguments: Tensor, recompute: bool = True
) -> list[Result]:
    """Apply ``function`` to chunks of rows, keeping only its results: memory is bounded by one chunk.

    Each chunk runs under activation checkpointing that replays the random state, so that dropout draws the same masks
    when the chunk is recomputed. Checkpointing is non-reentrant: the reentrant kind breaks DistributedDataParallel.

    Args:
        function: of the rows of ``arguments``; returns a tensor or several.
        rows: number of rows of each argument.
        size: of a chunk, in rows.
        arguments: tensors with ``rows`` rows.
        recompute: False keeps the activations (for tests).

    Returns:
        What the function returned, chunk by chunk.
    """
    results: list[Result] = []
    for chunk in row_chunks(rows, size):
        parts = [argument[chunk] for argument in arguments]
        if recompute and torch.is_grad_enabled():
            results.append(checkpoint(function, *parts, use_reentrant=False, preserve_rng_state=True))
        else:
            results.append(function(*parts))
    return results
