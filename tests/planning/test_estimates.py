"""Estimates against what PyTorch counts of real updates."""

from dataclasses import replace
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
MLM = {"_name": "masked_lm"}
SAME = {"views": "same", "augment": "none"}


def case(model: dict[str, Any], criterion: dict[str, Any], dropout: float = 0.0, chunk: int = 0, **task: Any) -> Any:
    settings = {**model, "dropout": dropout, "attention_dropout": dropout, "encode_chunk_size": chunk}
    return {"model": settings, "criterion": criterion, "task": {**SAME, **task}}


CASES = {
    "clear": case(TINY, CLEAR),
    "clear, another shape": case(OTHER, CLEAR),
    "clear, dropout": case(OTHER, CLEAR, dropout=0.1),
    "clear, words deleted": case(OTHER, CLEAR, augment="del-word:ratio=0.7"),
    "clear, chunks": case(OTHER, CLEAR, dropout=0.1, chunk=8),
    "views alone": case(TINY, {**CLEAR, "mlm_weight": 0}, dropout=0.1),
    "masked_lm": case(OTHER, MLM),
    "double mlm": case(TINY, {**CLEAR, "contrastive_weight": 0}, dropout=0.1, mlm_copies=2),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("plan"), words=5_000)


Measured = tuple[Recipe, float, float, int, int]


@pytest.fixture(scope="module")
def measured(data: Path) -> dict[str, Measured]:
    """Of each case the recipe, operations, bytes, weights and those trained, as they are."""
    found = {}
    for name, config in CASES.items():
        before = live_bytes()
        trainer, dataset = trainer_of(data, config)
        batch = batch_of(dataset, TEXTS)
        # PyTorch counts no operations of the fused kernel of a CPU
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            trainer.train_step([batch])
        peak = peak_bytes(trainer, batch) - before
        parameters = list(trainer.get_model().parameters())
        weights = sum(parameter.numel() for parameter in parameters)
        trained = sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
        found[name] = recipe_of(trainer, config), counter.get_total_flops(), peak, weights, trained
        del trainer, dataset, batch, parameters
    return found


def with_layers(recipe: Recipe, more: int) -> Recipe:
    return replace(recipe, encoder=replace(recipe.encoder, layers=recipe.encoder.layers + more))


def unfused(recipe: Recipe) -> Recipe:
    return replace(recipe, encoder=replace(recipe.encoder, attention_dropout=0.1))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_weights_are_counted_exactly(name: str, measured: dict[str, Measured]) -> None:
    recipe, _, _, weights, trained = measured[name]
    assert (recipe.encoder.parameters(), recipe.trained) == (weights, trained)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_operations_are_those_that_torch_counts(name: str, measured: dict[str, Measured]) -> None:
    recipe, counted, _, _, _ = measured[name]

    def estimate(of: Recipe) -> float:
        return count_operations(unfused(of), TEXTS, chunk=recipe.chunk_size).total

    assert estimate(recipe) == pytest.approx(counted, rel=0.02)
    for wrong in (
        with_layers(recipe, 1),
        replace(recipe, length=recipe.length + 4, view_length=recipe.view_length + 4),
        replace(recipe, encoder=replace(recipe.encoder, ffn=recipe.encoder.ffn * 2)),
    ):
        assert estimate(wrong) != pytest.approx(counted, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_memory_is_what_tensors_hold_at_most(name: str, measured: dict[str, Measured]) -> None:
    recipe, _, peak, _, _ = measured[name]
    assert estimate_memory(recipe, TEXTS, chunk=recipe.chunk_size).total == pytest.approx(peak, rel=0.15)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_memory_of_another_model_is_told_apart(name: str, measured: dict[str, Measured]) -> None:
    recipe, _, peak, _, _ = measured[name]
    assert estimate_memory(with_layers(recipe, 3), TEXTS, chunk=recipe.chunk_size).total > 1.15 * peak
    fewer = estimate_memory(recipe, TEXTS // 2, chunk=recipe.chunk_size and recipe.chunk_size // 2).total
    assert fewer < 0.85 * peak


def test_fused_attention_keeps_no_weights_and_recomputes_them() -> None:
    from tests.planning.test_machine import RECIPE

    on_cpu = replace(RECIPE, is_cpu=True)
    assert on_cpu.holds_attention and not RECIPE.holds_attention
    assert estimate_memory(on_cpu, 8).total > 1.5 * estimate_memory(RECIPE, 8).total
    assert count_operations(on_cpu, 8).total < count_operations(RECIPE, 8).total
