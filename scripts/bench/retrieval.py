"""Exact search for the nearest passages: queries per second and memory, compared with faiss's flat index.

    python scripts/bench/retrieval.py [--passages 1000000] [--queries 1000] [--repeats 3] [--json FILE]

Both sides search the same random vectors of length 1 for the 100 highest inner products with the same number of threads. Ours
also scales the vectors and ranks the candidates in float64, so that ties do not depend on the blocks. The time to fill faiss's
index is counted, as ours has none. Afterwards the scores are compared: a difference above 1e-5 is an error.
"""

import sys

import numpy as np
import torch
from results import compare, finish, flags, is_installed, missing_row

from fairseq_clear.evaluation.retrieval import DEPTH, PASSAGES_AT_ONCE, search

AIM = ">= 0.5"


def main() -> None:
    """Print the row."""
    arguments = flags(__doc__, passages=1_000_000, queries=1_000, dimension=384, repeats=3)
    what = f"search, {arguments.queries:,} queries in {arguments.passages:,} x {arguments.dimension}"
    if not is_installed("faiss"):
        finish([missing_row(what, "faiss-cpu", AIM)], arguments)
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

    found_row = compare(
        what, ours, theirs, arguments.repeats, baseline="faiss, flat index", aim=AIM, unit="queries/s",
        amount=arguments.queries, warm_up=0,
    )  # fmt: skip
    difference = float(np.abs(found["ours"] - found["faiss"]).max())
    if difference > 1e-5:
        sys.exit(f"the scores differ by {difference:.1e}")
    finish([found_row], arguments, difference=difference)


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


if __name__ == "__main__":
    main()
