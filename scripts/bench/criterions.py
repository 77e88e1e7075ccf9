"""Seconds of updates: compiled blocks, SG-OPT and MoCo, each compared with the same update without them.

    python scripts/bench/criterions.py [--batch 16] [--words 10 30] [--queue-size 96606] [--width 384] [--repeats 9]

- Compiled blocks: a CLEAR update with ``--compile``, compared with plain blocks. The first one, which compiles, is a row too.
- SG-OPT: compared with a SimCSE update with the same batch, head and encoder.
- MoCo with CERT's queue: forward and backward, compared with the encoders alone.
- DeCLUTR: an encoder of 2 x 128 on the spans of --documents documents, 2 anchors with 2 positives each, of 32 to 510 tokens.
  Spans of similar length are encoded together, compared with padding all to the longest.
"""

import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from results import compare, finish, flags, row
from steps import ENCODER, build, make_text, steps

from fairseq_clear.modules import chunking

HEAD = (
    *("--projection-layers", "2", "--projection-hidden-dim", "4096", "--projection-dim", "4096"),
    *("--projection-activation", "gelu", "--projection-activate-last", "--pooling", "cls"),
)
LAYERS = {384: "6", 768: "12"}  # by width
SPANS = (
    *("--arch", "clear_roberta_tiny", "--criterion", "clear_nt_xent", "--mlm-weight", "0", "--temperature", "0.05"),
    *("--views", "span:anchors=2,positives=2,max=510", "--document-boundary", "line", "--tokens-per-sample", "512"),
)
PADDED = {"cpu": 10**9, "cuda": 10**9}  # no part of a batch is ever large enough, so the batch is not split


def main() -> None:
    """Print the rows."""
    arguments = flags(
        __doc__, batch=16, words=[10, 30], queue_size=96_606, width=384, documents=4, backend="inductor", repeats=9
    )
    size = (*ENCODER, "--encoder-layers", LAYERS[arguments.width], "--encoder-embed-dim", str(arguments.width))
    with tempfile.TemporaryDirectory() as folder:
        data = make_text(Path(folder), 2_000, tuple(arguments.words))
        table = [*compiled(data, size, arguments), self_guided(data, size, arguments), moco(data, size, arguments)]
        (Path(folder) / "long").mkdir()
        data = make_text(Path(folder) / "long", 8 * arguments.documents, (2_100, 2_600))
        table.append(spans(data, arguments))
    finish(table, arguments)


def compiled(data: Path, size: tuple[str, ...], arguments: Any) -> list[dict[str, Any]]:
    """The rows of compiled blocks."""
    chosen = (*size, "--criterion", "clear_nt_xent", "--augment", "del-word", "--dropout", "0.1")
    plain, made = build(data, *chosen), build(data, *chosen)
    made[0].get_model().compile_encoders(backend=arguments.backend)
    fast, began = steps(*made, arguments.batch), time.perf_counter()
    fast(0)
    first = row("first update, compiled blocks", "s", time.perf_counter() - began)
    other = steps(*plain, arguments.batch)
    what, baseline = "update, compiled blocks", "plain blocks"
    return [compare(what, fast, other, arguments.repeats, baseline=baseline, warm_up=4), first]


def self_guided(data: Path, size: tuple[str, ...], arguments: Any) -> dict[str, Any]:
    """The row of SG-OPT."""
    simcse = ("--criterion", "clear_nt_xent", "--mlm-weight", "0", "--temperature", "0.05")
    sides = [
        steps(*build(data, *size, *HEAD, *chosen), arguments.batch)
        for chosen in (("--criterion", "clear_self_guided"), simcse)
    ]
    what = f"SG-OPT update, {LAYERS[arguments.width]} x {arguments.width}"
    return compare(what, *sides, arguments.repeats, baseline="SimCSE update", aim="<= 1.1")


def moco(data: Path, size: tuple[str, ...], arguments: Any) -> dict[str, Any]:
    """The row of MoCo. Neither side includes the optimizer's step."""
    keys, batch = arguments.queue_size, arguments.batch
    trainer, dataset = build(data, *size, "--criterion", "clear_moco", "--pooling", "cls", "--queue-size", str(keys))
    model, criterion = trainer.get_model().train(), trainer.get_criterion().train()
    model.key_queue.enqueue(torch.randn(keys, model.projection_head.output_dim), torch.arange(keys))

    def sample(number: int) -> Any:
        return dataset.collater([dataset[(number * batch + k) % len(dataset)] for k in range(batch)])

    samples = [sample(number) for number in range(arguments.repeats + 2)]

    def update(number: int) -> None:
        model.zero_grad(set_to_none=True)
        criterion(model, samples[number])[0].backward()
        model.after_update()

    def encoders(number: int) -> None:
        model.zero_grad(set_to_none=True)
        views = samples[number]["views"]["tokens"]
        _, extra = model(views=views[:batch], key_texts=views[batch:])
        extra["projections"].sum().backward()

    what = f"MoCo update, queue of {keys:,}"
    return compare(what, update, encoders, arguments.repeats, baseline="encoders alone", aim="<= 1.15")


def spans(data: Path, arguments: Any) -> dict[str, Any]:
    """The row of DeCLUTR's spans."""
    step = steps(*build(data, *SPANS), arguments.documents)

    def padded(number: int) -> None:
        with mock.patch.dict(chunking.ENOUGH_CELLS, PADDED):
            step(number)

    what, baseline = f"update on spans of {arguments.documents} documents", "all padded to the longest"
    return compare(what, step, padded, arguments.repeats, baseline=baseline, aim=">= 1.0")


if __name__ == "__main__":
    main()
