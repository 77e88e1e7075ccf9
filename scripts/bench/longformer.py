"""Time and peak memory of Longformer's window by length of the text, compared with full attention; one text per batch.

    OMP_NUM_THREADS=1 python scripts/bench/longformer.py [--lengths 512 1024 2048 4096 8192] [--window 512] [--repeats 3]
                                                         [--json FILE]

``attention`` is the attention alone, 12 heads of 32, forward and backward. ``step`` is an update of masked language modelling
with the whole encoder of 6 layers x 384, Adam included. Both kinds of attention run PyTorch's fused kernel (attention dropout
0). All lengths take turns, so that other load slows all of them. Seconds are medians; growth and speed-up are medians of the
ratios within a round. Memory is the peak that PyTorch's allocator adds during one step.

With attention dropout PyTorch has no fused kernel for a CPU, and full attention stores every attention weight: the columns
``MiB drop`` show this (attention alone; full attention to 4,096 tokens only). glibc is set to keep freed memory (ALLOCATOR). By
default it returns blocks over 32 MiB to the system, and the next step faults them in again page by page, which takes a fifth
of the time at 8,192 tokens and next to nothing at 4,096.

The ratio of operations counts products of matrices: with the W + 2 keys of a query (``need``), and with the C + W + 1 keys that
its block reads (``read``).
"""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.data import Dictionary
from results import finish, row
from steps import held_mib, in_turn, ratio

from fairseq_clear.interop.stock import build_model, settings_of
from fairseq_clear.modules.window_attention import MaskCache, block_size, window_attention

LAYERS, WIDTH, HEADS, FFN, VOCABULARY, MASKED = 6, 384, 12, 1536, 8_000, 0.15
LONGEST_WITH_DROPOUT, LONGEST_WARM_UP = 4096, 2048
ALLOCATOR = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}
Step = Callable[[int], None]


