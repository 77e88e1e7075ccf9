"""Seconds of a MoCo update with CERT's queue, divided by those of the encoders alone. Aim: 1.15 at most.

The encoders' work is forward and backward of the query encoder and forward of the key encoder. Neither side includes the
optimizer's step. The product of the queries with the queue, gradient included, is also timed alone.
"""

import argparse
import tempfile
from pathlib import Path
from statistics import median

import torch
from results import finish, row
from steps import ENCODER, build, in_turn, make_text, ratio

from fairseq_clear.objectives import info_nce


def main() -> None:
    """Print a line of JSON; --json also writes it to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queue-size", type=int, default=96_606)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--words", type=int, nargs=2, default=[10, 30], help="least and most words of a sentence")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = make_text(Path(folder), 2_000, tuple(arguments.words))
        trainer, dataset = build(
            data, *ENCODER, "--criterion", "clear_moco", "--pooling", "cls",
            "--queue-size", str(arguments.queue_size),
        )  # fmt: skip
    model, criterion = trainer.get_model().train(), trainer.get_criterion().train()
    samples = [
        dataset.collater([dataset[(number * arguments.batch + k) % len(dataset)] for k in range(arguments.batch)])
        for number in range(arguments.repeats + 2)
    ]
    width = model.projection_head.output_dim
    model.key_queue.enqueue(torch.randn(arguments.queue_size, width), torch.arange(arguments.queue_size))
    excluded = torch.zeros(arguments.batch, arguments.queue_size, dtype=torch.bool)

    def update(number: int) -> None:
        model.zero_grad(set_to_none=True)
        loss, _, _ = criterion(model, samples[number])
        loss.backward()
        model.after_update()

    def encoders(number: int) -> None:
        model.zero_grad(set_to_none=True)
        views = samples[number]["views"]["tokens"]
        _, extra = model(views=views[: arguments.batch], key_texts=views[arguments.batch :])
        extra["projections"].sum().backward()

    def queue(number: int) -> None:
        queries = torch.randn(arguments.batch, width, requires_grad=True)
        info_nce(queries, queries.detach(), model.key_queue.keys, temperature=0.07, excluded=excluded)[0].backward()

    whole, own, product = in_turn([update, encoders, queue], arguments.repeats)
    result = {
        "queue_size": arguments.queue_size,
        "batch": arguments.batch,
        "update_seconds": median(whole),
        "encoders_seconds": median(own),
        "queue_seconds": median(product),
        "ratio": ratio(whole, own),
        "repeats": arguments.repeats,
        "threads": torch.get_num_threads(),
    }
    result["table"] = [
        row(
            f"MoCo update, queue of {arguments.queue_size:,}", "s", result["update_seconds"],
            baseline="encoders alone", theirs=result["encoders_seconds"], ratio=result["ratio"], aim="<= 1.15",
        )
    ]  # fmt: skip
    finish(result, arguments.json)


if __name__ == "__main__":
    main()
