"""clear_adamw against torch's AdamW in two groups; it is fairseq's Adam but for the vectors."""

import pytest
import torch
from fairseq import optim
from fairseq.optim.adam import FairseqAdamConfig
from omegaconf import OmegaConf
from torch import nn

from fairseq_clear.errors import UserError
from fairseq_clear.optimizers import ClearAdamW
from tests.conftest import ROOT, run, tool

SETTINGS = {"lr": [0.01], "weight_decay": 0.3, "adam_betas": "(0.9, 0.98)", "adam_eps": 1e-8, "tpu": False}


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
    config = OmegaConf.structured(FairseqAdamConfig)
    OmegaConf.set_struct(config, False)
    return optim.build_optimizer(
        OmegaConf.merge(config, {"_name": name, **SETTINGS, **settings}), list(model.parameters())
    )


def reference(exempt: bool) -> dict[str, torch.Tensor]:
    model = network()
    decay = {"weight_decay": 0.0} if exempt else {}
    matrices = [model[0].weight, model[1].weight]
    vectors = [model[1].bias, model[2].weight, model[2].bias]
    groups = [{"params": matrices}, {"params": vectors, **decay}]
    return train(model, torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.98), eps=1e-8, weight_decay=0.3))


def greatest_difference(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    return max(float((a[name] - b[name]).abs().max()) for name in a)


@pytest.mark.parametrize(("name", "exempt"), [("clear_adamw", True), ("adam", False)])
def test_vectors_do_not_decay(name, exempt):
    model = network()
    found = train(model, build(model, name))
    assert greatest_difference(found, reference(exempt)) < 1e-6
    assert greatest_difference(found, reference(not exempt)) > 1e-3


@pytest.mark.parametrize("overrides", [None, {"weight_decay": 0.5}])
def test_resume(overrides):
    whole, first = network(), network()
    train(whole, build(whole))
    optimizer = build(first)
    train(first, optimizer)
    resumed = build(first)
    resumed.load_state_dict(optimizer.state_dict(), overrides)
    assert [group["weight_decay"] for group in resumed.param_groups] == [0.5 if overrides else 0.3, 0.0]
    assert len(resumed.param_groups) == 2
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), first.parameters(), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    "precision", [(), ("--fp16", "--fp16-no-flatten-grads", "--memory-efficient-fp16"), ("--bf16",)]
)
def test_it_trains_in_every_precision(data_bin, tmp_path, precision):
    done = train_command(data_bin, tmp_path, *precision)
    assert done.returncode == 0 and "done training" in done.stdout, done.stderr[-2000:]


def test_one_flat_vector_is_refused():
    flat = {"cuda:0": nn.Parameter(torch.zeros(9))}  # what --fp16 makes, by device
    with pytest.raises(UserError, match="give --fp16-no-flatten-grads"):
        ClearAdamW(OmegaConf.create({"_name": "clear_adamw", **SETTINGS}), [flat])


def train_command(data_bin, tmp_path, *precision):
    return run(
        *(
            *tool("train"),
            data_bin,
            "--user-dir",
            ROOT / "fairseq_clear",
            "--task",
            "clear_lm",
            "--arch",
            "clear_roberta_tiny",
        ),
        *("--criterion", "clear_nt_xent", "--augment", "del-word", "--tokens-per-sample", "32", "--batch-size", "8"),
        *("--optimizer", "clear_adamw", "--weight-decay", "0.1", "--lr", "0.001", "--max-update", "2", "--cpu"),
        *("--save-dir", tmp_path, "--disable-validation", *precision),
        check=False,
    )
