"""clear_adamw against torch's AdamW and fairseq's adam: the same weights, except for the decay of vectors."""

import copy

import pytest
import torch
from fairseq import optim
from fairseq.optim.fp16_optimizer import FP16Optimizer
from omegaconf import OmegaConf
from torch import nn

import fairseq_clear.optimizers  # noqa: F401  (registers it)

SETTINGS = {"lr": [0.01], "weight_decay": 0.3, "adam_betas": "(0.9, 0.98)", "adam_eps": 1e-8}


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 4), nn.LayerNorm(4)).double()


def train(model: nn.Module, optimizer: object, steps: int = 5) -> dict[str, torch.Tensor]:
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.tensor([step, 6, 0])).pow(3).sum().backward()
        optimizer.step()
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def build(model: nn.Module, name: str = "clear_adamw", **settings: object) -> object:
    own = {"decay_vectors": False} if name == "clear_adamw" else {"tpu": False, "use_old_adam": False}
    config = OmegaConf.create({"_name": name, **own, **SETTINGS, **settings})
    return optim.build_optimizer(config, list(model.parameters()))


def reference(exempt: bool) -> dict[str, torch.Tensor]:
    model = network()
    decay = {"weight_decay": 0.0} if exempt else {}
    matrices = [model[0].weight, model[1].weight]
    vectors = [model[1].bias, model[2].weight, model[2].bias]
    groups = [{"params": matrices}, {"params": vectors, **decay}]
    settings = {"lr": 0.01, "betas": (0.9, 0.98), "eps": 1e-8, "weight_decay": 0.3}
    return train(model, torch.optim.AdamW(groups, **settings, foreach=False))


def greatest_difference(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    return max(float((a[name] - b[name]).abs().max()) for name in a)


@pytest.mark.parametrize(
    ("name", "settings", "exempt"),
    [("clear_adamw", {}, True), ("clear_adamw", {"decay_vectors": True}, False), ("adam", {}, False)],
)
def test_which_weights_decay(name, settings, exempt):
    model = network()
    found = train(model, build(model, name, **settings))
    assert greatest_difference(found, reference(exempt)) < 1e-6
    assert greatest_difference(found, reference(not exempt)) > 1e-3


@pytest.mark.parametrize(("name", "is_torchs"), [("clear_adamw", True), ("adam", False)])
def test_small_gradients_move_weights_as_in_torch(name, is_torchs):
    moved = []
    for of_torch in (False, True):
        model = network()
        before = model[1].weight.detach().clone()
        own = {"lr": 0.01, "betas": (0.9, 0.98), "weight_decay": 0.3}
        optimizer = torch.optim.AdamW(model.parameters(), **own) if of_torch else build(model, name)
        (1e-8 * model[1].weight).sum().backward()
        optimizer.step()
        moved.append(model[1].weight.detach() - before)
    assert torch.allclose(*moved, rtol=1e-3) is is_torchs


def test_the_learning_rate_is_that_of_the_scheduler():
    model = network()
    optimizer = build(model)
    optimizer.set_lr(0.0)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    assert greatest_difference(train(model, optimizer), before) == 0
    assert optimizer.get_lr() == 0.0


@pytest.mark.parametrize("overrides", [None, {"weight_decay": 0.5}])
def test_resume(overrides):
    whole, stopped = network(), network()
    optimizer = build(whole)
    train(whole, optimizer)
    stopped.load_state_dict(whole.state_dict())
    resumed = build(stopped)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()), overrides)
    assert [group["weight_decay"] for group in resumed.param_groups] == [0.5 if overrides else 0.3, 0.0]
    difference = greatest_difference(train(stopped, resumed), train(whole, optimizer))
    assert (difference == 0) is (overrides is None)


@pytest.mark.parametrize("decay_vectors", [False, True])
def test_one_flat_vector_is_an_error_that_names_the_flag(decay_vectors, monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)  # called when parameters are flattened
    common = {"fp16_init_scale": 4, "fp16_scale_window": 4, "fp16_scale_tolerance": 0.0, "threshold_loss_scale": None}
    config = OmegaConf.create(
        {
            "common": {**common, "min_loss_scale": 1e-4},
            "optimizer": {"_name": "clear_adamw", "decay_vectors": decay_vectors, **SETTINGS},
        }
    )
    params = list(network().half().parameters())
    if decay_vectors:
        assert FP16Optimizer.build_optimizer(config, params).param_groups[0]["weight_decay"] == 0.3
    else:
        with pytest.raises(RuntimeError, match="--fp16-no-flatten-grads"):
            FP16Optimizer.build_optimizer(config, params)
