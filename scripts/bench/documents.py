"""Time and memory of the index of documents, and speed of the span sampler, on a generated corpus.

    python scripts/bench/documents.py [--documents 50000] [--tokens 2048] [--line 25] [--repeats 5] [--keep DIR] [--json FILE]

The corpus is written as fairseq's binarizer would write it (.bin of uint16, .idx), to DIR or a temporary folder. Each step of
the index runs in its own process, --repeats times for its time and once for its peak memory. The memory is that of tracemalloc:
numpy's arrays and everything else except the pages of the mapped files, which the system may drop. Figures for 10^9 tokens
(500,000 documents) are those of the larger corpus times the ratio of tokens; another corpus of half the size shows whether they
grow in proportion.
"""

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
from mapped import write_index
from results import finish, row

from fairseq_clear.augmentations import Symbols
from fairseq_clear.augmentations.chain import build_augmentation
from fairseq_clear.seeding import rng_for
from fairseq_clear.text.documents import Documents, MappedLines, find_documents, index_path, load_document_index
from fairseq_clear.views.view_maker import ViewMaker
from fairseq_clear.views.view_table import build_view_source

BOS, EOS, VOCABULARY = 0, 2, 30_000
TARGET_TOKENS = 10**9
CHUNK_DOCUMENTS = 2_000


def write_corpus(prefix: Path, documents: int, tokens: int, line: int) -> int:
    """Write documents in lines of about ``line`` tokens to ``prefix.bin`` and ``prefix.idx``; return the number of lines."""
    per_document = np.full(-(-tokens // line), line + 1, np.int32)
    per_document[-1] = tokens - line * (len(per_document) - 1) + 1
    block = np.append(per_document, np.int32(1))  # a blank line ends the document
    sizes = np.tile(block, documents)
    rng = np.random.default_rng(1)
    ends = np.cumsum(block) - 1
    with open(f"{prefix}.bin", "wb") as file:
        for first in range(0, documents, CHUNK_DOCUMENTS):
            count = min(CHUNK_DOCUMENTS, documents - first)
            ids = rng.integers(4, VOCABULARY, (count, int(block.sum())), dtype=np.uint16)
            ids[:, ends] = EOS
            file.write(ids.tobytes())
    write_index(prefix, sizes)
    return len(sizes)


def _index(prefix: str, step: str, of_memory: bool) -> float:
    """Seconds of one step, or its peak memory in bytes; runs in a separate process."""
    part = MappedLines(prefix)
    if of_memory:
        tracemalloc.start()
    started = time.perf_counter()
    kept: Any = {
        "find": lambda: find_documents(part.sizes),
        "keep": lambda: load_document_index(prefix, part.sizes),
        "open": lambda: Documents([part], BOS, EOS),
    }[step]()
    seconds = time.perf_counter() - started
    assert len(kept)
    return tracemalloc.get_traced_memory()[1] if of_memory else seconds


def measure_index(prefix: Path, lines: int, repeats: int) -> dict[str, dict[str, float]]:
    """Measure three steps: find the documents, find and save them, open a corpus with a saved index. Medians over processes."""
    figures = {}
    for step in ("find", "keep", "open"):
        runs: dict[bool, list[float]] = {False: [], True: []}
        for of_memory in [False] * repeats + [True]:
            if step != "open":
                index_path(prefix, "blank").unlink(missing_ok=True)
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                runs[of_memory].append(pool.apply(_index, (str(prefix), step, of_memory)))
        seconds, memory = statistics.median(runs[False]), runs[True][0]
        figures[step] = {"seconds": seconds, "bytes_a_line": memory / lines, "ns_a_line": seconds / lines * 1e9}
    return figures


def measure_sampler(prefix: Path, repeats: int) -> dict[str, float]:
    """Documents per second on one core: for the sampler alone, and for whole items of the training set."""
    documents = Documents([MappedLines(str(prefix))], BOS, EOS)
    settings = {"short_documents": "clip", "same_document_negatives": "include", "tokens_per_sample": 512}
    source: Any = build_view_source("span:anchors=2,positives=2", documents, settings=settings)
    symbols = Symbols(bos=BOS, eos=EOS, pad=1, delete=VOCABULARY + 1, unk=3, mask=VOCABULARY)
    maker = ViewMaker(source, build_augmentation("none", symbols), 1, 512)
    order = np.random.default_rng(1).permutation(len(source.items))[:5_000].tolist()
    speeds: dict[str, list[float]] = {"sampler": [], "items": []}
    for repeat in range(repeats + 1):
        for name, make in (("sampler", lambda i, e: source(i, rng_for(1, e, i, 0))), ("items", maker)):
            started = time.perf_counter()
            for index in order:
                make(index, repeat + 1)
            speeds[name].append(len(order) / (time.perf_counter() - started))
    return {name: statistics.median(found[1:]) for name, found in speeds.items()}


def main() -> None:
    """Print the table and the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=int, default=50_000, help="documents of the larger of two corpora")
    parser.add_argument("--tokens", type=int, default=2048, help="tokens of a document")
    parser.add_argument("--line", type=int, default=25, help="tokens of a line")
    parser.add_argument("--repeats", type=int, default=5, help="runs; the median is reported")
    parser.add_argument("--keep", help="folder for the corpus (default: a temporary one)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    indexing: dict[int, dict[str, dict[str, float]]] = {}
    with tempfile.TemporaryDirectory(dir=arguments.keep) as folder:
        for documents in (arguments.documents // 2, arguments.documents):
            prefix = Path(folder) / f"train{documents}"
            lines = write_corpus(prefix, documents, arguments.tokens, arguments.line)
            figures = measure_index(prefix, lines, arguments.repeats)
            indexing[lines] = figures
            for step, found in figures.items():
                print(
                    f"{step:6} {lines:>12,} lines {documents:>9,} documents: {found['seconds']:8.4f} s "
                    f"{found['ns_a_line']:7.2f} ns per line {found['bytes_a_line']:6.2f} bytes per line"
                )
        scale = TARGET_TOKENS / (arguments.documents * arguments.tokens)
        for step, found in figures.items():
            print(
                f"{step:6} extrapolated to {TARGET_TOKENS:,} tokens: {found['seconds'] * scale:8.3f} s, "
                f"{found['bytes_a_line'] * lines * scale / 2**20:,.0f} MiB"
            )
        speeds = measure_sampler(prefix, arguments.repeats)
    for name, speed in speeds.items():
        print(f"{name:10}{speed:10,.0f} documents of {arguments.tokens:,} tokens per second on one core (A = P = 2)")
    table = [
        row(f"document index, {step}, {lines:,} lines", "ns/line", found["ns_a_line"],
            mib=found["bytes_a_line"] * lines / 2**20)
        for step, found in figures.items()
    ]  # fmt: skip
    table += [row(f"span views, {name}", "documents/s", speed) for name, speed in speeds.items()]
    flags = {name: value for name, value in vars(arguments).items() if name != "json"}
    report = {**flags, "numpy": np.__version__, "cores": os.cpu_count(), "index": indexing, "sampler": speeds}
    finish({**report, "table": table}, arguments.json)


if __name__ == "__main__":
    main()
