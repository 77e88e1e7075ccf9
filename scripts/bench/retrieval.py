"""Exact search for the nearest passages: queries per second and memory, compared with faiss's flat index.

    python scripts/bench/retrieval.py [--passages 1000000] [--queries 1000] [--repeats 3] [--json FILE]

Both sides search the same random vectors of length 1 for the 100 highest inner products with the same number of threads. Ours
also scales the vectors and ranks the candidates in float64, so that ties do not depend on the blocks. The time to fill faiss's
index is counted, as ours has none. Afterwards the scores are compared: a difference above 1e-5 is an error.
"""

import argparse
import sys
from pathlib import Path
from statistics import median

import numpy as np
import torch
from results import finish, is_installed, missing_row, row
from steps import in_turn, ratio

from fairseq_clear.evaluation.retrieval import DEPTH, PASSAGES_AT_ONCE, search

AIM = ">= 0.5"


def main() -> None:
    """Print the ratio; --json also writes the result to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=int, default=1_000_000)
    parser.add_argument("--queries", type=int, default=1_000)
    parser.add_argument("--dimension", type=int, default=384)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    what = f"search, {arguments.queries:,} queries in {arguments.passages:,} x {arguments.dimension}"
    if not is_installed("faiss"):
        finish({"table": [missing_row(what, "faiss-cpu", AIM)]}, arguments.json)
        return
    import faiss

    faiss.omp_set_num_threads(torch.get_num_threads())
    rng = np.random.default_rng(1)
    queries, passages = (
        _unit(rng.standard_normal((count, arguments.dimension), np.float32))
        for count in (arguments.queries, arguments.passages)
    )
    found: dict[str, np.ndarray] = {}

    def ours(_: int) -> None:
        parts = (passages[begin : begin + PASSAGES_AT_ONCE] for begin in range(0, len(passages), PASSAGES_AT_ONCE))
        found["ours"] = search(queries, parts, DEPTH).scores.numpy()

    def theirs(_: int) -> None:
        index = faiss.IndexFlatIP(arguments.dimension)
        index.add(passages)
        found["faiss"] = index.search(queries, DEPTH)[0]

    seconds = in_turn([ours, theirs], arguments.repeats, 0)
    difference = float(np.abs(found["ours"] - found["faiss"]).max())
    if difference > 1e-5:
        sys.exit(f"the scores differ by {difference:.1e}")
    rates = [arguments.queries / median(times) for times in seconds]
    faster = ratio(seconds[1], seconds[0])
    print(f"{what}: {rates[0]:.1f} queries/s, faiss {rates[1]:.1f}, largest difference of a score {difference:.1e}")
    line = row(what, "queries/s", rates[0], baseline="faiss, flat index", theirs=rates[1], ratio=faster, aim=AIM)
    finish({"seconds": seconds, "threads": torch.get_num_threads(), "table": [line]}, arguments.json)


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


if __name__ == "__main__":
    main()
