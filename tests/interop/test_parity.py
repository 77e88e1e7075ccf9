"""The verdict itself: either difference alone fails it, and so does NaN."""

import math

import pytest

from fairseq_clear.errors import UserError
from fairseq_clear.interop.parity import TOLERANCE, Parity


@pytest.mark.parametrize(
    ("states", "embeddings"),
    [(2e-4, 0.0), (None, 2e-4), (0.0, 2e-4), (math.nan, 0.0), (0.0, math.nan), (None, math.nan)],
)
def test_differences_fail(states: float | None, embeddings: float) -> None:
    with pytest.raises(UserError, match="above 1e-04, so nothing was written: because"):
        Parity(states, embeddings, "another", ": because").check()


@pytest.mark.parametrize("states", [None, 0.0, TOLERANCE])
def test_small_ones_pass(states: float | None) -> None:
    Parity(states, TOLERANCE, "another").check()
