"""How a recipe is laid out: what is chosen, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fairseq_clear.errors import UserError
from fairseq_clear.planning.composing import compose_recipe
from fairseq_clear.planning.corpus import Corpus, read_folder
from fairseq_clear.planning.machine import GIB, HEADROOM, Machine, make_plan
from fairseq_clear.planning.reading import read_recipe
from fairseq_clear.planning.rows import view_lengths

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


def view_length(augment: str, length: int, limit: int | None = None) -> int:
    return max(view_lengths(augment, [length], limit))


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


def test_eda_inserts_words_and_the_task_cuts_them() -> None:
    assert view_length("eda:ops=rs", 100) == 100 and view_length("eda:ops=rd", 100) <= 100
    # of 98 words a tenth is inserted, rounded up or down
    assert view_length("eda:ops=ri", 100, limit=512) == 110
    assert view_length("eda:ops=ri", 100, limit=105) == view_length("eda:ops=ri", 105) == 105


def test_spans_are_as_long_as_their_distribution() -> None:
    declutr = compose_recipe("declutr/small")
    recipe = read_recipe(declutr, vocabulary=50_266)
    assert (recipe.view_rows, recipe.key_rows, recipe.copies, recipe.is_joint) == (6, 0, 0, True)
    # Beta(4, 2) of 32 ... 512 has its mean at two thirds, and 512 and the frame are cut to what the encoder takes
    assert recipe.mean_length == pytest.approx(32 + 481 * 2 / 3 + 2, rel=0.03)
    assert 500 < recipe.view_length <= 512
    separate = read_recipe({**declutr, "criterion": {**declutr["criterion"], "anchor_mlm": "separate"}}, 50_266)
    assert (separate.copies, separate.is_joint, separate.view_rows) == (2, False, 6)


def test_neighbors_are_as_many_sentences() -> None:
    config = compose_recipe("views/neighbor_slice", ["+ablation=neighbor"])
    assert read_recipe(config, 50_266).view_length == 4096
    assert read_recipe(config, 50_266, text_length=32).view_length == 8 * 30 + 2


def test_a_queue_is_no_reason_for_chunks() -> None:
    cert = read_recipe(compose_recipe("cert/cert"), vocabulary=30_000)
    plan = make_plan(cert, Machine(workers=1, memory=4 * GIB), 64)
    assert plan.negatives == 96_606 and plan.chunk == 0 and plan.update_freq > 1
    in_batch = read_recipe(compose_recipe("cert/batch_negatives"), vocabulary=30_000)
    assert make_plan(in_batch, Machine(workers=1, memory=4 * GIB), 64).chunk
    # float32 masters, in half precision rounded ones beside them, 128 float32 numbers and an identity a key
    encoder, queue = cert.encoder.parameters(mlm=False), 96_606 * (4 * 128 + 8)
    assert plan.memory.copies == 4 * encoder + queue
    assert make_plan(replace(cert, precision="fp16"), PAPER).memory.copies == 6 * encoder + queue
    assert cert.moments == 1 and plan.memory.optimizer == 4 * cert.trained


def test_the_guide_and_its_layers() -> None:
    guided = read_recipe(compose_recipe("self_guided/sg_opt"), vocabulary=30_522)
    assert (guided.objective, guided.guide_layers, guided.has_guide) == ("opt3", 13, True)
    plan = make_plan(guided, Machine(workers=1))
    assert plan.negatives == 15 * 13 and plan.memory.copies == 4 * guided.encoder.parameters(mlm=False, views=False)
    assert guided.trained == guided.encoder.parameters(mlm=False) - guided.encoder.embeddings
    back = read_recipe(compose_recipe("self_guided/bt"), vocabulary=30_522)
    assert (back.key_encoder, back.has_guide, back.view_rows, back.key_rows) == ("shared", True, 2, 0)


def test_windows_are_linear_in_the_length() -> None:
    window = replace(RECIPE.encoder, window=512)
    pairs = [window.attention(length).pairs for length in (2048, 4096, 8192)]
    assert pairs[2] - pairs[1] == 2 * (pairs[1] - pairs[0])
    assert window.attention(768).pairs == 768**2 and window.attention(200).mask == 0
    assert RECIPE.encoder.attention(4096).pairs == 4096**2


def test_mixed_precision_keeps_float32_weights_and_halves_products() -> None:
    mixed, half = replace(RECIPE, precision="amp"), RECIPE
    assert (mixed.element, mixed.product, mixed.vector) == (4, 2, 2)
    headless = replace(mixed, encoder=replace(mixed.encoder, projection=(768,)))
    assert headless.vector == 4
    amp, fp16 = make_plan(mixed, PAPER), make_plan(half, PAPER)
    single = make_plan(replace(RECIPE, precision="fp32"), PAPER)
    assert amp.operations == fp16.operations
    assert fp16.memory.activations < amp.memory.activations < single.memory.activations
    assert single.memory.weights < amp.memory.weights < 1.5 * single.memory.weights
    assert replace(mixed, is_cpu=True).product == 4


def test_the_texts_of_a_folder(tmp_path: Path) -> None:
    counts = {"documents": 10, "sentences": 1000, "tokens": 20_000}
    (tmp_path / "clear.json").write_text(json.dumps({"splits": {"train": counts}}))
    (tmp_path / "dict.txt").write_text("a 1\n")

    def texts(**task: object) -> tuple[int, int | None]:
        folder = read_folder(tmp_path, {"tokens_per_sample": 512, **task})
        return folder.corpus.texts, folder.text_length

    assert texts(sample_break_mode="eos") == (1000, 21)
    assert texts(sample_break_mode="eos", tokens_per_sample=12) == (1900, 12)  # 19 tokens and </s> a line, 10 a sample
    assert texts(sample_break_mode="eos", tokens_per_sample=12, views="paraphrase:a,b") == (1000, 12)
    assert texts(views="span:anchors=1") == (10, None)
    assert texts(views="span:anchors=1", document_boundary="line") == (1000, None)
    assert texts(views="neighbor:sentences=4") == (240, 21)
