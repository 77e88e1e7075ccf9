"""What ``fairseq_clear.plan`` counts, against arithmetic and against real updates."""

import math
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_clear.cli.main import main
from fairseq_clear.errors import UserError
from fairseq_clear.plan import GIB, Meter, Recipe, make_plan, read_recipe
from tests.conftest import ROOT
from tests.test_recipes import BASE as FIRST
from tests.test_recipes import CONFIGS
from tests.training import LENGTH, build, make_data

pytestmark = pytest.mark.slow

TEXTS, BLOCKS, WIDTH, HEADS, HEAD = 16, 3, 64, 2, 48
MODEL = {
    "encoder_layers": BLOCKS, "encoder_embed_dim": WIDTH, "encoder_ffn_embed_dim": 4 * WIDTH, "max_positions": LENGTH,
    "encoder_attention_heads": HEADS, "projection_dim": HEAD, "dropout": 0.0, "attention_dropout": 0.0,
}  # fmt: skip
ALONE = ("criterion.mlm_weight=0", "task.augment=none")
MLM = ("criterion.contrastive_weight=0",)


def overrides(*changes: str) -> list[str]:
    settings = {f"++model.{name}": value for name, value in MODEL.items()}
    settings |= {"model._name": "clear_roberta_tiny", "task.sample_break_mode": "eos", "task.tokens_per_sample": LENGTH}
    return [*(f"{name}={value}" for name, value in settings.items()), "common.fp16=false", *changes]


@cache
def recipe_of(*changes: str, data: str = "", vocabulary: int = 2_000) -> Recipe:
    return Recipe(read_recipe("clear/base_256gpu", overrides(*changes), data), vocabulary)


def test_operations_are_six_times_weights_times_tokens() -> None:
    recipe = recipe_of(*MLM)
    tokens, masked = TEXTS * LENGTH, recipe.run(TEXTS, 0).flops
    blocks = 6 * 12 * BLOCKS * WIDTH**2 * tokens
    attention = (4 + 10) * BLOCKS * WIDTH * LENGTH * tokens  # two products forward, five backward
    head = 6 * (WIDTH**2 + WIDTH * recipe.vocabulary) * round(0.15 * (LENGTH - 2)) * TEXTS
    assert masked == pytest.approx(blocks + attention + head, rel=0.02)
    views = recipe_of(*ALONE).run(TEXTS, 0).flops
    projection = 6 * (WIDTH**2 + WIDTH * HEAD) * 2 * TEXTS
    contrast = 6 * (2 * TEXTS) ** 2 * HEAD
    assert views == pytest.approx(2 * (blocks + attention) + projection + contrast, rel=0.01)
    # chunks compute the forward pass of the blocks once more: a third, and less of attention, whose backward pass is longer
    again = recipe_of(*ALONE).run(TEXTS, 2 * LENGTH).flops
    assert again - views == pytest.approx(2 * (blocks / 3 + attention * 4 / 14), rel=0.01)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("plan"), 500, 100)


