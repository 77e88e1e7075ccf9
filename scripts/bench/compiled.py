"""Seconds of a CLEAR update with compiled blocks (``--compile``), compared with the same update without.

    python scripts/bench/compiled.py [--words 20 60] [--batch 16] [--repeats 9] [--json FILE]

The encoder is 6 x 384 with dropout 0.1. It reads masked texts of mixed length and two views of each. The first update of the
compiled model, which includes the compilation, is a separate row.
"""

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from results import finish, row
from steps import ENCODER, build, in_turn, make_text, ratio, steps


def main() -> None:
    """Print a table; --json also writes it to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--words", type=int, nargs=2, default=[20, 60], help="minimum and maximum words of a sentence")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--arch", help="architecture (default: the encoder of the other benchmarks)")
    parser.add_argument("--backend", default="inductor", help="backend of torch.compile (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    encoder = ENCODER if arguments.arch is None else ("--arch", arguments.arch)
    flags = (*encoder, "--criterion", "clear_nt_xent", "--augment", "del-word", "--dropout", "0.1")
    with tempfile.TemporaryDirectory() as folder:
        data = make_text(Path(folder), 2_000, tuple(arguments.words))
        plain, compiled = (
            steps(*made, arguments.batch)
            for made in (build(data, *flags), build_compiled(arguments.backend, data, *flags))
        )
        began = time.perf_counter()
        compiled(0)
        start = time.perf_counter() - began
        seconds = in_turn([plain, compiled], arguments.repeats, warm_up=4)
    faster = ratio(*seconds)
    print(
        f"compiled after {start:.0f} s; an update {median(seconds[1]):.3f} s, plain {median(seconds[0]):.3f}: {faster:.2f}"
    )
    table = [
        row(
            "update, compiled blocks", "s", median(seconds[1]),
            baseline="plain blocks", theirs=median(seconds[0]), ratio=faster,
        ),
        row("first update, compiled blocks", "s", start),
    ]  # fmt: skip
    finish({"table": table, "repeats": arguments.repeats, "threads": torch.get_num_threads()}, arguments.json)


def build_compiled(backend: str, data: Path, *flags: str) -> Any:
    """Build a trainer with compiled blocks, and its training set."""
    trainer, dataset = build(data, *flags)
    trainer.get_model().compile_encoders(backend=backend)
    return trainer, dataset


if __name__ == "__main__":
    main()
