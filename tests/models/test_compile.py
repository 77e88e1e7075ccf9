"""--compile: the same updates as without, whichever criterion and attention, from a handful of graphs."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch._dynamo.utils import counters

from fairseq_clear.models.text_model import TextModel
from tests.training import build

# torch's own, of how it looks at what it is given
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
SIZES = "--encoder-layers 2 --encoder-embed-dim 32 --encoder-ffn-embed-dim 64 --encoder-attention-heads 2".split()
NO_DROPOUT = ("--dropout", "0", "--attention-dropout", "0", "--activation-dropout", "0")
COMMON = (
    *("--arch", "clear_roberta", *SIZES, *NO_DROPOUT, "--optimizer", "adam", "--lr", "1e-3", "--max-positions", "64"),
    *("--tokens-per-sample", "64", "--sample-break-mode", "eos", "--augment", "del-word", "--projection-dim", "16"),
)
CRITERIONS: dict[str, tuple[str, ...]] = {
    "clear_nt_xent": ("--criterion", "clear_nt_xent"),
    "clear_moco": ("--criterion", "clear_moco", "--queue-size", "16", "--mlm-weight", "1"),
    "clear_self_guided": ("--criterion", "clear_self_guided", "--regularizer-weight", "0.1"),
    "window": ("--criterion", "clear_nt_xent", "--attention-window", "8"),
    "chunks": ("--criterion", "clear_nt_xent", "--encode-chunk-size", "192", "--encoder-layers", "1"),
}
# Tracing the backward pass as well (aot_eager) takes three times as long and is tested where activations are recomputed;
# elsewhere test_cpp does it.
BACKENDS = {"chunks": "aot_eager"}


@contextmanager
def compiling_with(**options: Any) -> Iterator[None]:
    """Another backend than the product's: C++ takes a minute to build, and what is tested is mostly what stands before it."""
    original = TextModel.compile_encoders
    changed = lambda model: original(model, **options)  # noqa: E731
    torch._dynamo.reset()
    counters.clear()
    with mock.patch.object(TextModel, "compile_encoders", changed):
        yield
    torch._dynamo.reset()


BATCHES = ((0, 4), (4, 6), (10, 3), (13, 5))


def updates(data: Path, *flags: str, batches: Any = BATCHES) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses of updates on batches of different sizes, and the weights after them."""
    trainer, dataset = build(data, *COMMON, *flags)
    losses = []
    for first, texts in batches:
        torch.manual_seed(first)
        logged = trainer.train_step([dataset.collater([dataset[first + k] for k in range(texts)])])
        assert logged is not None
        losses.append(float(logged["loss"]))
    return losses, {name: value.clone() for name, value in trainer.get_model().state_dict().items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", CRITERIONS)
def test_updates_are_the_same(name: str, even_bin: Path) -> None:
    batches = BATCHES[: 2 if name in BACKENDS else 4]
    plain = updates(even_bin, *CRITERIONS[name], batches=batches)
    with compiling_with(backend=BACKENDS.get(name, "eager")):
        compiled = updates(even_bin, *CRITERIONS[name], "--compile", batches=batches)
        assert counters["stats"]["unique_graphs"] > 0, "nothing was compiled"
        breaks = [reason for reason in counters["graph_break"] if "torch.compiler.disable" not in reason]
        assert not breaks, breaks
        assert bool(counters["graph_break"]) == (name == "window"), "of the attention over a window, nothing else"
        assert counters["stats"]["unique_graphs"] <= 8, "a graph for each shape"
    torch.testing.assert_close(compiled[0], plain[0], rtol=1e-5, atol=1e-5)
    assert compiled[1].keys() == plain[1].keys()
    for weight, value in plain[1].items():
        torch.testing.assert_close(compiled[1][weight], value, rtol=1e-4, atol=1e-5, msg=weight)


@pytest.mark.slow
def test_cpp(even_bin: Path) -> None:
    """The product's own backend."""
    flags = ("--criterion", "clear_nt_xent", "--mlm-weight", "0", "--encoder-layers", "1")
    plain = updates(even_bin, *flags, batches=BATCHES[:1])
    with compiling_with():
        compiled = updates(even_bin, *flags, "--compile", batches=BATCHES[:1])
        assert counters["stats"]["unique_graphs"] > 0
    torch.testing.assert_close(compiled[0], plain[0], rtol=1e-5, atol=1e-5)
