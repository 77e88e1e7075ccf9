"""Time that the STS harness adds to the encoder's own time: reading, caching, cosines, correlations.

cd examples/evaluation && python ../../scripts/bench/evaluation.py --data DATA --encoder baselines:MiniLM --tasks STS-B STS12
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fairseq_clear.evaluation.encoders import import_factory
from fairseq_clear.evaluation.sts import evaluate_sts, read_sts_tasks


class Timed:
    """An encoder that counts the seconds spent in it."""

    def __init__(self, encoder: object) -> None:
        self.encoder, self.seconds = encoder, 0.0

    def encode(self, sentences: Sequence[str], batch_size: int = 32) -> np.ndarray:
        """The encoder's vectors of the sentences."""
        began = time.perf_counter()
        vectors = np.asarray(self.encoder.encode(sentences, batch_size=batch_size))  # type: ignore[attr-defined]
        self.seconds += time.perf_counter() - began
        return vectors


def main() -> None:
    """Run the tasks once and print the shares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with STS12, STSBenchmark and so on")
    parser.add_argument("--encoder", required=True, help="package.module:factory")
    parser.add_argument("--tasks", nargs="+", default=["STS-B"])
    arguments = parser.parse_args()
    sys.path.insert(0, "")
    encoder = Timed(import_factory(arguments.encoder)())
    began = time.perf_counter()
    evaluate_sts(encoder, read_sts_tasks(arguments.data, arguments.tasks))
    whole = time.perf_counter() - began
    print(
        f"{whole:.2f} s, of which {encoder.seconds:.2f} s in the encoder: the harness adds {whole / encoder.seconds - 1:.2%}"
    )


if __name__ == "__main__":
    main()
