"""fairseq's trainer in mixed precision, on the CPU with torch's CPU GradScaler, against its trainer in float32."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from fairseq import optim, utils
from fairseq import trainer as fairseq_trainer
from fairseq.models import distributed_fairseq_model
from fairseq.optim.fp16_optimizer import FP16Optimizer
from fairseq.trainer import Trainer

from fairseq_clear import patches
from fairseq_clear.patches import precision
from fairseq_clear.patches.precision import skip_overflows_on_cpu
from tests.training import build, distance, weights

SGD = ("--optimizer", "sgd", "--lr", "0.5")
ADAM = ("--optimizer", "adam", "--lr", "0.003", "--adam-eps", "1e-6")
ADAMW = ("--optimizer", "clear_adamw", "--lr", "0.003", "--adam-eps", "1e-6", "--weight-decay", "0.01")
MOCO = (
    *("--criterion", "clear_moco", "--augment", "none", "--projection-dim", "8", "--queue-size", "7"),
    *("--key-momentum", "0.9", "--temperature", "0.2"),
)
FP16 = ("--fp16", "--fp16-no-flatten-grads")
# on a CPU fairseq's autocast does nothing, and says so
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:CUDA is not available")]
BATCHES = ((0, 1, 2), (3, 4), (5, 6, 7), (8, 9, 10, 11))
KEY_WEIGHT = "key_encoder.head.layers.0.weight"


@pytest.fixture(autouse=True)
def cpu_scaler(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU torch.cuda's scaler is disabled."""
    monkeypatch.setattr(torch.cuda.amp, "GradScaler", partial(torch.amp.GradScaler, "cpu"))


@contextmanager
def overflows(trainer: Trainer, times: int) -> Iterator[list[int]]:
    """The next ``times`` backward passes give one weight an infinite gradient; yields how many are left."""
    left = [times]

    def overflow(gradient: torch.Tensor) -> torch.Tensor:
        left[0] -= 1
        return gradient * torch.inf if left[0] >= 0 else gradient

    handle = trainer.get_model().encoder.sentence_encoder.layers[0].fc1.bias.register_hook(overflow)
    try:
        yield left
    finally:
        handle.remove()


def trained(data: Path, *flags: str, times: int = 0, when: int = 1, frequency: int = 1) -> tuple[Trainer, list[Any]]:
    """A run over BATCHES in which update ``when`` overflows ``times`` times, and what it logged."""
    trainer, dataset = build(data, *flags)
    samples = [dataset.collater([dataset[index] for index in rows]) for rows in BATCHES]
    logs = []
    for number, first in enumerate(range(0, len(samples), frequency)):
        with overflows(trainer, times * frequency if number == when else 0):
            logs.append(trainer.train_step(samples[first : first + frequency]))
    return trainer, logs


def state(trainer: Trainer) -> dict[str, torch.Tensor]:
    """Everything that the model saves, key encoder and queue in their order included."""
    return {name: value.detach().clone() for name, value in trainer.get_model().state_dict().items()}


def furthest(one: Trainer, other: Trainer) -> float:
    return distance(*({name: value.double() for name, value in state(trainer).items()} for trainer in (one, other)))


def started(data: Path, *flags: str) -> tuple[Trainer, list[Any], dict[str, torch.Tensor]]:
    """A run after the first of BATCHES, all of them, and its state."""
    trainer, dataset = build(data, *flags)
    samples = [dataset.collater([dataset[index] for index in rows]) for rows in BATCHES]
    trainer.train_step(samples[:1])
    return trainer, samples, state(trainer)


@pytest.mark.parametrize("clip", ["0", "0.05"])
@pytest.mark.parametrize("optimizer", [SGD, ADAM, ADAMW], ids=["sgd", "adam", "clear_adamw"])
def test_an_amp_update_is_the_float32_update(optimizer: tuple[str, ...], clip: str, data_bin: Path) -> None:
    flags = (*optimizer, "--clip-norm", clip)
    plain, logs = trained(data_bin, *flags)
    moved = distance(weights(plain), weights(build(data_bin, *flags)[0]))
    for scale in (128, 65_536):
        scaled, scaled_logs = trained(data_bin, *flags, "--amp", "--fp16-init-scale", str(scale))
        assert scaled.optimizer.scaler.get_scale() == scale
        assert furthest(plain, scaled) < 1e-3 * moved
        assert plain.get_num_updates() == scaled.get_num_updates() == len(BATCHES)
        assert [log["loss"] for log in scaled_logs] == pytest.approx([log["loss"] for log in logs], rel=1e-4)