def attention(length: int, window: int, dropout: float = 0.0) -> Step:
    """A step that runs forward and backward of the attention alone; window 0 is full attention."""
    torch.manual_seed(1)
    parts = [torch.randn(1, length, HEADS, WIDTH // HEADS, requires_grad=True) for _ in range(3)]
    masks = MaskCache()

    def step(_: int) -> None:
        if window:
            output = window_attention(*parts, window, dropout=dropout, masks=masks)
        else:
            heads = [part.transpose(1, 2) for part in parts]
            output = F.scaled_dot_product_attention(*heads, dropout_p=dropout).transpose(1, 2)
        output.sum().backward()

    return step


def training_step(length: int, window: int, dropout: float = 0.0) -> Step:
    """A step that updates the whole encoder."""
    dictionary = Dictionary()
    for number in range(VOCABULARY - len(dictionary)):
        dictionary.add_symbol(f"w{number}")
    flags = {
        "encoder-layers": LAYERS,
        "encoder-embed-dim": WIDTH,
        "encoder-ffn-embed-dim": FFN,
        "encoder-attention-heads": HEADS,
        "max-positions": length,
        "attention-window": window,
        "attention-dropout": dropout,
        "projection-layers": 0,
    }
    model = build_model(settings_of(Path(), "clear_lm", "clear_roberta", flags), dictionary).train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-5)
    tokens = torch.randint(4, VOCABULARY, (1, length))
    is_masked = torch.rand(1, length) < MASKED

    def step(_: int) -> None:
        optimizer.zero_grad()
        logits, _extra = model(tokens, masked_tokens=is_masked)
        F.cross_entropy(logits, tokens[is_masked]).backward()
        optimizer.step()

    return step


KINDS: dict[str, Callable[..., Step]] = {"attention": attention, "step": training_step}


def memory(kind: str, length: int, window: int, dropout: float = 0.0) -> float:
    """Peak memory in MiB that one step adds."""
    return held_mib(KINDS[kind](length, window, dropout))


def operations(kind: str, length: int, keys: int) -> float:
    """Multiplications and additions of the forward pass, with ``keys`` keys per query."""
    products = 4.0 * keys * WIDTH * length
    if kind == "attention":
        return products
    dense = LAYERS * (8 * WIDTH**2 + 4 * WIDTH * FFN) + MASKED * 2 * WIDTH * (WIDTH + VOCABULARY)
    return LAYERS * products + dense * length


def measure(kind: str, lengths: list[int], window: int, repeats: int) -> list[dict[str, Any]]:
    """The rows of one kind. All lengths take turns in every round, so that other load slows all of them alike."""
    steps = [KINDS[kind](length, limit) for length in lengths for limit in (0, window)]
    for length, step in zip([length for length in lengths for _ in (0, 1)], steps, strict=True):
        if length <= LONGEST_WARM_UP:
            step(0)
    seconds = in_turn(steps, repeats, warm_up=0)
    rows = []
    for index, length in enumerate(lengths):
        full, limited = seconds[2 * index : 2 * index + 2]
        found: dict[str, Any] = {"kind": kind, "length": length, "full_s": median(full), "window_s": median(limited)}
        found["speedup"] = ratio(full, limited)
        if index:
            found["full_growth"] = ratio(full, seconds[2 * index - 2])
            found["window_growth"] = ratio(limited, seconds[2 * index - 1])
        for name, keys in (("need", window + 2), ("read", block_size(window) + window + 1)):
            found[f"operations_{name}"] = operations(kind, length, length) / operations(kind, length, min(keys, length))
        rows.append(found)
    return rows


def add_memory(rows: list[dict[str, Any]], window: int) -> None:
    """Add to the rows the peak memory and its growth from one length to the next."""
    for before, found in zip([None, *rows], rows, strict=False):
        kind, length = found["kind"], found["length"]
        found["full_mib"], found["window_mib"] = memory(kind, length, 0), memory(kind, length, window)
        found["window_mib_growth"] = found["window_mib"] / before["window_mib"] if before else None
        if kind == "attention":
            found["window_drop_mib"] = memory(kind, length, window, 0.1)
            found["full_drop_mib"] = memory(kind, length, 0, 0.1) if length <= LONGEST_WITH_DROPOUT else None


def line(found: dict[str, Any]) -> str:
    """One line of the printed table; growth is relative to the previous length."""

    def number(name: str, form: str, width: int) -> str:
        return " " * width if found.get(name) is None else f"{found[name]:{width}{form}}"

    return (
        f"{found['kind']:9}{found['length']:6,} {found['full_s']:9.3f} {number('full_growth', '.2f', 6)}"
        f" {found['window_s']:9.3f} {number('window_growth', '.2f', 6)}{found['speedup']:9.2f}"
        f" {found['operations_need']:6.2f} {found['operations_read']:6.2f}{found['full_mib']:9,.0f} {found['window_mib']:8,.0f}"
        f" {number('window_mib_growth', '.2f', 6)} {number('full_drop_mib', ',.0f', 8)}"
        f" {number('window_drop_mib', ',.0f', 8)}"
    )


def main() -> None:
    """Print the table and the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--lengths", type=int, nargs="+", default=[512, 1024, 2048, 4096, 8192], help="tokens of a text"
    )
    parser.add_argument("--window", type=int, default=512, help="W, tokens of the window")
    parser.add_argument("--repeats", type=int, default=3, help="runs; the median is reported")
    parser.add_argument("--kinds", nargs="+", choices=sorted(KINDS), default=sorted(KINDS), help="what to measure")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    if any(
        os.environ.get(name) != value for name, value in ALLOCATOR.items()
    ):  # glibc reads them when a process starts
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ALLOCATOR})
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    print(f"W {arguments.window}, {torch.get_num_threads()} thread(s), torch {torch.__version__}, float32, CPU")
    print(
        f"{'':9}{'tokens':>6} {'full s':>9} {'grows':>6} {'window s':>9} {'grows':>6}{'speed-up':>9} {'need':>6} {'read':>6}"
        f"{'full MiB':>9} {'window':>8} {'grows':>6} {'MiB drop':>8} {'window':>8}"
    )
    rows: list[dict[str, Any]] = []
    for kind in arguments.kinds:
        measured = measure(kind, arguments.lengths, arguments.window, arguments.repeats)
        add_memory(measured, arguments.window)
        print("\n".join(map(line, measured)), flush=True)
        rows += measured
    flags = {name: value for name, value in vars(arguments).items() if name != "json"}
    report = {**flags, "threads": torch.get_num_threads(), "torch": torch.__version__, "rows": rows}
    report["table"] = [
        row(
            f"window of {arguments.window}, {found['kind']}, {found['length']:,} tokens", "s", found["window_s"],
            baseline="full attention", theirs=found["full_s"], ratio=found["speedup"],
            mib=found["window_mib"], their_mib=found["full_mib"],
        )
        for found in rows
    ]  # fmt: skip
    finish(report, arguments.json)


if __name__ == "__main__":
    main()
