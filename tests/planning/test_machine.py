"""Plans of recipes: the sizes chosen, their costs, and errors."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairseq_clear.errors import UserError
from fairseq_clear.planning.costs import Recipe
from fairseq_clear.planning.machine import GIB, GPUS, HEADROOM, Machine, make_curve, make_plan, read_folder
from fairseq_clear.planning.recipe import compose_recipe

pytestmark = pytest.mark.slow

PAPER = Machine(workers=256)
THIN = ("++model.encoder_layers=2",)


def build(name: str, *overrides: str, vocabulary: int = 50_266, **section: dict[str, Any]) -> Recipe:
    config = compose_recipe(name, [*THIN, *overrides])
    return Recipe({**config, **{key: {**config.get(key, {}), **value} for key, value in section.items()}}, vocabulary)


@pytest.fixture(scope="module")
def thin() -> Recipe:
    return build("clear/base_256gpu")


def test_the_papers_run() -> None:
    recipe = Recipe(compose_recipe("clear/base_256gpu"), 50_266)
    plan = make_plan(recipe, PAPER)
    assert (plan.global_batch, plan.texts, plan.update_freq, plan.chunk) == (8192, 32, 1, 0)
    assert plan.negatives == 2 * 8192 - 2
    assert plan.updates == 500_000 and plan.epochs is None
    # RoBERTa-base with its MLM head, which has 50,265 rows; <del>'s row and bias; the projection head
    weights = 124_696_665 + 768 + 1 + 768 * 768 + 768 + 768 * 128 + 128
    assert recipe.weights == weights and recipe.element == 2
    assert plan.memory.weights == pytest.approx(6 * weights, rel=1e-6)
    assert plan.memory.optimizer == pytest.approx(8 * weights, rel=1e-6)
    # 5 spans of 5 % are deleted; each leaves a <del>
    assert max(recipe.texts["views"]) == pytest.approx(512 - 0.25 * 510 + 5, abs=12)
    assert 24e12 < plan.operations.total < 25e12 and plan.operations.recomputed == 0
    assert plan.hours == pytest.approx(500_000 * (plan.compute_seconds + plan.communication_seconds) / 3600)


def test_fewer_gpus_take_chunks_and_keep_the_negatives(thin: Recipe) -> None:
    plan = make_plan(thin, Machine(workers=8), global_batch=8192)
    assert (plan.texts, plan.update_freq, plan.negatives) == (1024, 1, 2 * 8192 - 2)
    assert plan.chunk and plan.memory.total <= HEADROOM * 32 * GIB
    assert thin.memory(1024, 8, 4 * plan.chunk).total > plan.memory.total
    assert plan.operations.recomputed == pytest.approx((plan.operations.total - plan.operations.contrast) / 4, rel=0.05)


def test_without_views_there_are_more_micro_batches_instead() -> None:
    roberta = build("clear/base_256gpu", "+ablation=roberta")
    plan = make_plan(roberta, Machine(workers=8, memory=8 * GIB), global_batch=8192)
    assert plan.chunk == 0 and plan.negatives == 0
    assert plan.texts * plan.update_freq == 1024 and plan.update_freq > 1
    assert plan.operations.views == plan.operations.contrast == 0


def test_negatives_of_the_batch_are_those_of_one_gpu(thin: Recipe) -> None:
    tiny = "++model.encoder_embed_dim=64"
    assert build("clear/base_256gpu", tiny, "criterion.negatives=batch").negatives(32, 256) == 2 * 32 - 2
    hard = build("clear/base_256gpu", tiny, "++task.hard_negatives=other", "task.sample_break_mode=eos")
    assert hard.negatives(32, 256) == 3 * 8192 - 2


def test_epochs_are_those_of_the_corpus(thin: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = thin.cfg.optimization
    assert make_plan(thin, PAPER, corpus=81_921).epochs == pytest.approx(500_000 / 11)
    monkeypatch.setitem(limits, "max_epoch", 3)
    assert make_plan(thin, PAPER, corpus=81_921).updates == 33
    monkeypatch.setitem(limits, "max_epoch", 0)
    monkeypatch.setitem(limits, "max_update", 0)
    with pytest.raises(UserError, match="neither it nor optimization.max_epoch"):
        make_plan(thin, PAPER, corpus=81_921)
    with pytest.raises(UserError, match="give --data-bin"):
        make_plan(thin, PAPER)


@pytest.mark.parametrize(
    ("workers", "memory", "batch", "message"),
    [
        (3, 32, 8192, "--global-batch 8192: is not a multiple of --gpus 3"),
        (8, 0.5, 64, "--memory 0.5: a single text needs"),
        (8, 32, 0, "dataset.batch_size: the recipe has none"),
    ],
)
def test_what_cannot_be_done_is_one_line(workers: int, memory: float, batch: int, message: str, thin: Recipe) -> None:
    with pytest.raises(UserError, match=message) as error:
        make_plan(thin, Machine(workers, memory * GIB), batch)
    assert "\n" not in str(error.value)


def test_spans_and_neighbors_are_as_long_as_their_settings_say() -> None:
    declutr = build("declutr/small")
    assert (len(declutr.texts["views"]) / declutr.items, declutr.masked_views, "masked" in declutr.texts) == (
        6,
        2,
        False,
    )
    separate = build("declutr/small", "+ablation=separate_mlm")
    assert (len(separate.texts["masked"]) / separate.items, separate.masked_views) == (2, 0)
    # Beta(4, 2) of 32 ... 512 has its mean at two thirds; 512 tokens with <s> and </s> are cut to the encoder's maximum
    mean = sum(separate.texts["masked"]) / len(separate.texts["masked"])
    assert mean == pytest.approx(32 + 481 * 2 / 3 + 2, rel=0.03) and 500 < separate.longest <= 512
    config = compose_recipe("views/neighbor_slice", ["+ablation=neighbor", *THIN])
    assert Recipe(config, 50_266, text_length=32).longest == 8 * 30 + 2


def test_a_queue_needs_no_chunks() -> None:
    cert = build("cert/cert", vocabulary=30_000)
    plan = make_plan(cert, Machine(workers=1, memory=0.8 * GIB), 256)
    assert plan.negatives == 96_606 and plan.chunk == 0 and plan.update_freq > 1
    # float32 master weights; 128 float32 numbers and an identity per key
    copies = sum(one.numel() for one in cert.model.key_encoder.parameters())
    assert plan.memory.copies == pytest.approx(4 * copies + 96_606 * (4 * 128 + 8), rel=1e-3)
    assert plan.memory.optimizer == pytest.approx(4 * cert.trained, rel=1e-3)
    in_batch = build("cert/batch_negatives", vocabulary=30_000)
    assert make_plan(in_batch, Machine(workers=1, memory=0.8 * GIB), 256).chunk


def test_the_guide_and_its_layers() -> None:
    guided = build("self_guided/sg_opt", vocabulary=30_522)
    plan = make_plan(guided, Machine(workers=1))
    assert plan.negatives == 15 * 3 and plan.operations.keys > 0
    assert plan.memory.copies == pytest.approx(
        4 * sum(one.numel() for one in guided.model.guide.parameters()), rel=1e-3
    )


def test_mixed_precision_keeps_float32_weights_and_halves_products() -> None:
    sizes = [
        make_plan(build("clear/base_256gpu", common={"fp16": False, **common}), PAPER)
        for common in ({"fp16": True}, {"amp": True}, {})
    ]
    half, mixed, single = (plan.memory for plan in sizes)
    assert sizes[0].operations.total == pytest.approx(sizes[1].operations.total, rel=1e-3)
    assert half.activations < mixed.activations < single.activations
    assert single.weights == mixed.weights and half.optimizer == pytest.approx(single.optimizer, rel=1e-3)


def test_the_texts_of_a_folder(tmp_path: Path) -> None:
    counts = {"documents": 10, "sentences": 1000, "tokens": 20_000}
    (tmp_path / "clear.json").write_text(json.dumps({"splits": {"train": counts}}))
    (tmp_path / "dict.txt").write_text("a 1\n")

    def texts(**task: object) -> tuple[int, int | None]:
        folder = read_folder(tmp_path, {"tokens_per_sample": 512, **task})
        return folder.texts, folder.text_length

    assert texts(sample_break_mode="eos") == (1000, 21)
    assert texts(sample_break_mode="eos", tokens_per_sample=12) == (1900, 12)  # 19 tokens and </s> a line, 10 a sample
    assert texts(sample_break_mode="eos", tokens_per_sample=12, views="paraphrase:a,b") == (1000, 12)
    assert texts(views="span:anchors=1") == (10, None)
    assert texts(views="span:anchors=1", document_boundary="line") == (1000, None)
    assert texts(views="neighbor:sentences=4") == (240, 21)
    # sentences are cut, not split, and read one by one whatever the break mode
    assert texts(views="cloze", tokens_per_sample=12) == (1000, 12)
    assert texts(views="cloze", sample_break_mode="complete") == (1000, 21)
    # an epoch reads the folder once, and of the other corpora what their weights say; they need not exist
    mix = f"general:1.5,{tmp_path}:5,news:0.5"
    assert texts(sample_break_mode="eos", mix=mix) == (1400, 21)
    with pytest.raises(UserError, match=f"--mix general:1,news:1: does not name the data folder {tmp_path}"):
        texts(mix="general:1,news:1")


def test_a_curve_is_a_plan_for_each_number_of_gpus(thin: Recipe) -> None:
    points = make_curve(thin, PAPER, 8192, gpus=GPUS[::4])
    assert [point.gpus for point in points] == [1, 16, 256, 4096]
    assert all(point.texts * point.update_freq * point.gpus == 8192 for point in points)
    alone, paper, many = points[0], points[2], points[-1]
    assert alone.communication_seconds == 0 and alone.chunk and alone.efficiency < 0.8  # chunks are encoded twice
    plan = make_plan(thin, PAPER, 8192)
    assert (paper.chunk, paper.compute_seconds, paper.sent) == (0, plan.compute_seconds, plan.sent)
    assert paper.efficiency == pytest.approx(
        paper.compute_seconds / (paper.compute_seconds + paper.communication_seconds)
    )
    assert many.efficiency < 0.5 * paper.efficiency
    each = make_curve(thin, PAPER, 32, per_gpu=True, gpus=(1, 256))
    assert [point.texts for point in each] == [32, 32] and each[0].efficiency == 1.0
    # the queries of each GPU are compared with the keys of all GPUs
    assert each[1].compute_seconds > each[0].compute_seconds and each[1].sent > 0
    assert [point.gpus for point in make_curve(thin, PAPER, 24, gpus=(1, 2, 8, 16, 32))] == [1, 2, 8]
    with pytest.raises(UserError, match="--global-batch 3: cannot be divided"):
        make_curve(thin, replace(PAPER, memory=GIB), 3, gpus=(2, 4))
