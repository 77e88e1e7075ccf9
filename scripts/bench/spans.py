"""Seconds of a DeCLUTR update that encodes spans of similar length together, compared with padding all to the longest.

    python scripts/bench/spans.py [--documents 4] [--repeats 5] [--json FILE]

The encoder is 2 x 128, without MLM. A document gives two anchors with two positives each, of 32 to 510 tokens, drawn from the
paper's distributions.
"""

import tempfile
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest import mock

from results import compare, finish, flags
from steps import build, make_text, steps

from fairseq_clear.modules import chunking

FLAGS = (
    *("--arch", "clear_roberta_tiny", "--criterion", "clear_nt_xent", "--mlm-weight", "0", "--temperature", "0.05"),
    *("--views", "span:anchors=2,positives=2,max=510", "--document-boundary", "line", "--tokens-per-sample", "512"),
)
SPANS = 6  # spans of a document
PADDED = {"cpu": 10**9, "cuda": 10**9}  # no part of a batch is ever large enough, so the batch is not split


def main() -> None:
    """Print the row."""
    arguments = flags(__doc__, documents=4)
    with tempfile.TemporaryDirectory() as folder:
        data = make_text(Path(folder), 8 * arguments.documents, (2_100, 2_600))
        trainer, dataset = build(data, *FLAGS)
        found = sum(1 + len(instance.positives) for instance in dataset[0].instances)
        assert found == SPANS, f"{found} spans of a document"
        step = steps(trainer, dataset, arguments.documents)

        def padded(number: int) -> None:
            with all_padded():
                step(number)

        what, baseline = f"update on spans of {arguments.documents} documents", "all padded to the longest"
        table = [compare(what, step, padded, arguments.repeats, baseline=baseline, aim=">= 1.0")]
    finish(table, arguments)


def all_padded() -> AbstractContextManager[Any]:
    """Pad all rows to the longest one."""
    return mock.patch.dict(chunking.ENOUGH_CELLS, PADDED)


if __name__ == "__main__":
    main()
