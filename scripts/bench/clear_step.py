"""Tokens per second of a CLEAR update and of a stock masked_lm update with the same encoder and optimizer. Aim: 0.95 or more.

    python scripts/bench/clear_step.py [--repeats 7] [--json FILE]

A CLEAR update reads each of B texts three times: masked and as two views. The stock update reads 3 B masked texts. Tokens are
those that the encoder reads, without padding. The share of padding in the CLEAR batch is reported too.
"""

import argparse
import tempfile
from pathlib import Path
from statistics import median

import torch
from results import finish, row
from steps import ENCODER, build, in_turn, make_text

AUGMENT = "del-span+reorder"


def main() -> None:
    """Print a line of JSON; --json also writes it to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=16, help="B, texts of a CLEAR update")
    parser.add_argument("--words", type=int, nargs=2, default=[20, 60], help="least and most words of a text")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = make_text(Path(folder), 2_000, tuple(arguments.words))
        clear = build(data, *ENCODER, "--projection-layers", "2", "--criterion", "clear_nt_xent", "--augment", AUGMENT)
        stock = build(data, *ENCODER, "--projection-layers", "2", "--criterion", "masked_lm")
    tokens: list[list[int]] = [[], []]
    padding: list[float] = []

    def update(which: int, number: int) -> None:
        trainer, dataset = (clear, stock)[which]
        texts = arguments.texts * (3, 1)[1 - which]
        sample = dataset.collater([dataset[(number * texts + k) % len(dataset)] for k in range(texts)])
        trainer.train_step([sample])
        parts = [sample["net_input"]["src_tokens"], *([sample["views"]["tokens"]] if which == 0 else [])]
        pad = trainer.task.source_dictionary.pad()
        tokens[which].append(sum(int(part.ne(pad).sum()) for part in parts))
        if which == 0:
            padding.append(1 - tokens[0][-1] / sum(part.numel() for part in parts))

    seconds = in_turn([lambda n: update(0, n), lambda n: update(1, n)], arguments.repeats)
    rates = [
        [count / s for count, s in zip(counts[-len(times) :], times, strict=True)]
        for counts, times in zip(tokens, seconds, strict=True)
    ]
    result = {
        "shape": "6 x 384",
        "augment": AUGMENT,
        "clear_tokens_per_second": median(rates[0]),
        "masked_lm_tokens_per_second": median(rates[1]),
        "ratio": median(a / b for a, b in zip(*rates, strict=True)),
        "padding": median(padding),
        "repeats": arguments.repeats,
        "threads": torch.get_num_threads(),
    }
    mine, theirs = (result[f"{name}_tokens_per_second"] for name in ("clear", "masked_lm"))
    result["table"] = [
        row(
            f"CLEAR update, {arguments.texts} texts, {result['padding']:.0%} padding", "tokens/s", mine,
            baseline="masked_lm", theirs=theirs, ratio=result["ratio"], aim=">= 0.95",
        )
    ]  # fmt: skip
    finish(result, arguments.json)


if __name__ == "__main__":
    main()
