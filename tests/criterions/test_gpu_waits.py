"""Where the CPU waits for the GPU in an update: only where stock masked_lm does too, and nowhere with views alone.

On a CPU nothing waits, but the operations that would on a GPU are the same: those whose result Python, or the size of the next
tensor, depends on.
"""

from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from fairseq.logging import metrics
from fairseq.models.transformer import TransformerEncoder
from torch.utils._python_dispatch import TorchDispatchMode

from fairseq_clear.criterions.figures import read_figures
from fairseq_clear.models.clear_roberta import ClearRobertaModel
from fairseq_clear.modules import chunking
from fairseq_clear.modules.chunking import trim_padding
from tests.models.test_pretrained_encoder import FLAGS as SIZES
from tests.models.test_pretrained_encoder import write
from tests.training import build

pytestmark = pytest.mark.slow

COMMON = (
    *("--arch", "clear_roberta_tiny", "--optimizer", "adam", "--lr", "1e-4", "--max-positions", "64"),
    *("--tokens-per-sample", "64", "--augment", "del-word", "--sample-break-mode", "eos"),
)


# An encoder that does not know the lengths of its texts looks whether a batch has padding.
ENCODER = 1


class Waits(TorchDispatchMode):
    """Counts them by name while it is active."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        indices = args[1] if name in ("index", "index_put", "index_put_") else []
        if name in ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "_unique2"):
            self.found[name] += 1
        elif name == "lift_fresh" and args[0].dtype == torch.float64:
            self.found["a figure becomes a tensor, which is copied to the GPU"] += 1
        elif any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices):
            self.found["index by a mask"] += 1
        return func(*args, **(kwargs or {}))


def waits(data: Path, *flags: str) -> Counter[str]:
    """Of one forward and backward pass, after a first update."""
    trainer, dataset = build(data, *COMMON, *flags)
    first, second = (dataset.collater([dataset[4 * batch + k] for k in range(4)]) for batch in range(2))
    trainer.train_step([first])
    with Waits() as counted:
        loss, *_ = trainer.criterion(trainer.model, second)
        loss.backward()
    return counted.found


def test_clear_waits_where_masked_lm_does(even_bin: Path) -> None:
    stock = waits(even_bin, "--criterion", "masked_lm")
    assert stock["_local_scalar_dense"] > ENCODER, "masked_lm's own are seen"
    assert waits(even_bin, "--criterion", "clear_nt_xent") == stock


@pytest.mark.parametrize("criterion", ["clear_nt_xent", "clear_moco"])
def test_a_guide_adds_none(criterion: str, even_bin: Path, tmp_path: Path) -> None:
    guide = str(write(tmp_path / "guide", even_bin, **{**SIZES, "max-positions": 64}))
    flags = ("--criterion", criterion, "--mlm-weight", "0", "--false-negatives", "guide", "--guide", guide)
    assert waits(even_bin, *flags) == Counter()


@pytest.mark.parametrize("size", ["0", "128"])
@pytest.mark.parametrize("criterion", ["clear_nt_xent", "clear_self_guided", "clear_moco"])
def test_views_alone(criterion: str, size: str, even_bin: Path) -> None:
    flags = ("--criterion", criterion, "--mlm-weight", "0", "--encode-chunk-size", size)
    assert waits(even_bin, *flags) == Counter()
    alike = mock.patch.multiple(chunking, ALIKE=1.0, ENOUGH_CELLS={"cpu": 1, "cuda": 1})
    with alike, mock.patch.object(chunking.Parts, "map", autospec=True, side_effect=chunking.Parts.map) as mapped:
        assert waits(even_bin, *flags) == Counter(), "nor does it matter how many parts a batch has"
    assert max(len(call.args[0].parts) for call in mapped.call_args_list) > 1


def test_the_encoder_of_fairseq_waits_before_every_block(even_bin: Path) -> None:
    with mock.patch("fairseq_clear.models.encoder_stack.EncoderStack", TransformerEncoder):
        found = waits(even_bin, "--criterion", "clear_nt_xent", "--mlm-weight", "0")
    assert found == Counter(_local_scalar_dense=ENCODER + 2), "of two blocks"


def test_figures_are_read_as_they_are() -> None:
    """Those of several micro-batches; numbers and tensors of more elements stay."""
    logs = [
        {"loss": torch.tensor(0.1, dtype=torch.float16), "n": 3, "all": torch.ones(2)},
        {"loss": torch.tensor([7]), "n": 4},
    ]
    first, second = read_figures(logs)
    assert first["loss"].item() == logs[0]["loss"].item() and second["loss"].item() == 7
    assert first["loss"].dtype == second["loss"].dtype == torch.float64 and second["loss"].shape == ()
    assert (first["n"], second["n"]) == (3, 4) and first["all"] is logs[0]["all"]
    assert logs[1]["loss"].shape == (1,), "the logs themselves are not changed"
    assert read_figures([]) == [] and read_figures([{"n": 1}]) == [{"n": 1}]


def test_the_task_reads_them_before_they_are_logged(even_bin: Path) -> None:
    trainer, _ = build(even_bin, *COMMON, "--criterion", "clear_nt_xent")
    seen: list[Any] = []
    log = {"loss": torch.ones(1, dtype=torch.float16), "ntokens": 1, "nsentences": 1, "sample_size": 1}
    with (
        mock.patch.object(type(trainer.criterion), "reduce_metrics", staticmethod(seen.extend)),
        metrics.aggregate(),
    ):
        trainer.task.reduce_metrics([log], trainer.criterion)
    assert [one["loss"].dtype for one in seen] == [torch.float64]


def test_a_width_read_from_the_device_is_seen(even_bin: Path) -> None:
    original = ClearRobertaModel._pooled

    def trimmed(model: ClearRobertaModel, tokens: torch.Tensor, **options: Any) -> torch.Tensor:
        return original(model, trim_padding(tokens, model.padding_idx), **options)

    with mock.patch.object(ClearRobertaModel, "_pooled", trimmed):
        found = waits(even_bin, "--criterion", "clear_nt_xent", "--mlm-weight", "0")
    assert found == Counter(_local_scalar_dense=1)