def test_norm_and_loss_scale_are_logged_as_they_are(data_bin: Path) -> None:
    def logged(*flags: str) -> dict[str, float]:
        from fairseq.logging import metrics

        metrics.reset()
        trained(data_bin, *SGD, "--clip-norm", "0.05", *flags)
        return {name: float(value) for name, value in metrics.get_smoothed_values("train").items()}

    plain, scaled = logged(), logged("--amp", "--fp16-init-scale", "4096")
    assert scaled["gnorm"] == pytest.approx(plain["gnorm"], rel=1e-3) and scaled["gnorm"] > 0.05
    assert scaled["clip"] == plain["clip"] == 100 and scaled["loss_scale"] == 4096


# a full queue; a queue with room, and two micro-batches
@pytest.mark.parametrize(("times", "size", "frequency"), [(1, "7", 1), (2, "50", 2)])
def test_a_repeated_amp_batch_leaves_no_trace(times: int, size: str, frequency: int, data_bin: Path) -> None:
    flags = (*MOCO, *ADAM, "--queue-size", size, "--amp")
    once, _ = trained(data_bin, *flags, frequency=frequency)
    again, _ = trained(data_bin, *flags, times=times, frequency=frequency)
    assert again.optimizer.scaler.get_scale() == once.optimizer.scaler.get_scale() / 2**times
    assert furthest(once, again) < 1e-6
    assert int(again.get_model().key_queue.fill) == min(int(size), 12)


def test_the_scale_of_amp_is_the_one_given(data_bin: Path) -> None:
    for flags, expected in (
        (("--amp-init-scale", "1024", "--amp-scale-window", "3000"), (1024, 3000)),
        (("--amp-scale-window", "50"), (128, 50)),
        ((), (128, 2000)),  # torch's interval
    ):
        scaler = build(data_bin, *SGD, "--amp", *flags)[0].optimizer.scaler
        assert (scaler.get_scale(), scaler.get_growth_interval()) == expected


def test_amp_repeats_every_batch_that_overflows(data_bin: Path) -> None:
    """fairseq counts the repetitions of the whole run, and gives up the third batch of it."""
    trainer, samples, _ = started(data_bin, *SGD, "--amp")
    for batch in samples[1:]:
        with overflows(trainer, 1):
            trainer.train_step([batch])
    assert trainer.get_num_updates() == len(samples)


def test_a_changed_weight_decay_leaves_out_vectors_also_with_amp(data_bin: Path) -> None:
    trainer, _, _ = started(data_bin, *ADAMW, "--amp")
    saved = deepcopy(trainer.optimizer.state_dict())
    trainer.optimizer.load_state_dict(saved, {"weight_decay": 0.5})
    assert [group["weight_decay"] for group in trainer.optimizer.param_groups] == [0.5, 0.0]


def test_a_batch_that_amp_gives_up_changes_nothing(data_bin: Path) -> None:
    trainer, samples, before = started(data_bin, *MOCO, *SGD, "--amp")
    with overflows(trainer, 9) as left:
        assert trainer.train_step(samples[1:2]) is None
    assert left == [6], "one attempt and two more"
    assert all(torch.equal(before[name], value) for name, value in state(trainer).items())
    assert trainer.get_num_updates() == 1
    trainer.train_step(samples[2:3])
    after = state(trainer)
    assert not torch.equal(before[KEY_WEIGHT], after[KEY_WEIGHT]) and int(after["key_queue.fill"]) == 6


def test_a_norm_that_overflows_alone_is_no_step(data_bin: Path) -> None:
    """Each gradient is finite, and the sum of their squares is not: fairseq repeats the batch."""
    trainer, dataset = build(data_bin, *SGD, "--amp")
    before = weights(trainer)
    bias = trainer.get_model().encoder.sentence_encoder.layers[0].fc1.bias
    handle = bias.register_hook(lambda gradient: torch.full_like(gradient, 1e30))
    assert trainer.train_step([dataset.collater([dataset[0], dataset[1]])]) is None
    handle.remove()
    assert distance(before, weights(trainer)) == 0


