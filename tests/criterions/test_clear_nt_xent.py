"""The criterions inside fairseq: weight 0 is masked_lm, numbers add up, anchors, Matryoshka, mistakes are named."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from fairseq.criterions.masked_lm import MaskedLmLoss
from fairseq.logging import metrics
from fairseq.tasks.masked_lm import MaskedLMConfig, MaskedLMTask

from fairseq_clear.criterions.figures import log_numbers
from fairseq_clear.modules import chunking
from fairseq_clear.tasks.run_messages import Watch
from fairseq_clear.text.documents import content_hashes
from fairseq_clear.views.view_source import TokenSource, ViewSource
from fairseq_clear.views.view_table import VIEWS, ViewSourceKind
from tests.objectives import oracles
from tests.training import build, refuses

ADAM = ("--optimizer", "adam", "--lr", "1e-3")


def parts(data: Path, *flags: str) -> tuple[Any, Any, Any, Any]:
    trainer, dataset = build(data, *flags)
    return trainer.get_model(), trainer.get_criterion(), dataset, trainer.task


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def backward(model: Any, criterion: Any, sample: Any) -> tuple[Any, Any, Any, dict[str, torch.Tensor]]:
    model.zero_grad(set_to_none=True)
    torch.manual_seed(7)
    loss, size, log = criterion(model, sample)
    loss.backward()
    return loss, size, log, gradients(model)


@pytest.mark.parametrize("dropout", ["0", "0.1"])
def test_weight_0_is_masked_lm_to_the_bit(dropout: str, data_bin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunking, "ENOUGH_CELLS", {"cpu": 1, "cuda": 1})  # in parts, other texts would be dropped out
    model, criterion, dataset, task = parts(data_bin, "--contrastive-weight", "0", "--dropout", dropout)
    sample = dataset.collater([dataset[index] for index in range(6)])
    assert "views" not in sample and len(set(sample["lengths"])) > 1
    stock = MaskedLmLoss(criterion.cfg, task)
    loss, size, log, ours = backward(model, criterion, sample)
    stock_loss, stock_size, _, theirs = backward(model, stock, sample)
    assert torch.equal(loss, stock_loss)
    assert torch.equal(size, stock_size)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert log["loss"] == log["mlm_loss"] == loss
    model, criterion, dataset, _ = parts(data_bin, "--dropout", dropout)
    _, _, _, with_views = backward(model, criterion, dataset.collater([dataset[index] for index in range(6)]))
    assert not all(torch.equal(with_views[name], theirs[name]) for name in theirs), "the negative control: weight 1"


@pytest.mark.parametrize("copies", [1, 2])
def test_masks_are_those_of_stock_masked_lm(copies: int, data_bin: Path) -> None:
    flags = ("--sample-break-mode", "complete", "--criterion", "masked_lm", "--mlm-copies", str(copies))
    trainer, ours = build(data_bin, *flags)
    cfg = MaskedLMConfig(data=str(data_bin), sample_break_mode="complete", tokens_per_sample=32, seed=1)
    # One dictionary, so that random replacements are drawn from the same words.
    task = MaskedLMTask(cfg, trainer.task.dictionary)
    task.load_dataset("train")
    stock = task.dataset("train")
    assert ours.ordered_indices().tolist() == stock.ordered_indices().tolist()
    for epoch in (1, 3):
        stock.set_epoch(epoch)
        ours.set_epoch(epoch)
        for index in range(0, len(ours), 5):
            mine, theirs = ours[index], stock[index]
            assert mine.sources[0].tokens.tolist() == theirs["net_input.src_tokens"].tolist()
            assert mine.targets[0].tokens.tolist() == theirs["target"].tolist()
            assert len(mine.sources) == copies
            if copies == 2:
                assert mine.sources[1].tokens.tolist() != mine.sources[0].tokens.tolist()
    with pytest.raises(AssertionError):
        ours.set_epoch(4)
        assert all(ours[i].targets[0].tokens.tolist() == stock[i]["target"].tolist() for i in range(len(ours)))


@pytest.mark.parametrize("weight", ["0.5", "1", "3"])
def test_loss_is_mlm_plus_weighted_mean_times_masked_tokens(weight: str, data_bin: Path) -> None:
    model, criterion, dataset, _ = parts(data_bin, "--contrastive-weight", weight, "--temperature", "0.2")
    sample = dataset.collater([dataset[index] for index in range(6)])
    loss, size, log, _ = backward(model, criterion, sample)
    _, extra = model(views=sample["views"]["tokens"])
    expected = oracles.clear_equation_2(extra["projections"].detach().double().numpy(), 0.2)
    assert log["contrastive_loss"].item() == pytest.approx(expected, rel=1e-4)
    assert log["queries"] == 12
    total = log["mlm_loss"].item() + float(weight) * expected * size.item() / 12
    assert loss.item() == pytest.approx(total, rel=1e-4)


@pytest.mark.parametrize(
    "flags",
    [(), ("--mlm-weight", "0"), ("--contrastive-weight", "0"), ("--encode-chunk-size", "32"), ("--mlm-copies", "2")],
)
def test_the_model_is_called_once_a_micro_batch(flags: tuple[str, ...], data_bin: Path) -> None:
    model, criterion, dataset, _ = parts(data_bin, *flags)
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    criterion(model, dataset.collater([dataset[index] for index in range(4)]))
    assert len(calls) == 1


def test_duplicates_are_not_negatives(data_bin: Path) -> None:
    for flags, negatives in ((), 2 * 4 + 4 * 2), (("--keep-duplicates",), 6 * 4):
        model, criterion, dataset, _ = parts(data_bin, *flags)
        # Item 0 twice: its four views exclude each other, whatever their augmentation left of them.
        sample = dataset.collater([dataset[0], dataset[0], dataset[1]])
        _, _, log, _ = backward(model, criterion, sample)
        assert log["negatives"] == negatives


SPANS = "--augment none --views span:anchors=2,positives=2,min=3,max=8"
RECIPES = (
    *("", "--mlm-weight 0", "--contrastive-weight 0", "--mlm-weight 0 --pooling layer:1"),
    *("--criterion clear_moco --queue-size 9", SPANS, SPANS + " --anchor-mlm joint"),
    "--criterion clear_self_guided --augment none",
)


@pytest.mark.parametrize("flags", RECIPES)
def test_every_weight_has_a_gradient_which_is_0_in_a_batch_that_stands_in(flags: str, data_bin: Path) -> None:
    model, criterion, dataset, _ = parts(data_bin, *flags.split())
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained and not any(name.startswith(("key_", "frozen_")) for name in trained)
    assert trained == backward(model, criterion, dataset.collater([dataset[index] for index in range(4)]))[3].keys()
    _, size, log, grads = backward(model, criterion, dataset.collater([]))
    assert size == 0
    assert {name for name, value in log.items() if float(value)} <= {
        "without_negatives",
        "queue_fill",
        "queue_readings",
    }
    assert grads.keys() == trained and not any(gradient.any() for gradient in grads.values())


def reduced(criterion: Any, logs: list[dict[str, Any]]) -> dict[str, float]:
    with metrics.aggregate(new_root=True) as agg:
        criterion.reduce_metrics(logs)
    return {name: float(value) for name, value in agg.get_smoothed_values().items()}


def test_numbers_of_parts_reduce_to_those_of_the_whole(data_bin: Path) -> None:
    model, criterion, dataset, _ = parts(data_bin, "--negatives", "batch")
    logs = [
        backward(model, criterion, dataset.collater([dataset[i] for i in items]))[2] for items in ([0, 1, 2, 3], [4, 5])
    ]
    summed = [{name: logs[0][name] + logs[1][name] for name in logs[0]}]
    assert reduced(criterion, logs) == reduced(criterion, summed)
    both = reduced(criterion, logs)
    # 4 texts give 8 queries, 2 texts 4: means are weighted by queries, not by batches.
    means = [reduced(criterion, [log])["contrastive_loss"] for log in logs]
    assert both["contrastive_loss"] == pytest.approx((8 * means[0] + 4 * means[1]) / 12, abs=2e-3)
    assert both["contrastive_loss"] != pytest.approx(sum(means) / 2, abs=2e-3)
    names = (
        "loss mlm_loss ppl contrastive_loss contrastive_accuracy positive_cosine negative_cosine alignment uniformity"
    )
    assert {*names.split(), "negatives_per_query", "view_length_ratio"} <= both.keys()


def test_uniformity_is_the_logarithm_of_the_mean(data_bin: Path) -> None:
    _, criterion, _, _ = parts(data_bin)
    log = {"sample_size": 1, "loss": 1.0, "queries": 2.0, "contrastive_loss": 1.0, "negatives": 4.0}
    logs = [{**log, "uniformity": potential} for potential in (0.4, 2.0)]
    assert reduced(criterion, logs)["uniformity"] == pytest.approx(-1.204, abs=1e-3)  # ln(2.4 / 8)


def test_an_update_without_negatives_has_no_uniformity(data_bin: Path) -> None:
    _, criterion, _, _ = parts(data_bin)
    log = {"sample_size": 1, "loss": 1.0, "queries": 2.0, "contrastive_loss": 1.0}
    with metrics.aggregate("reset") as aggregator:
        criterion.reduce_metrics([{**log, "uniformity": 0.4, "negatives": 4.0}])
        aggregator.reset()  # as after every --log-interval
        criterion.reduce_metrics([log])
        assert aggregator.get_smoothed_values().get("uniformity", 0) == 0


def test_missing_paraphrases_are_summed_and_substituted_words_are_a_share(data_bin: Path) -> None:
    _, criterion, _, _ = parts(data_bin)
    log = {"sample_size": 1, "loss": 1.0, "queries": 2.0}
    with metrics.aggregate() as aggregator:
        for count in (3, 0, 2):
            criterion.reduce_metrics([{**log, "fell_back": count, "substituted": count, "words": 20.0}] * 2)
    found = aggregator.get_smoothed_values()
    assert (found["paraphrases_missing"], found["substituted_share"]) == (10, round(10 / 120, 3))


def test_a_batch_without_negatives_says_so_once(data_bin: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer, dataset = build(data_bin)
    sample = dataset.collater([dataset[0]])
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            trainer.train_step([sample])
    assert sum("no negatives" in record.message for record in caplog.records) == 1


EASY = {"queries": 32.0, "correct": 32.0, "negatives": 32.0 * 31, "without_negatives": 0.0}


@pytest.mark.parametrize(
    ("first", "updates", "changed", "max_update", "warned"),
    [
        (0, 90, {}, 1_000, True),
        (80, 20, {}, 10_000, True),
        (81, 20, {}, 10_000, False),
        (481, 20, {}, 60_000, True),
        (0, 19, {}, 10_000, False),
        (0, 20, {"correct": 31.6}, 10_000, False),
        (0, 20, {"negatives": 32.0 * 30}, 10_000, False),
        (0, 100, {"queries": 6.0, "correct": 6.0, "negatives": 6.0 * 4}, 10_000, False),
        (0, 20, {"queue_fill": 0.0}, 10_000, True),
        (0, 100, {"queries": 0.0, "correct": 0.0, "negatives": 0.0}, 10_000, False),
        (0, 100, {"candidates": 32.0 * 40}, 10_000, False),
    ],
    ids="early,just early,late,early in a long run,short window,hard,few candidates,3 texts,queue,0,masked".split(","),
)
def test_views_that_are_too_easy_are_reported_once(first, updates, changed, max_update, warned, caplog) -> None:
    watch = Watch()
    for update in range(first, first + updates):
        watch.update = update
        watch([{**EASY, **changed}, {**EASY, **changed}], max_update)
    assert sum("too easy" in record.message for record in caplog.records) == int(warned)


@pytest.mark.parametrize(("masked", "said"), [(5.0, "it only trained the masked"), (0.0, "it trained nothing")])
def test_a_batch_without_negatives_says_what_it_trained(masked: float, said: str, caplog) -> None:
    watch = Watch()
    watch.update = 0
    watch([{**EASY, "without_negatives": 1.0, "masked_tokens": masked}], 10)
    assert [said in record.message for record in caplog.records] == [True]


def test_one_hard_update_in_the_window_is_enough(caplog: pytest.LogCaptureFixture) -> None:
    watch = Watch()
    for update in range(25):
        watch.update = update
        watch([{**EASY, "correct": 16.0} if update == 4 else EASY], 10_000)
        assert bool(caplog.records) == (update == 24)


@pytest.mark.parametrize(("flags", "warned"), [(("--augment", "reorder"), True), (("--augment", "none"), False)])
def test_views_that_dropout_makes_are_not_reported(flags, warned, data_bin, caplog) -> None:
    trainer, _ = build(data_bin, *flags)
    for update in range(30):
        trainer.task.watch.update = update
        trainer.task.watch([EASY], 10_000)
    assert any("too easy" in record.message for record in caplog.records) == warned


# The masked language model on DeCLUTR's anchors, in one pass

ANCHORS = (*SPANS.split(), "--temperature", "0.2", "--anchor-mlm", "joint")


@pytest.mark.parametrize("chunks", ["0", "40"])
def test_one_pass_predicts_and_embeds_the_masked_anchors(chunks: str, data_bin: Path) -> None:
    model, criterion, dataset, task = parts(data_bin, *ANCHORS, "--encode-chunk-size", chunks)
    sample = dataset.collater([dataset[index] for index in range(4)])
    views = sample["views"]
    anchors = len(views["identity"])
    assert anchors == 8
    assert sample["net_input"] == {}
    masked = views["tokens"][:anchors]
    assert (masked == task.mask_idx).any()
    assert not (views["tokens"][anchors:] == task.mask_idx).any()
    calls: list[int] = []
    model.register_forward_hook(lambda *_: calls.append(1))
    loss, size, log, gradients = backward(model, criterion, sample)
    assert len(calls) == 1
    target = views["target"]
    assert size == target.ne(1).sum()
    # by hand: MLM and embeddings of the same masked anchors, row by row
    total, projections = 0.0, []
    with torch.no_grad():
        for row, tokens in enumerate(views["tokens"]):
            text = tokens[tokens.ne(1)].unsqueeze(0)
            projections.append(model(views=text)[1]["projections"][0])
            if row < anchors:
                wanted = target[row][: text.shape[1]]
                logits = model(text)[0][0][wanted.ne(1)]
                total += F.cross_entropy(logits, wanted[wanted.ne(1)], reduction="sum").item()
    assert log["mlm_loss"].item() == pytest.approx(total, rel=1e-4)
    z = torch.stack(projections)
    z = torch.cat([z[:anchors], z[anchors:].view(anchors, 2, -1).mean(1)])
    expected = oracles.clear_equation_2(z.double().numpy(), 0.2)
    assert log["contrastive_loss"].item() == pytest.approx(expected, rel=1e-4)
    assert loss.item() == pytest.approx(total + expected * size.item() / (2 * anchors), rel=1e-4)
    assert gradients.keys() == {name for name, parameter in model.named_parameters() if parameter.requires_grad}


# Matryoshka: every criterion, its queue, and its head

PLAIN = ("--augment", "none", "--mlm-weight", "0", "--projection-layers", "0")
CRITERIONS = {
    "nt-xent": (*PLAIN, "--criterion", "clear_nt_xent", "--views", "paraphrase:original,bt"),
    "moco": (*PLAIN, "--criterion", "clear_moco", "--queue-size", "30", "--views", "paraphrase:original,bt"),
    "sg": (*PLAIN, "--criterion", "clear_self_guided", "--objective", "sg", "--regularizer-weight", "0"),
    "sg-opt": (*PLAIN, "--criterion", "clear_self_guided", "--regularizer-weight", "0"),
}


def loss_of(data: Path, *flags: str) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    model, criterion, dataset, _ = parts(data, *flags)
    model.begin()
    model.train()
    if "clear_moco" in flags:  # its queue begins empty
        criterion(model, dataset.collater([dataset[index] for index in range(9, 18)]))
    loss, _, _, gradients = backward(model, criterion, dataset.collater([dataset[index] for index in range(6)]))
    return loss.detach(), gradients


@pytest.mark.slow
@pytest.mark.parametrize("name", CRITERIONS)
def test_matryoshka_is_the_mean_of_its_dimensions(name: str, paired_bin: Path) -> None:
    flags = CRITERIONS[name]
    whole, _ = loss_of(paired_bin, *flags)
    full, gradients = loss_of(paired_bin, *flags, "--matryoshka", "128")
    assert torch.equal(full, whole), "the full width alone changes nothing"
    each = [loss_of(paired_bin, *flags, "--matryoshka", dimension)[0] for dimension in ("8", "32", "128")]
    mean, of_mean = loss_of(paired_bin, *flags, "--matryoshka", "8,32,128")
    assert mean.item() == pytest.approx(float(np.mean([one.item() for one in each])), rel=1e-5)
    assert len({round(one.item(), 3) for one in each}) == 3
    assert any(not torch.equal(gradients[key], of_mean[key]) for key in gradients)


@pytest.mark.parametrize(("layers", "is_told"), [("2", True), ("0", False)])
def test_matryoshka_with_a_head_is_told(
    layers: str, is_told: bool, paired_bin: Path, caplog: pytest.LogCaptureFixture
) -> None:
    build(paired_bin, "--matryoshka", "16,64", "--projection-layers", layers)
    told: list[Any] = [record for record in caplog.records if "--projection-layers 0" in record.getMessage()]
    assert bool(told) == is_told


# Settings that a criterion does not accept

NT_XENT, MOCO = "--criterion clear_nt_xent ", "--criterion clear_moco --queue-size 20 "
GUIDED = "--criterion clear_self_guided --augment none "
MATRYOSHKA = "--augment none --mlm-weight 0 --projection-layers 0 --matryoshka "

MISTAKES = {
    NT_XENT + "--objective opt3": "valid are nt-xent",
    NT_XENT + "--contrastive-weight 0 --mlm-weight 0": "leave nothing to learn",
    NT_XENT + "--pooling layer:9": "layers 0 (embeddings) to 2",
    NT_XENT + "--false-negatives teacher": "--false-negatives: there is no 'teacher'; choose from guide, none",
    NT_XENT + "--anchor-mlm joint": "--anchor-mlm joint: only works with --views span, whose anchors it masks",
    NT_XENT + "--anchor-mlm joint --mlm-weight 0": "--anchor-mlm joint: only works with --views span",
    MATRYOSHKA + "64,32": "--matryoshka 64,32: give ascending whole numbers above 0",
    MATRYOSHKA + "64,129": "--matryoshka 64,129: the vectors have 128 dimensions; give none above 128",
    MATRYOSHKA + "64 --projection-dim 16 --projection-layers 1": "the vectors have 16 dimensions",
    MATRYOSHKA + "64 --contrastive-weight 0 --mlm-weight 1": "needs the contrastive term, which --contrastive-weight 0",
    MOCO + "--objective nt-xent": "valid are info-nce",
    MOCO + "--key-encoder shared": "this criterion's is momentum",
    GUIDED + "--key-encoder momentum": "this criterion's is frozen",
    GUIDED + "--guide-layers 3": "layers from 0 (embeddings) to 2",
    GUIDED + "--guide-layers 2-1": "--guide-layers 2-1: give all",
    GUIDED + "--frozen-layers 4": "give 0 to 3",
    GUIDED + "--frozen-layers 3 --projection-layers 0": "--frozen-layers: leaves nothing to train",
    GUIDED + "--views paraphrase:original": "give two or more",
    GUIDED + "--views paraphrase:original,de": "paraphrase/de/train does not exist",
    GUIDED + "--hard-negatives x": "only --criterion clear_nt_xent",
}


@pytest.mark.parametrize("flags", MISTAKES)
def test_mistakes_are_one_line(flags: str, data_bin: Path, caplog: pytest.LogCaptureFixture) -> None:
    refuses(caplog, MISTAKES[flags], data_bin, *flags.split())


def test_the_positive_is_no_candidate_with_duplicates_kept(paired_bin: Path) -> None:
    flags = ("--augment", "none", "--views", "paraphrase:original,bt", "--mlm-weight", "0", "--keep-duplicates")
    model, criterion, dataset, _ = parts(paired_bin, *flags, "--false-negatives", "guide:margin=-2")
    log = criterion(model, dataset.collater([dataset[i] for i in range(4)]))[2]
    assert log["candidates"] == log["negatives"] == 8 * 6


class FarNegatives(ViewSource):
    """Each text twice, and the text 60 places after it as a hard negative."""

    negatives = 1

    def __init__(self, sentences: TokenSource) -> None:
        self.sentences, sizes = sentences, np.asarray(sentences.sizes)
        self.text_lengths = np.column_stack([sizes, sizes, np.roll(sizes, -60)])

    def __call__(self, index: int, rng: np.random.Generator) -> list[Any]:
        text, other = (self.sentences.rows(np.array([place % len(self.text_lengths)])) for place in (index, index + 60))
        return [([int(content_hashes(text)[0])] * 2, [text[0], text[0], other[0]])]


def test_a_source_of_ones_own_has_hard_negatives(data_bin, monkeypatch, caplog) -> None:
    monkeypatch.setitem(VIEWS, "far", ViewSourceKind(FarNegatives, {}, "", hashes=2))
    trainer, dataset = build(data_bin, "--views", "far")
    assert (
        trainer.train_step([dataset.collater([dataset[n] for n in range(8)])])["negatives_per_query"] == 2 * 8 - 2 + 8
    )
    for criterion in ("clear_moco", "clear_self_guided"):
        said = "--views far: has hard negatives; give --criterion clear_nt_xent"
        refuses(caplog, said, data_bin, "--views", "far", "--criterion", criterion)


def test_averages_over_updates_are_weighted_by_their_counts() -> None:
    with metrics.aggregate(new_root=True) as aggregator:
        for queries, correct in ((8.0, 8.0), (2.0, 0.0)):
            log_numbers([{"sample_size": 1, "loss": 1.0, "queries": queries, "correct": correct}])
    assert aggregator.get_smoothed_values()["contrastive_accuracy"] == 0.8
