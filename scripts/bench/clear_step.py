"""Tokens per second of a CLEAR update and of a stock masked_lm update with the same encoder and optimizer. Aim: 0.95 or more.

    python scripts/bench/clear_step.py [--repeats 7] [--json FILE]

A CLEAR update reads each of B texts three times: masked and as two views. The stock update reads 3 B masked texts. Tokens are
those that the encoder reads, without padding. The share of padding in the CLEAR batch is reported too.
"""

import tempfile
from pathlib import Path
from statistics import median

from results import finish, flags, in_turn, row
from steps import ENCODER, build, make_text

AUGMENT = "del-span+reorder"


def main() -> None:
    """Print the row."""
    arguments = flags(__doc__, texts=16, words=[20, 60], repeats=7)
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
    padded = median(padding)
    line = row(
        f"CLEAR update, {arguments.texts} texts, {padded:.0%} padding", "tokens/s", median(rates[0]),
        baseline="masked_lm", theirs=median(rates[1]), ratio=median(a / b for a, b in zip(*rates, strict=True)),
        aim=">= 0.95",
    )  # fmt: skip
    finish([line], arguments, augment=AUGMENT, padding=padded)


if __name__ == "__main__":
    main()
