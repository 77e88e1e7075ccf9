"""Speed of every augmentation on one core: input tokens per second of a whole Chain call.

    python scripts/bench/augmentations.py [--length 512] [--repeats 7] [--json FILE]

Texts are random words over a synthetic vocabulary whose synonym table covers 40 % of the tokens, as CLEAR reports.
"""

import argparse
import statistics
import time
from pathlib import Path

import numpy as np
from results import finish, row

from fairseq_clear.augmentations import Symbols, SynonymTable
from fairseq_clear.augmentations.chain import Chain, build_augmentation

VOCABULARY = 32000
SPECS = (
    "none",
    "del-word",
    "del-span",
    "reorder",
    "subs",
    "del-span+reorder",
    "subs+del-word",
    "subs+del-word+reorder",
)


def make_symbols(rng: np.random.Generator) -> Symbols:
    """A vocabulary where two of three pieces start a word, and 20,000 words of one or two pieces with up to 8 synonyms each."""
    is_word_start = np.arange(VOCABULARY) % 3 != 0
    starts, inner = np.flatnonzero(is_word_start)[4:], np.flatnonzero(~is_word_start)[4:]
    rows: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for start in rng.choice(starts, 10000, replace=False).tolist():
        others = [
            (int(rng.choice(starts)), int(rng.choice(inner)))[: 1 + k % 2] for k in range(int(rng.integers(1, 9)))
        ]
        rows[(start,)] = others
        rows[(start, int(rng.choice(inner)))] = others
    return Symbols(0, 2, 1, VOCABULARY + 1, 3, VOCABULARY, SynonymTable.build(rows, is_word_start))


def make_texts(symbols: Symbols, length: int, rng: np.random.Generator) -> list[np.ndarray]:
    """64 blocks of ``length`` tokens, ``<s>`` and ``</s>`` included; about 40 % of the tokens are in words with synonyms."""
    table = symbols.synonyms
    assert table is not None
    known = [table.word_pieces[a:b] for a, b in zip(table.word_offsets, table.word_offsets[1:], strict=False)]
    lone = np.setdiff1d(np.flatnonzero(table.is_word_start)[4:], table.word_pieces)
    texts = []
    for _ in range(64):
        words = [known[rng.integers(len(known))] if rng.random() < 0.31 else rng.choice(lone, 1) for _ in range(length)]
        texts.append(np.concatenate([[symbols.bos], np.concatenate(words)[: length - 2], [symbols.eos]]))
    return texts


def measure(chain: Chain, texts: list[np.ndarray], repeats: int) -> float:
    """Input tokens per second, median over ``repeats`` passes."""
    tokens = sum(map(len, texts))
    speeds = []
    for repeat in range(repeats + 1):
        rng = np.random.default_rng(repeat)
        started = time.perf_counter()
        for text in texts:
            chain(text, rng)
        speeds.append(tokens / (time.perf_counter() - started))
    return statistics.median(speeds[1:])


def main() -> None:
    """Print the table and the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=int, default=512, help="tokens in a text, <s> and </s> included")
    parser.add_argument("--repeats", type=int, default=7, help="passes; the median is reported")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    rng = np.random.default_rng(1)
    symbols = make_symbols(rng)
    texts = make_texts(symbols, arguments.length, rng)
    figures = {spec: measure(build_augmentation(spec, symbols), texts, arguments.repeats) for spec in SPECS}
    for spec, speed in figures.items():
        print(f"{spec:<24}{speed / 1e6:8.2f} M tokens/s")
    report = {
        "length": arguments.length,
        "repeats": arguments.repeats,
        "numpy": np.__version__,
        "tokens_per_second": figures,
        "table": [
            row(f"{spec}, {arguments.length} tokens", "M tokens/s", speed / 1e6) for spec, speed in figures.items()
        ],
    }
    finish(report, arguments.json)


if __name__ == "__main__":
    main()
