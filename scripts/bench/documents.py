"""Time and memory of the index of documents, and speed of the span sampler, on a generated corpus.

    python scripts/bench/documents.py [--documents 50000] [--tokens 2048] [--line 25] [--repeats 5] [--keep DIR] [--json FILE]

The corpus is written as fairseq's binarizer would write it (.bin of uint16, .idx), to DIR or a temporary folder. Each step of
the index runs in its own process, --repeats times for its time and once for its peak memory. The memory is that of tracemalloc:
numpy's arrays and everything else except the pages of the mapped files, which the system may drop.
"""

import multiprocessing
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from mapped import write_index
from results import finish, flags, in_turn, row

from fairseq_clear.augmentations import Symbols
from fairseq_clear.augmentations.chain import build_augmentation
from fairseq_clear.seeding import rng_for
from fairseq_clear.text.documents import Documents, MappedLines, find_documents, index_path, load_document_index
from fairseq_clear.views.view_maker import ViewMaker
from fairseq_clear.views.view_table import build_view_source

BOS, EOS, VOCABULARY = 0, 2, 30_000
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


def measure_index(prefix: Path, repeats: int) -> dict[str, tuple[float, float]]:
    """Median seconds and peak bytes: find the documents, find and save them, open a corpus with a saved index."""
    figures = {}
    for step in ("find", "keep", "open"):
        runs: dict[bool, list[float]] = {False: [], True: []}
        for of_memory in [False] * repeats + [True]:
            if step != "open":
                index_path(prefix, "blank").unlink(missing_ok=True)
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                runs[of_memory].append(pool.apply(_index, (str(prefix), step, of_memory)))
        figures[step] = median(runs[False]), runs[True][0]
    return figures


def measure_sampler(prefix: Path, repeats: int) -> dict[str, float]:
    """Documents per second on one core: for the sampler alone, and for whole items of the training set."""
    documents = Documents([MappedLines(str(prefix))], BOS, EOS)
    settings = {"short_documents": "clip", "same_document_negatives": "include", "tokens_per_sample": 512}
    source: Any = build_view_source("span:anchors=2,positives=2", documents, settings=settings)
    symbols = Symbols(bos=BOS, eos=EOS, pad=1, delete=VOCABULARY + 1, unk=3, mask=VOCABULARY)
    maker = ViewMaker(source, build_augmentation("none", symbols), 1, 512)
    order = np.random.default_rng(1).permutation(len(source.items))[:5_000].tolist()
    makers = {"sampler": lambda index, epoch: source(index, rng_for(1, epoch, index, 0)), "items": maker}

    def make_all(make: Callable[[int, int], object], epoch: int) -> None:
        for index in order:
            make(index, epoch + 1)

    seconds = in_turn([partial(make_all, make) for make in makers.values()], repeats, 1)
    return {name: len(order) / median(times) for name, times in zip(makers, seconds, strict=True)}


def main() -> None:
    """Print the rows."""
    arguments = flags(__doc__, documents=50_000, tokens=2048, line=25, keep=str)
    with tempfile.TemporaryDirectory(dir=arguments.keep) as folder:
        prefix = Path(folder) / "train"
        lines = write_corpus(prefix, arguments.documents, arguments.tokens, arguments.line)
        table = [
            row(f"document index, {step}, {lines:,} lines", "ns/line", seconds / lines * 1e9, mib=memory / 2**20)
            for step, (seconds, memory) in measure_index(prefix, arguments.repeats).items()
        ]
        speeds = measure_sampler(prefix, arguments.repeats)
    finish([*table, *(row(f"span views, {name}", "documents/s", speed) for name, speed in speeds.items())], arguments)


if __name__ == "__main__":
    main()
