"""Estimates against what PyTorch counts in real updates."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fairseq.criterions import CRITERION_REGISTRY
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from fairseq_clear.criterions.clear_nt_xent import ClearNTXentConfig, ClearNTXentCriterion
from tests.planning.measuring import LENGTH, live_bytes, make_data, peak_bytes, recipe_of, trainer_of

# --amp without a GPU
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:(?s).*(GradScaler|autocast)")]

TEXTS, VOCABULARY = 16, 2_000
SLIM = {
    "_name": "clear_roberta_tiny",
    "max_positions": LENGTH + 16,
    "encoder_layers": 3,
    "encoder_embed_dim": 64,
    "encoder_ffn_embed_dim": 160,
    "encoder_attention_heads": 2,
    "projection_hidden_dim": 96,
    "projection_dim": 48,
}
LONG = {**SLIM, "max_positions": 256, "encoder_layers": 2}
WIDE = {**SLIM, "projection_hidden_dim": 512, "projection_activation": "gelu", "projection_activate_last": True}
CLEAR = {"_name": "clear_nt_xent", "temperature": 0.1}
ALONE = {**CLEAR, "mlm_weight": 0}
MOCO = {"_name": "clear_moco", "queue_size": 3_000}
GUIDED = {"_name": "clear_self_guided"}
JOINT = {**CLEAR, "anchor_mlm": "joint"}
NEIGHBORS = {"views": "neighbor:sentences=4", "tokens_per_sample": 256}
SPANS = {"views": "span:anchors=2,positives=2,min=4,max=62"}
ALIGNED = {"views": "paraphrase:original,bt"}


def case(model: dict[str, Any], criterion: dict[str, Any], dropout: float = 0.1, chunk: int = 0, **task: Any) -> Any:
    settings = {"dropout": dropout, "attention_dropout": dropout, "encode_chunk_size": chunk, **model}
    return {"model": settings, "criterion": criterion, "task": {"views": "same", "augment": "none", **task}}


CASES = {
    "clear, no dropout": case(SLIM, CLEAR, dropout=0.0),
    "words deleted": case(SLIM, CLEAR, augment="del-word:ratio=0.7"),
    "chunks": case(SLIM, CLEAR, chunk=8 * LENGTH),
    "all views a chunk": case(SLIM, CLEAR, dropout=0.0, chunk=2 * TEXTS * LENGTH),
    "masked_lm": case(SLIM, {"_name": "masked_lm"}, dropout=0.0),
    "double mlm, amp": {**case(SLIM, {**CLEAR, "contrastive_weight": 0}, mlm_copies=2), "common": {"amp": True}},
    "eda": case(SLIM, ALONE, augment="eda:ops=ri,draw=all", tokens_per_sample=LENGTH + 16),
    "hard negatives, a lower layer": case({**SLIM, "pooling": "layer:2"}, ALONE, hard_negatives="bt", **ALIGNED),
    "frozen layers": case(SLIM, {**CLEAR, "frozen_layers": 2}, dropout=0.0),
    "frozen layers, regularizer": case(
        SLIM, {**ALONE, "frozen_layers": 2, "regularizer_weight": 0.1}, chunk=8 * LENGTH
    ),
    "moco": case(SLIM, MOCO, dropout=0.0, **ALIGNED),
    "moco, symmetric, mlm, chunks": case(SLIM, {**MOCO, "symmetric": True, "mlm_weight": 1}, chunk=8 * LENGTH),
    "self-guided, wide head": case(WIDE, GUIDED, dropout=0.0),
    "self-guided, sg": case(SLIM, {**GUIDED, "objective": "sg", "guide_pooling": "mean"}),
    "self-guided, opt1": case(SLIM, {**GUIDED, "objective": "opt1", "regularizer_weight": 0, "guide_dropout": True}),
    "self-guided, opt2, mlm, chunks": case(
        {**SLIM, "projection_layers": 0},
        {**GUIDED, "objective": "opt2", "guide_layers": "1-3", "mlm_weight": 1},
        0,
        512,
    ),
    "spans of mixed length": case(LONG, CLEAR, **SPANS),
    "spans, joint, chunks": case(LONG, JOINT, chunk=600, **SPANS),
    "neighbors, window": case({**LONG, "attention_window": 80}, ALONE, **NEIGHBORS),
    "window, short": case({**SLIM, "attention_window": 32}, CLEAR, dropout=0.0),
}
aten = torch.ops.aten
COUNTED = {  # FlopCounterMode leaves them out
    aten.addmm_: lambda total, one, two, *_, **__: 2 * one[0] * one[1] * two[1],
    aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v),
    aten._scaled_dot_product_flash_attention_for_cpu_backward: lambda g, q, k, v, *_, **__: sdpa_backward_flop_count(
        g, q, k, v
    ),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("plan"), words=VOCABULARY)


@pytest.mark.parametrize("name", CASES)
def test_a_real_update_costs_what_is_estimated(name: str, data: Path) -> None:
    config, texts = CASES[name], TEXTS // 4 if "neighbors" in name else TEXTS
    before = live_bytes()
    trainer, dataset = trainer_of(data, config)
    recipe = recipe_of(config, len(trainer.task.dictionary))
    batch = recipe.batch(texts)
    with FlopCounterMode(display=False, custom_mapping=COUNTED) as counter:
        trainer.train_step([batch])
    peak = peak_bytes(trainer, batch) - before
    parameters = list(trainer.get_model().parameters())
    assert recipe.weights == sum(parameter.numel() for parameter in parameters)
    assert recipe.trained == sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
    operations = recipe.operations(texts, chunk=recipe.chunk_size).total
    assert operations == pytest.approx(counter.get_total_flops(), rel=0.02 if recipe.chunk_size else 0.002)
    assert recipe.memory(texts, chunk=recipe.chunk_size).total == pytest.approx(peak, rel=0.15)
    # a batch of another size costs more than that
    more = recipe.operations(texts + 1, chunk=recipe.chunk_size).total
    assert more > 1.02 * operations
    if not recipe.chunk_size and "masked_lm" not in name:
        assert recipe.memory(texts // 2).total < 0.85 * peak
    # its lengths are those of the data
    drawn = []
    for epoch in range(1, 6):
        dataset.set_epoch(epoch)
        instances = [one for index in range(min(len(dataset), 100)) for one in dataset[index].instances]
        drawn += [len(row) for one in instances for row in (one.anchor, *one.positives)]
    ours = [length for part in ("views", "keys") for length in recipe.texts.get(part, ())]
    assert not drawn or np.mean(ours) == pytest.approx(np.mean(drawn), rel=0.04)


@pytest.fixture(scope="module")
def clear() -> Any:
    return recipe_of(CASES["words deleted"], VOCABULARY)


def test_what_is_extrapolated_is_what_runs(clear: Any) -> None:
    large, small = clear.measured(300, 0), clear.encoded(300, 0)
    assert sum(small.flops.values()) == pytest.approx(sum(large.flops.values()), rel=0.01)
    assert sum(small.at_peak.values()) == pytest.approx(sum(large.at_peak.values()), rel=0.02)
    chunk = 4 * LENGTH
    whole = clear.measured(40, chunk)
    assert sum(clear.encoded(40, chunk).at_peak.values()) == pytest.approx(sum(whole.at_peak.values()), rel=0.05)
    assert clear.operations(40, 1, chunk).recomputed == pytest.approx(whole.flops["recomputed"], rel=0.02)


def test_pairs_of_texts_are_counted_at_their_number(clear: Any) -> None:
    # two products of 2 x 40 queries by 3 x 80 keys of 48 numbers, forward, and backward as many
    assert clear.operations(40, 3).contrast == 3 * 2 * 80 * 240 * 48
    assert clear.operations(4_000, 2).contrast == 4 * 2 * 8_000 * 16_000 * 48
    assert clear.memory(40, 3).contrast <= clear.memory(4_000, 2).contrast < 100 * 2**20


class Doubled(ClearNTXentCriterion):
    """A criterion that planning has never heard of: it contrasts twice."""

    def contrast(self, vectors: Any, views: Any, layouts: Any) -> Any:
        once, counted, log = super().contrast(vectors, views, layouts)
        return once + super().contrast(vectors, views, layouts)[0], counted, log


def test_a_new_criterion_needs_no_line_here(clear: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from fairseq.registry import REGISTRIES

    monkeypatch.setitem(CRITERION_REGISTRY, "clear_doubled", Doubled)
    monkeypatch.setitem(REGISTRIES["criterion"]["dataclass_registry"], "clear_doubled", ClearNTXentConfig)
    new = recipe_of({**CASES["words deleted"], "criterion": {**CLEAR, "_name": "clear_doubled"}}, VOCABULARY)
    assert new.operations(40, 3).contrast == 2 * clear.operations(40, 3).contrast
    assert new.operations(40, 3).views == clear.operations(40, 3).views
    gathers = [one for one in new.exchanges(40, 3) if one.what == "vectors"]
    assert len(gathers) == 2 * len([one for one in clear.exchanges(40, 3) if one.what == "vectors"])
