"""What a plan for fewer GPUs rests on: one worker that encodes in chunks makes the update of four."""

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Ranks
from tests.training import Case, distance, update

WORKERS, TEXTS = 4, 3
SHARES = [[list(range(TEXTS * rank, TEXTS * (rank + 1)))] for rank in range(WORKERS)]
EVERYTHING = [list(range(TEXTS * WORKERS))]


@pytest.mark.slow
def test_one_worker_in_chunks_makes_the_update_of_four(paired_bin: Path, ranks: Ranks) -> None:
    data = str(paired_bin)
    chunked = update(0, data, Case(("--encode-chunk-size", "80"), [EVERYTHING]))
    of_four: Any = ranks(WORKERS, update, data, Case(("--ddp-backend", "legacy_ddp"), SHARES))
    assert distance(chunked["before"], chunked["after"]) > 1e-2
    for one in of_four:
        assert distance(chunked["after"], one["after"]) < 1e-5
        assert one["log"]["contrastive_loss"] == pytest.approx(chunked["log"]["contrastive_loss"], abs=2e-3)
    # micro-batches in place of chunks: as many texts, fewer negatives, another update
    in_turn = update(0, data, Case(("--update-freq", str(WORKERS)), [[rows for (rows,) in SHARES]]))
    assert distance(chunked["after"], in_turn["after"]) > 1e-4
