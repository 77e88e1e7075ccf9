"""Matryoshka representation learning: an objective at several dimensions, so that vectors can be truncated later."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fairseq_clear.errors import UserError
from fairseq_clear.objectives.negatives import Result
from fairseq_clear.objectives.unit_vectors import unit_vectors


def parse_dimensions(text: str, *, flag: str = "--matryoshka") -> tuple[int, ...]:
    """Parse dimensions such as ``64,128,256``; no dimension for an empty text.

    Raises:
        UserError: they are not ascending whole numbers above 0.
    """
    if not text.strip():
        return ()
    parts = [part.strip() for part in text.split(",")]
    found = tuple(int(part) for part in parts if part.isascii() and part.isdigit())
    if len(found) < len(parts) or found[0] < 1 or list(found) != sorted(set(found)):
        raise UserError(f"{flag} {text}: give ascending whole numbers above 0, joined by commas, such as 64,128,256")
    return found


def at_dimensions(objective: Callable[..., Result], dimensions: Sequence[int]) -> Callable[..., Result]:
    """Return the mean of an objective over the first ``d`` dimensions of all vectors, for each d of ``dimensions``.

    Kusupati et al. 2022 (arXiv:2205.13147), eq. 1 with equal weights c_m, as a mean; vectors are scaled to length 1 after they
    are truncated (section 3). The result is called like ``objective``: its positional arguments of floating type are vectors,
    truncated in their last dimension; the others, such as indices, do not change. Queries without a candidate are the same at
    every dimension, so the number of rows is too. The statistics belong to the largest dimension. ``dimensions`` are ascending;
    one at or above the vectors' own leaves them whole.
    """

    def mean_over_dimensions(*arguments: Tensor, **options: Any) -> Result:
        results = [objective(*(_truncated(one, dimension) for one in arguments), **options) for dimension in dimensions]
        _, rows, statistics = results[-1]
        return torch.stack([loss for loss, _, _ in results]).mean(), rows, statistics

    return mean_over_dimensions


def _truncated(argument: Tensor, dimension: int) -> Tensor:
    if not argument.is_floating_point() or dimension >= argument.shape[-1]:
        return argument
    return unit_vectors(argument[..., :dimension])
