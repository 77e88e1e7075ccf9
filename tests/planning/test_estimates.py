"""Estimates against what PyTorch counts of real updates."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from fairseq_clear.planning.memory import estimate_memory
from fairseq_clear.planning.operations import count_operations
from fairseq_clear.planning.recipe import Recipe
from tests.planning.measuring import LENGTH, batch_of, live_bytes, make_data, peak_bytes, recipe_of, trainer_of

TEXTS = 32
TINY = {"_name": "clear_roberta_tiny", "max_positions": LENGTH}
OTHER = {
    "_name": "clear_roberta_tiny",
    "max_positions": LENGTH + 16,
    "encoder_layers": 5,
    "encoder_embed_dim": 192,
    "encoder_ffn_embed_dim": 480,
    "encoder_attention_heads": 3,
    "projection_hidden_dim": 96,
    "projection_dim": 48,
}
CLEAR = {"_name": "clear_nt_xent", "temperature": 0.1}
ALONE = {**CLEAR, "mlm_weight": 0}
MLM = {"_name": "masked_lm"}
MOCO = {"_name": "clear_moco", "queue_size": 3_000}
GUIDED = {"_name": "clear_self_guided"}
PLAIN = {"regularizer_weight": 0, "frozen_layers": 0}
WIDE = {
    "projection_hidden_dim": 1024,
    "projection_dim": 64,
    "projection_activation": "gelu",
    "projection_activate_last": True,
}
SLIM = {
    **OTHER,
    "encoder_layers": 4,
    "encoder_embed_dim": 64,
    "encoder_ffn_embed_dim": 160,
    "encoder_attention_heads": 2,
}
LONG = {**SLIM, "max_positions": 256, "encoder_layers": 2}
NEIGHBORS = {"views": "neighbor:sentences=4", "tokens_per_sample": 256}
SPANS = "span:anchors=2,positives=2,min={},max=62"
SAME = {"views": "same", "augment": "none"}


def case(model: dict[str, Any], criterion: dict[str, Any], dropout: float = 0.0, chunk: int = 0, **task: Any) -> Any:
    settings = {"dropout": dropout, "attention_dropout": dropout, "encode_chunk_size": chunk, **model}
    return {"model": settings, "criterion": criterion, "task": {**SAME, **task}}


CASES = {
    "clear": case(TINY, CLEAR),
    "clear, another shape": case(OTHER, CLEAR),
    "clear, dropout": case(OTHER, CLEAR, dropout=0.1),
    "clear, words deleted": case(OTHER, CLEAR, augment="del-word:ratio=0.7"),
    "clear, chunks": case(OTHER, CLEAR, dropout=0.1, chunk=8 * LENGTH),
    "views alone": case(TINY, ALONE, dropout=0.1),
    "masked_lm": case(OTHER, MLM),
    "double mlm": case(TINY, {**CLEAR, "contrastive_weight": 0}, dropout=0.1, mlm_copies=2),
    "amp": {**case(SLIM, CLEAR), "common": {"amp": True}},
    "eda": case(SLIM, ALONE, augment="eda:ops=ri,draw=all", tokens_per_sample=LENGTH + 16),
    "paraphrase": case(SLIM, ALONE, views="paraphrase:original,bt", hard_negatives="bt"),
    "a lower layer": case({**SLIM, "pooling": "layer:2"}, ALONE),
    "frozen layers": case(SLIM, {**CLEAR, "frozen_layers": 2}),
    "frozen layers, alone": case(
        SLIM, {**ALONE, "frozen_layers": 2, "regularizer_weight": 0.1}, dropout=0.1, chunk=8 * LENGTH
    ),
    "regularizer": case(SLIM, {**CLEAR, "regularizer_weight": 0.1}),
    "moco": case(SLIM, MOCO, views="paraphrase:original,bt"),
    "moco, symmetric": case(SLIM, {**MOCO, "symmetric": True}, dropout=0.1),
    "moco, mlm, chunks": case(SLIM, {**MOCO, "mlm_weight": 1}, dropout=0.1, chunk=8 * LENGTH),
    "self-guided": case(SLIM, GUIDED, dropout=0.1),
    "self-guided, wide head": case({**SLIM, **WIDE}, GUIDED),
    "self-guided, sg": case(SLIM, {**GUIDED, "objective": "sg", "guide_pooling": "mean"}),
    "self-guided, opt1": case(SLIM, {**GUIDED, "objective": "opt1", **PLAIN, "guide_dropout": True}, dropout=0.1),
    "self-guided, opt2": case({**SLIM, "projection_layers": 0}, {**GUIDED, "objective": "opt2", "guide_layers": "2-4"}),
    "self-guided, mlm, chunks": case(SLIM, {**GUIDED, "mlm_weight": 1}, dropout=0.1, chunk=8 * LENGTH),
    "spans": case(SLIM, CLEAR, views=SPANS.format(40)),
    "spans of mixed length": case(SLIM, CLEAR, dropout=0.1, views=SPANS.format(4)),
    "spans of mixed length, chunks": case(SLIM, CLEAR, dropout=0.1, chunk=600, views=SPANS.format(4)),
    "joint spans of mixed length, chunks": case(
        SLIM, {**CLEAR, "anchor_mlm": "joint"}, dropout=0.1, chunk=600, views=SPANS.format(4)
    ),
    "clear, all views a chunk": case(OTHER, CLEAR, chunk=2 * TEXTS * LENGTH),
    "spans, joint": case(SLIM, {**CLEAR, "anchor_mlm": "joint"}, views=SPANS.format(40)),
    "spans, joint, chunks": case(SLIM, {**CLEAR, "anchor_mlm": "joint"}, chunk=8 * LENGTH, views=SPANS.format(62)),
    "neighbors": case(LONG, ALONE, **NEIGHBORS),
    "window": case({**LONG, "attention_window": 16}, CLEAR, **NEIGHBORS),
    "window, dropout": case({**LONG, "attention_window": 80}, ALONE, dropout=0.1, **NEIGHBORS),
    "window, short": case({**SLIM, "attention_window": 32}, CLEAR),
}
LARGE = ("clear", "views alone", "masked_lm", "double mlm", "spans")  # compared with the others
LENGTHY = ("neighbors", "window")  # neighbours are four times as long


def batch_size(name: str) -> int:
    return TEXTS if name.startswith(LARGE) else TEXTS // 4 if name.startswith(LENGTHY) else TEXTS // 2


def is_drawn(name: str) -> bool:
    """Whether it is a matter of chance how long the views of a batch are."""
    return "deleted" in name or "spans" in name


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("plan"), words=5_000)


# of --amp without a GPU
pytestmark = pytest.mark.filterwarnings("ignore:(?s).*(GradScaler|autocast)")
Measured = tuple[Recipe, float, float, int, int]


@pytest.fixture(scope="module")
def measured(data: Path) -> Callable[[str], Measured]:
    """Of a case, once, the recipe, operations, bytes, weights and those trained, as they are."""
    return cache(lambda name: measure(data, name))


def measure(data: Path, name: str) -> Measured:
    config = CASES[name]
    before = live_bytes()
    trainer, dataset = trainer_of(data, config)
    batch = batch_of(dataset, batch_size(name))
    draws = 4 if is_drawn(name) else 1
    # PyTorch counts no operations of the fused kernel of a CPU
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        for epoch in range(1, draws + 1):
            dataset.set_epoch(epoch)
            trainer.train_step([batch_of(dataset, batch_size(name))])
    peak = peak_bytes(trainer, batch) - before
    parameters = list(trainer.get_model().parameters())
    weights = sum(parameter.numel() for parameter in parameters)
    trained = sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
    return recipe_of(trainer, config), counter.get_total_flops() / draws, peak, weights, trained


def with_layers(recipe: Recipe, more: int) -> Recipe:
    return replace(recipe, encoder=replace(recipe.encoder, layers=recipe.encoder.layers + more))


def others(recipe: Recipe) -> list[Recipe]:
    """What it would be without what is particular to it."""
    found = []
    if recipe.frozen_layers:
        found.append(replace(recipe, frozen_layers=0))
    if recipe.key_rows:
        found.append(replace(recipe, anchors=0, copies=1))
    if recipe.is_joint:
        found.append(replace(recipe, is_joint=False, copies=recipe.anchors))
    if recipe.encoder.attention(recipe.view_length).queries:
        found.append(replace(recipe, encoder=replace(recipe.encoder, window=0)))
    return found


def unfused(recipe: Recipe) -> Recipe:
    return replace(recipe, encoder=replace(recipe.encoder, attention_dropout=0.1))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_weights_are_counted_exactly(name: str, measured: Callable[[str], Measured]) -> None:
    recipe, _, _, weights, trained = measured(name)
    assert (recipe.weights, recipe.trained) == (weights, trained)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_operations_are_those_that_torch_counts(name: str, measured: Callable[[str], Measured]) -> None:
    recipe, counted, _, _, _ = measured(name)

    def estimate(of: Recipe) -> float:
        return count_operations(unfused(of), batch_size(name), chunk=recipe.chunk_size).total

    tolerance = 0.02 if is_drawn(name) else 0.003
    assert estimate(recipe) == pytest.approx(counted, rel=tolerance)
    longer = {
        part: tuple(length * 17 // 16 for length in getattr(recipe, part)) for part in ("text_lengths", "view_lengths")
    }
    for wrong in (
        with_layers(recipe, 1),
        replace(recipe, **longer),
        replace(recipe, encoder=replace(recipe.encoder, ffn=recipe.encoder.ffn * 2)),
        *others(recipe),
    ):
        assert estimate(wrong) != pytest.approx(counted, rel=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_memory_is_what_tensors_hold_at_most(name: str, measured: Callable[[str], Measured]) -> None:
    recipe, _, peak, _, _ = measured(name)
    assert estimate_memory(recipe, batch_size(name), chunk=recipe.chunk_size).total == pytest.approx(peak, rel=0.15)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_memory_of_another_model_is_told_apart(name: str, measured: Callable[[str], Measured]) -> None:
    recipe, _, peak, _, _ = measured(name)
    assert estimate_memory(with_layers(recipe, 3), batch_size(name), chunk=recipe.chunk_size).total > 1.15 * peak
    fewer = estimate_memory(recipe, batch_size(name) // 2, chunk=recipe.chunk_size and recipe.chunk_size // 2).total
    assert fewer < 0.85 * peak


def test_fused_attention_keeps_no_weights_and_recomputes_them() -> None:
    from tests.planning.test_machine import RECIPE

    on_cpu = replace(RECIPE, is_cpu=True)
    assert on_cpu.holds_attention and not RECIPE.holds_attention
    assert estimate_memory(on_cpu, 8).total > 1.5 * estimate_memory(RECIPE, 8).total
    assert count_operations(on_cpu, 8).total < count_operations(RECIPE, 8).total