def test_amp_without_a_scaler_ends_at_a_gradient_that_is_not_finite(data_bin, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(torch.cuda.amp, "GradScaler", partial(torch.amp.GradScaler, "cpu", enabled=False))
    trainer, dataset = build(data_bin, *SGD, "--amp", "--save-dir", str(tmp_path))
    with overflows(trainer, 9), pytest.raises(SystemExit) as stop:
        trainer.train_step([dataset.collater([dataset[0], dataset[1]])])
    assert stop.value.code == 2


def test_fp16_on_a_cpu_skips_an_update_that_overflows(data_bin: Path) -> None:
    """The key encoder stays; the queue holds the keys once; the run goes on."""
    trainer, samples, before = started(data_bin, *MOCO, *SGD, *FP16, "--queue-size", "50")
    with overflows(trainer, 1):
        assert trainer.train_step(samples[1:2]) is None
    after = state(trainer)
    changed = {name for name, value in after.items() if not torch.equal(before[name], value)}
    assert changed == {"key_queue.keys", "key_queue.identities", "key_queue.pointer", "key_queue.fill"}
    assert int(after["key_queue.fill"]) == 5
    assert (trainer.get_num_updates(), trainer.optimizer.scaler.loss_scale) == (1, 64)
    trainer.train_step(samples[2:3])
    assert trainer.get_num_updates() == 2 and not torch.equal(before[KEY_WEIGHT], state(trainer)[KEY_WEIGHT])


HALVES = {"fp16": FP16, "memory-efficient": ("--memory-efficient-fp16",), "amp": ("--amp",)}


@pytest.mark.parametrize("precision", HALVES)
def test_a_resumed_run_changes_its_loss_scale_at_the_same_updates(precision, data_bin, monkeypatch) -> None:
    """Every third update that does not overflow doubles it; the other checkpoint is taken between two of these."""

    def start() -> tuple[Trainer, list[Any]]:
        trainer, dataset = build(data_bin, *ADAM, *HALVES[precision], "--fp16-scale-window", "3")
        return trainer, [dataset.collater([dataset[index] for index in rows]) for rows in BATCHES * 2]

    def scale(trainer: Trainer) -> float:
        scaler = trainer.optimizer.scaler
        return scaler.get_scale() if precision == "amp" else scaler.loss_scale

    monkeypatch.setattr(torch.cuda.amp, "GradScaler", partial(torch.amp.GradScaler, "cpu", growth_interval=3))
    straight, samples = start()
    scales, saved = [scale(straight)], []
    for number, sample in enumerate(samples):
        with overflows(straight, number == 1):
            straight.train_step([sample])
        scales.append(scale(straight))
        saved.append(deepcopy(straight.optimizer.state_dict()))
    resumed, _ = start()
    resumed.optimizer.load_state_dict(saved[2])
    assert scale(resumed) == scales[3] < scales[0]
    for number, sample in enumerate(samples[3:], 4):
        resumed.train_step([sample])
        assert scale(resumed) == scales[number]
    assert scales[3] < scales[-1], "the scale grows after the checkpoint"
    if precision != "memory-efficient":  # its optimizer's state has another type
        other, _ = build(data_bin, *ADAM, *HALVES["fp16" if precision == "amp" else "amp"])
        other.optimizer.load_state_dict(saved[2])
        other.train_step(samples[3:4])


def test_installing_twice_changes_nothing() -> None:
    def installed() -> list[Any]:
        amp = optim.AMPOptimizer
        hooks = [amp.step, amp.clip_grad_norm, FP16Optimizer.state_dict, FP16Optimizer.load_state_dict]
        return [*hooks, fairseq_trainer.torch, distributed_fairseq_model.DistributedDataParallel]

    once = installed()
    patches.apply()
    assert installed() == once
    with mock.patch.object(fairseq_trainer, "torch", torch):
        skip_overflows_on_cpu()
        assert fairseq_trainer.torch.tensor(0.0).cuda() == 0
        assert fairseq_trainer.torch.Tensor is torch.Tensor


@pytest.mark.parametrize("max_norm", [0.0, 0.5])
def test_norms_are_taken_where_gradients_are(max_norm: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stock fairseq's own norm, which it moves to the GPU of a machine that has one."""

    def gradients() -> list[torch.nn.Parameter]:
        torch.manual_seed(1)
        found = [torch.nn.Parameter(torch.zeros(shape)) for shape in ((3, 4), (5,), (2, 2))]
        for weight in found:
            weight.grad = torch.randn_like(weight)
        return found

    stock, ours = gradients(), gradients()
    with monkeypatch.context() as patched:
        patched.setattr(utils, "multi_tensor_l2norm_available", False)
        expected = utils.clip_grad_norm_(stock, max_norm)
        patched.setattr(torch.cuda, "is_available", lambda: True)
        patched.setattr(torch.cuda, "current_device", lambda: torch.device("meta"))
        with pytest.warns(UserWarning, match="apex"):
            assert utils.clip_grad_norm_(gradients(), 0.0).is_meta
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert torch.equal(utils.clip_grad_norm_(ours, max_norm), expected)
    assert all(torch.equal(one.grad, other.grad) for one, other in zip(stock, ours, strict=True))
    half = [torch.full((300,), 100.0, dtype=torch.float16), torch.ones(2, dtype=torch.float16)]
    assert precision.total_norm(half).item() == pytest.approx(math.sqrt(300 * 1e4 + 2)), "in float32"
