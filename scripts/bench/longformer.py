"""Time and peak memory of Longformer's window by length of the text, compared with full attention; one text per batch.

    OMP_NUM_THREADS=1 python scripts/bench/longformer.py [--lengths 512 1024 2048 4096 8192] [--window 512] [--repeats 3]
                                                         [--json FILE]

``attention`` is the attention alone, 12 heads of 32, forward and backward. ``step`` is an update of masked language modelling
with the whole encoder of 6 layers x 384, Adam included. Both kinds of attention run PyTorch's fused kernel (attention dropout
0). Memory is the peak that PyTorch's allocator adds during one step. glibc is set to keep freed memory (ALLOCATOR). By default
it returns blocks over 32 MiB to the system, and the next step faults them in again page by page, which takes a fifth of the
time at 8,192 tokens and next to nothing at 4,096.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from fairseq.data import Dictionary
from results import compare, finish, flags
from steps import held_mib

from fairseq_clear.interop.stock import build_model, settings_of
from fairseq_clear.modules.window_attention import MaskCache, window_attention

LAYERS, WIDTH, HEADS, FFN, VOCABULARY, MASKED = 6, 384, 12, 1536, 8_000, 0.15
LONGEST_WARM_UP = 2048
ALLOCATOR = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}
Step = Callable[[int], None]


def attention(length: int, window: int) -> Step:
    """A step that runs forward and backward of the attention alone; window 0 is full attention."""
    torch.manual_seed(1)
    parts = [torch.randn(1, length, HEADS, WIDTH // HEADS, requires_grad=True) for _ in range(3)]
    masks = MaskCache()

    def step(_: int) -> None:
        if window:
            output = window_attention(*parts, window, masks=masks)
        else:
            heads = [part.transpose(1, 2) for part in parts]
            output = F.scaled_dot_product_attention(*heads).transpose(1, 2)
        output.sum().backward()

    return step


def training_step(length: int, window: int) -> Step:
    """A step that updates the whole encoder."""
    dictionary = Dictionary()
    for number in range(VOCABULARY - len(dictionary)):
        dictionary.add_symbol(f"w{number}")
    settings = {
        "encoder-layers": LAYERS,
        "encoder-embed-dim": WIDTH,
        "encoder-ffn-embed-dim": FFN,
        "encoder-attention-heads": HEADS,
        "max-positions": length,
        "attention-window": window,
        "attention-dropout": 0.0,
        "projection-layers": 0,
    }
    model = build_model(settings_of(Path(), "clear_lm", "clear_roberta", settings), dictionary).train()
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


def main() -> None:
    """Print the rows."""
    arguments = flags(__doc__, lengths=[512, 1024, 2048, 4096, 8192], window=512, repeats=3)
    # glibc reads them when a process starts
    if any(os.environ.get(name) != value for name, value in ALLOCATOR.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ALLOCATOR})
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    table = []
    for kind, make in KINDS.items():
        for length in arguments.lengths:
            limited, full = make(length, arguments.window), make(length, 0)
            what = f"window of {arguments.window}, {kind}, {length:,} tokens"
            warm_up, mib = int(length <= LONGEST_WARM_UP), (held_mib(limited), held_mib(full))
            table.append(
                compare(what, limited, full, arguments.repeats, baseline="full attention", warm_up=warm_up, mib=mib)
            )
    finish(table, arguments)


if __name__ == "__main__":
    main()
