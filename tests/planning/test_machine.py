"""How a recipe is laid out: what is chosen, and what is refused."""

from dataclasses import replace

import pytest

from fairseq_clear.errors import UserError
from fairseq_clear.planning.composing import compose_recipe
from fairseq_clear.planning.corpus import Corpus
from fairseq_clear.planning.machine import GIB, HEADROOM, Machine, make_plan
from fairseq_clear.planning.recipe import read_recipe, view_length

RECIPE = read_recipe(compose_recipe("clear/base_256gpu"), vocabulary=50_266)
ROBERTA = read_recipe(compose_recipe("clear/base_256gpu", ["+ablation=roberta"]), vocabulary=50_266)
PAPER = Machine(workers=256)


def test_the_papers_run() -> None:
    plan = make_plan(RECIPE, PAPER)
    assert (plan.global_batch, plan.texts, plan.update_freq, plan.chunk) == (8192, 32, 1, 0)
    assert plan.negatives == 2 * 8192 - 2
    assert plan.updates == 500_000 and plan.epochs is None
    # RoBERTa-base with its MLM head, which has 50,265 rows; <del>'s row and bias
    assert RECIPE.encoder.parameters(views=False) == 124_696_665 + 768 + 1
    assert plan.hours == pytest.approx(500_000 * (plan.compute_seconds + plan.communication_seconds) / 3600)


def test_fewer_gpus_take_chunks_and_keep_the_negatives() -> None:
    plan = make_plan(RECIPE, Machine(workers=8), global_batch=8192)
    assert (plan.texts, plan.update_freq, plan.negatives) == (1024, 1, 2 * 8192 - 2)
    assert plan.chunk and plan.memory.total <= HEADROOM * 32 * GIB
    larger = make_plan(replace(RECIPE, chunk_size=4 * plan.chunk), Machine(workers=8, memory=200 * GIB), 8192)
    assert larger.memory.total > 32 * GIB
    assert plan.operations.recomputed == pytest.approx((plan.operations.total - plan.operations.contrast) / 4, rel=0.05)


def test_without_views_there_are_more_micro_batches_instead() -> None:
    plan = make_plan(ROBERTA, Machine(workers=8), global_batch=8192)
    assert plan.chunk == 0 and plan.negatives == 0
    assert plan.texts * plan.update_freq == 1024 and plan.update_freq > 1
    assert plan.operations.views == plan.operations.contrast == 0


def test_negatives_of_the_batch_are_those_of_one_gpu() -> None:
    assert make_plan(replace(RECIPE, is_global=False), PAPER).negatives == 2 * 32 - 2
    assert make_plan(replace(RECIPE, negatives=1), PAPER).negatives == 3 * 8192 - 2


def test_epochs_are_those_of_the_corpus() -> None:
    corpus = Corpus(texts=81_921, tokens=0)
    assert make_plan(RECIPE, PAPER, corpus=corpus).epochs == pytest.approx(500_000 / 11)
    assert make_plan(replace(RECIPE, max_epoch=3), PAPER, corpus=corpus).updates == 33
    with pytest.raises(UserError, match="neither it nor optimization.max_epoch"):
        make_plan(replace(RECIPE, max_update=0), PAPER, corpus=corpus)
    with pytest.raises(UserError, match="give --data-bin"):
        make_plan(replace(RECIPE, max_update=0), PAPER)


@pytest.mark.parametrize(
    ("workers", "memory", "batch", "message"),
    [
        (3, 32, 8192, "--global-batch 8192: is no multiple of --gpus 3"),
        (8, 1, 8192, "--memory 1: one text alone needs"),
        (8, 32, 0, "dataset.batch_size: the recipe has none"),
    ],
)
def test_what_cannot_be_done_is_one_line(workers: int, memory: float, batch: int, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        make_plan(RECIPE, Machine(workers, memory * GIB), batch)
    assert "\n" not in str(error.value)


def test_views_are_as_long_as_their_augmentation_leaves_them() -> None:
    assert view_length("none", 512) == view_length("subs", 512) == view_length("reorder", 512) == 512
    # 5 spans of 5 % go, a <del> each stays
    assert view_length("del-span:spans=5,ratio=0.05", 512) == pytest.approx(512 - 0.25 * 510 + 5, abs=8)
    assert view_length("subs+del-span", 512) == view_length("del-span", 512)
    # of n tokens 0.3 n stay, and a <del> before 0.7 of them: 0.51 n; the longest of many is a little longer
    assert 0.51 * 512 < view_length("del-word", 512) < 0.57 * 512


def test_half_precision_has_masters() -> None:
    assert RECIPE.element == 2
    half, single = make_plan(RECIPE, PAPER).memory, make_plan(replace(RECIPE, precision="fp32"), PAPER).memory
    weights = RECIPE.encoder.parameters()
    assert half.weights == 6 * weights and single.weights == 4 * weights
    assert half.optimizer == single.optimizer == 8 * weights
    lean = make_plan(replace(RECIPE, is_memory_efficient=True), PAPER).memory
    assert lean.weights == 2 * weights