def saved_bytes(criterion: Any, model: torch.nn.Module, sample: dict[str, Any]) -> int:
    """Bytes of what autograd saves in the forward pass, except weights and the batch."""
    found, known = {}, {tensor.untyped_storage().data_ptr() for tensor in model.parameters()}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            found[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = criterion(model, sample)[0]
    assert loss.requires_grad
    return sum(found.values())


@pytest.mark.parametrize("changes", [ALONE, MLM, ()])
def test_saved_bytes_are_what_autograd_saves(data: Path, changes: tuple[str, ...]) -> None:
    recipe = recipe_of(*changes, data=str(data))
    settings = [*(f"{name}={value}" for name, value in MODEL.items()), f"tokens_per_sample={LENGTH}", "pooling=cls"]
    settings += [f"augment={recipe.cfg.task.augment}", *(change.partition(".")[2] for change in changes)]
    trainer, dataset = build(data, *(f"--{setting.replace('_', '-')}" for setting in settings))
    sample = dataset.collater([dataset[index] for index in range(TEXTS)])
    real = saved_bytes(trainer.criterion, trainer.model, sample)
    parts = sample["net_input"].get("src_tokens"), sample.get("views", {}).get("tokens")
    cells = sum(tokens.numel() for tokens in parts if tokens is not None)
    copies = BLOCKS * cells * WIDTH * 4  # the result of a GPU's attention, whose order fairseq changes
    assert recipe.run(TEXTS, 0).saved == pytest.approx(real + copies, rel=0.02)


def test_a_mask_without_values_selects_all_rows() -> None:
    """As in the objective of docs/extending.md."""
    with Meter():
        values = torch.ones(3, 2, device="meta")
        assert values[values > 0].shape == (6,) and values[values[:, 0] > 0].shape == (3, 2)


def test_chunks_bound_the_peak() -> None:
    recipe = recipe_of(*ALONE)
    whole, chunked, longer = (recipe.step(texts, chunk * LENGTH) for texts, chunk in ((64, 0), (64, 16), (128, 16)))
    assert chunked.peak < whole.peak / 5
    assert longer.flops == pytest.approx(2 * chunked.flops)
    block = recipe.run(128, 16 * LENGTH).peak - longer.peak  # of products of queries and keys: at most 2**20 in float32
    assert 0 <= block < 16 * 2**20


@pytest.mark.parametrize(("precision", "bytes_of_weight"), [("fp32", 16), ("amp", 16), ("fp16", 20), ("bf16", 20)])
def test_state_of_adam(precision: str, bytes_of_weight: int) -> None:
    """Weights, gradients and two moments in float32; in half precision also masters and their gradients."""
    recipe = recipe_of(*ALONE, *([] if precision == "fp32" else [f"++common.{precision}=true"]))
    trained = trained_in(recipe)
    frozen = sum(weight.nbytes for weight in recipe.model.parameters() if not weight.requires_grad)
    buffers = sum(buffer.nbytes for buffer in recipe.model.buffers())
    plan = make_plan(recipe, 1, GIB, 1e12)
    assert plan.state == trained * bytes_of_weight + frozen + buffers
    gradients = trained * (2 if "16" in precision else 4)
    assert make_plan(recipe, 4, GIB, 1e12).state == plan.state + gradients


def trained_in(recipe: Recipe) -> int:
    return sum(weight.numel() for weight in recipe.model.parameters() if weight.requires_grad)


def test_bytes_between_workers() -> None:
    recipe = recipe_of(*ALONE)
    trained = trained_in(recipe)
    plan = make_plan(recipe, 4, GIB, 1e12, 64)
    assert make_plan(recipe, 1, GIB, 1e12, 64).sent == 0
    # a ring sends 3 / 4 of the gradients twice; 2 x 16 vectors, their gradients and hashes go to 3 workers
    assert plan.sent == 2 * 3 / 4 * 4 * trained + 3 * 32 * (HEAD * 4 * 2 + 8)
    assert make_plan(recipe_of(*ALONE, "criterion.negatives=batch"), 4, GIB, 1e12, 64).sent == 6 * trained


def test_random_documents_are_those_that_the_views_need() -> None:
    recipe = recipe_of(*ALONE, "task.views=titles", "task.tokens_per_sample=64", "++model.max_positions=64")
    assert set(recipe.rows["views"]) == {42, 64}  # with <s> and </s>
    recipe = recipe_of(*ALONE, "task.views='neighbor:sentences=9'", "task.sample_break_mode=none")
    assert recipe.run(2, 0).flops > 0


def test_hours_and_the_chunk() -> None:
    recipe = recipe_of(*ALONE, "optimization.max_update=3600")  # not shared, as it is changed
    plenty = make_plan(recipe, 2, 64 * GIB, 1e12, 4096)
    assert (plenty.batch, plenty.chunk) == (2048, 0)
    assert plenty.hours == pytest.approx(plenty.flops / 1e12)
    assert recipe.loading > 0 and plenty.loaders == math.ceil(2048 / (plenty.flops / 1e12) / recipe.loading)
    recipe.loading = 2048 / (plenty.flops / 1e12) / 3.5  # texts per second of a core
    assert make_plan(recipe, 2, 64 * GIB, 1e12, 4096).loaders == 4
    scarce = make_plan(recipe, 2, 0.06 * GIB, 1e12, 4096)
    assert scarce.chunk > LENGTH and scarce.chunk & (scarce.chunk - 1) == 0
    assert scarce.state + scarce.activations <= 0.9 * 0.06 * GIB
    assert scarce.state + recipe.step(2048, 2 * scarce.chunk).peak > 0.9 * 0.06 * GIB
    with pytest.raises(UserError, match=r"--memory 0\.001: 2,048 texts need"):
        make_plan(recipe, 2, 0.001 * GIB, 1e12, 4096)


def test_an_installation_without_recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairseq_clear.plan.RECIPES", tmp_path)
    with pytest.raises(UserError, match="no such recipe; give a .yaml file, as the repository's examples/ is not"):
        read_recipe("clear/base_256gpu")


# The command

BASE = ["plan", "--config", "clear/base_256gpu"]
THIN = "++model.encoder_layers=1"


def test_the_papers_run_is_planned_as_the_page_shows(capsys):
    """docs/many-gpus.md shows the output of this command, also for fewer GPUs, whose chunks take longer to find."""
    assert main([*BASE, "--gpus", "256", "--global-batch", "8192", "--memory", "32"]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert captured.err == "" and max(map(len, lines)) < 120
    of_machine = re.compile(r"loading: ([\d,]+) texts/s")  # which differs by machine
    page = of_machine.sub("", (ROOT / "docs" / "many-gpus.md").read_text()).splitlines()
    assert {of_machine.sub("", line) for line in lines} <= set(page)
    many = lines[-1].split()
    assert float(many[3]) + float(many[4]) < 0.9 * 32 and many[2] == "0" and many[9] == "1"


# Changes that name layers, in a model that has them, or have another criterion, view source or task than their base.
PLANNED = ("bt_frozen", "senteval", "roberta", "double_mlm", "separate_mlm", "mlm_only", "opt2", "supervised", "eda")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_recipe_is_planned(path, capsys):
    example = path.parent.parent.name
    files = [file for file in path.parent.glob("*/*.yaml") if file.stem in PLANNED]
    for change in ["", *(f"+{file.parent.name}={file.stem}" for file in files if FIRST[example] == path.stem)]:
        thin = [] if change.endswith(("frozen", "senteval")) else [THIN]  # these name layers
        config = [f"{example}/{path.stem}", *filter(None, [change]), "optimization.max_update=1000", *thin]
        assert main(["plan", "--config", *config, "--gpus", "8", "--vocabulary", "1000"]) == 0, change
        assert capsys.readouterr().out.splitlines()[-1].split()[0] == "8"


def test_a_recipe_and_texts_of_ones_own(tmp_path, paired_bin, capsys):
    file = tmp_path / "own.yaml"
    file.write_text(
        "task: {_name: clear_lm, tokens_per_sample: 64, sample_break_mode: eos}\ncriterion: {_name: masked_lm}\n"
        "model: {_name: clear_roberta_mini, max_positions: 64}\ndataset: {batch_size: 4}\noptimization: {max_update: 10}\n"
    )
    assert main(["plan", "--config", str(file), "--gpus", "1", "--data-bin", str(paired_bin)]) == 0
    out = capsys.readouterr().out
    words = len((paired_bin / "dict.txt").read_text().splitlines())
    assert f"vocabulary {words + 6}, fp32" in out and "64 to 64 tokens" not in out
