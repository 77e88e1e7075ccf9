"""Seconds of a DeCLUTR update that encodes spans of similar length together, compared with padding all to the longest.

    python scripts/bench/spans.py [--documents 4] [--repeats 5] [--json FILE]

The encoder is 2 x 128, without MLM. A document gives two anchors with two positives each, of 32 to 510 tokens, drawn from the
paper's distributions.
"""

import argparse
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import torch
from results import finish, row
from steps import build, in_turn, make_text, ratio, steps

from fairseq_clear.modules import chunking

FLAGS = (
    *("--arch", "clear_roberta_tiny", "--criterion", "clear_nt_xent", "--mlm-weight", "0", "--temperature", "0.05"),
    *("--views", "span:anchors=2,positives=2,max=510", "--document-boundary", "line", "--tokens-per-sample", "512"),
)
SPANS = 6  # spans of a document
PADDED = {"cpu": 10**9, "cuda": 10**9}  # no part of a batch is ever large enough, so the batch is not split


def main() -> None:
    """Print a table; --json also writes it to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=4, help="documents of an update")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = make_text(Path(folder), 8 * arguments.documents, (2_100, 2_600))
        trainer, dataset = build(data, *FLAGS)
        found = sum(1 + len(instance.positives) for instance in dataset[0].instances)
        assert found == SPANS, f"{found} spans of a document"
        step = steps(trainer, dataset, arguments.documents)

        def padded(number: int) -> None:
            with all_padded():
                step(number)

        seconds = in_turn([step, padded], arguments.repeats)
    result = {
        "documents": arguments.documents,
        "seconds": median(seconds[0]),
        "padded_seconds": median(seconds[1]),
        "ratio": ratio(*seconds[::-1]),
        "repeats": arguments.repeats,
        "threads": torch.get_num_threads(),
    }
    result["table"] = [
        row(
            f"update on spans of {arguments.documents} documents", "s", result["seconds"],
            baseline="all padded to the longest", theirs=result["padded_seconds"], ratio=result["ratio"], aim=">= 1.0",
        )
    ]  # fmt: skip
    finish(result, arguments.json)


def all_padded() -> AbstractContextManager[Any]:
    """Pad all rows to the longest one."""
    return mock.patch.dict(chunking.ENOUGH_CELLS, PADDED)


if __name__ == "__main__":
    main()
