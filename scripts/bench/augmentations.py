"""Speed of every augmentation on one core: input tokens per second of a whole Chain call.

    python scripts/bench/augmentations.py [--length 512] [--repeats 7] [--json FILE]

Texts are random words over a synthetic vocabulary whose synonym table covers 40 % of the tokens, as CLEAR reports.
"""

from functools import partial
from statistics import median

import numpy as np
from results import finish, flags, in_turn, row

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


def main() -> None:
    """Print the rows."""
    arguments = flags(__doc__, length=512, repeats=7)
    rng = np.random.default_rng(1)
    symbols = make_symbols(rng)
    texts, table = make_texts(symbols, arguments.length, rng), []
    tokens = sum(map(len, texts))
    for spec in SPECS:
        chain = build_augmentation(spec, symbols)
        (seconds,) = in_turn([partial(augment, chain, texts)], arguments.repeats, 1)
        table.append(row(f"{spec}, {arguments.length} tokens", "M tokens/s", tokens / median(seconds) / 1e6))
        print(f"{spec:<24}{table[-1]['ours']:8.2f} M tokens/s")
    finish(table, arguments)


def augment(chain: Chain, texts: list[np.ndarray], seed: int) -> None:
    """Augment every text once."""
    rng = np.random.default_rng(seed)
    for text in texts:
        chain(text, rng)


if __name__ == "__main__":
    main()
