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

GLOO = (
    "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n"
    "  what():  [enforce fail at /a/b/gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 6144 vs 2048.\n"
    "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGABRT\n"
)


@pytest.fixture(scope="module")
def correctness() -> Iterator[ModuleType]:
    path = list(sys.path)
    sys.path.insert(0, str(ROOT / "examples" / "proof"))
    yield importlib.import_module("correctness")
    sys.path[:] = path


def test_a_table(correctness: ModuleType) -> None:
    rows = [
        {"system": "one", "error": "fails: a | b\n c"},
        {"system": "two", "error": 4.8e-7, "cosine": 1.0, "weights": 566_355, "same": True},
        {"system": "three", "error": 0.0, "cosine": -0.98219, "weights": 0, "same": False},
    ]
    table = importlib.import_module("correctness_tables").markdown({"tables": {"gradient": rows}}, "gradient")
    assert table.splitlines() == [
        "| system | error | cosine | weights | same |",
        "|---|---|---|---|---|",
        "| one | fails: a / b c |  |  |  |",
        "| two | 4.8e-07 | 1.0000 | 566,355 | yes |",
        "| three | 0 | -0.9822 | 0 | no |",
    ]


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (GLOO, "pair.cc:456: op.preamble.length <= op.nbytes. 6144 vs 2048."),
        ("Traceback:\n  File\nModuleNotFoundError: No module named 'datasets'\n", "No module named 'datasets'"),
        ("killed", ""),
    ],
)
def test_the_message_of_a_failure(said: str, message: str, correctness: ModuleType) -> None:
    assert correctness.message_of(said) == message


def test_updates_that_are_made_twice_count_once(correctness: ModuleType, tmp_path: Path) -> None:
    lines = [[1, 5, 6], [2, 7, 8], [2, 7, 9], [3, 8, 4]]
    (tmp_path / "texts.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert correctness.texts_of(tmp_path) == (1, {1: [5, 6], 2: [7, 9], 3: [8, 4]})


def test_failures_are_rows(correctness: ModuleType, tmp_path: Path) -> None:
    def fails(*_: Any) -> str:
        return "fails: here"

    gradients, queues = correctness.gradient_rows(fails, "data")
    assert len(gradients) == 9 and all(row["24 + 8: relative error"] == "fails: here" for row in gradients)
    assert [row["vectors"] for row in queues] == ["fails: here"] * 4 + ["none"] * 7
    assert all("fails: here" in row.values() for row in correctness.equal_rows(fails, "data"))
    assert all("fails: here" in row.values() for row in correctness.half_rows(fails))
    assert [row["weights"] for row in correctness.resume_rows(fails, "data", tmp_path)][:2] == ["fails: here"] * 2


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


def test_a_table_of_a_page_is_checked_and_written(correctness: ModuleType, tmp_path: Path) -> None:
    check_tables = importlib.import_module("check_tables")
    page = tmp_path / "docs" / "correctness.md"
    page.parent.mkdir()
    (tmp_path / "proof.json").write_text(json.dumps({"tables": {"half": [{"system": "one", "error": 0.5}]}}))
    page.write_text("<!-- figures: proof proof.json#half -->\n| system | error |\n|---|---|\n| one | 0.4000 |\n")
    assert "differs from proof.json#half" in check_tables.check(tmp_path)[0]
    check_tables.write(page, tmp_path)
    assert check_tables.check(tmp_path) == [] and "| one | 0.5000 |" in page.read_text()
    page.write_text(page.read_text().replace("#half", "#other"))
    assert "no such kind, file or table; kinds: bench, proof" in check_tables.check(tmp_path)[0]
