"""examples/proof/correctness.py: its tables, the messages of failures, and the texts of an interrupted run."""

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.conftest import ROOT


@pytest.fixture(scope="module")
def correctness() -> Iterator[ModuleType]:
    path = list(sys.path)
    sys.path.insert(0, str(ROOT / "examples" / "proof"))
    yield importlib.import_module("correctness")
    sys.path[:] = path


def test_updates_that_are_made_twice_count_once(correctness: ModuleType, tmp_path: Path) -> None:
    lines = [[1, 5, 6], [2, 7, 8], [2, 7, 9], [3, 8, 4]]
    (tmp_path / "texts.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert correctness.texts_of(tmp_path) == (1, {1: [5, 6], 2: [7, 9], 3: [8, 4]})


def test_gradients_are_compared(correctness: ModuleType) -> None:
    def half(size: int, *_: Any) -> list[dict[str, torch.Tensor]]:
        rows = torch.eye(4)
        queue = rows.flip(0) if size == 2 else rows
        return [{"gradient": torch.ones(4) / size, "queue": queue}, {"gradient": torch.ones(4) / size, "queue": rows}][
            :size
        ]

    gradients, queues = correctness.gradient_rows(half, "data")
    assert gradients[0]["16 + 16: relative error"] == 0.5 and gradients[0]["16 + 16: cosine"] == pytest.approx(1)
    assert queues[0]["same vectors on both workers"] and not queues[0]["same order"]
