"""The criterions inside fairseq: weight 0 is masked_lm, numbers add up, anchors, Matryoshka, directions, mistakes."""

import shlex
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from fairseq.criterions.masked_lm import MaskedLmLoss
from fairseq.logging import metrics
from fairseq.tasks.masked_lm import MaskedLMConfig, MaskedLMTask
from omegaconf import OmegaConf

from fairseq_clear.criterions.figures import log_numbers
from fairseq_clear.data.batch import Views
from fairseq_clear.distributed import Layout
from fairseq_clear.modules import chunking
from fairseq_clear.refining.refine_settings import RECIPES as REFINING
from fairseq_clear.tasks.run_messages import Watch, _lines
from fairseq_clear.text.documents import content_hashes
from fairseq_clear.views.view_source import TokenSource, ViewSource
from fairseq_clear.views.view_table import VIEWS, ViewSourceKind
from tests.conftest import ROOT
from tests.objectives import oracles
from tests.objectives.test_false_negatives import nearer
from tests.objectives.test_negatives import in_blocks
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
    one = "--directions one"
    expected = {"": 2 * 4 + 4 * 2, "--keep-duplicates": 6 * 4, one: 2 * 1 + 1 * 2, f"{one} --keep-duplicates": 3 * 2}
    for flags, negatives in expected.items():
        model, criterion, dataset, _ = parts(data_bin, *flags.split())
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


def reduced(*updates: list[dict[str, Any]]) -> dict[str, float]:
    """The averages over updates; of each, the logging outputs of its micro-batches."""
    with metrics.aggregate(new_root=True) as agg:
        for logs in updates:
            log_numbers(logs)
    return {name: float(value) for name, value in agg.get_smoothed_values().items()}


def test_numbers_of_parts_reduce_to_those_of_the_whole(data_bin: Path) -> None:
    model, criterion, dataset, _ = parts(data_bin, "--negatives", "batch")
    samples = (dataset.collater([dataset[i] for i in items]) for items in (range(4), (4, 5)))
    logs = [backward(model, criterion, sample)[2] for sample in samples]
    summed = [{name: logs[0][name] + logs[1][name] for name in logs[0]}]
    both = reduced(logs)
    assert both == reduced(summed)
    # 4 texts give 8 queries, 2 texts 4: means are weighted by queries, not by batches.
    means = [reduced([log])["contrastive_loss"] for log in logs]
    assert both["contrastive_loss"] == pytest.approx((8 * means[0] + 4 * means[1]) / 12, abs=2e-3)
    assert both["contrastive_loss"] != pytest.approx(sum(means) / 2, abs=2e-3)
    names = "loss mlm_loss ppl contrastive_loss contrastive_accuracy positive_cosine negative_cosine alignment"
    assert {*names.split(), "uniformity", "negatives_per_query", "view_length_ratio"} <= both.keys()


def test_averages_over_updates() -> None:
    log = {"sample_size": 1, "loss": 1.0, "queries": 2.0, "contrastive_loss": 1.0}
    uniform = [{**log, "uniformity": potential, "negatives": 4.0} for potential in (0.4, 2.0)]
    assert reduced(uniform)["uniformity"] == pytest.approx(-1.204, abs=1e-3), "ln(2.4 / 8), the logarithm of the mean"
    fallen = [[{**log, "fell_back": count, "substituted": count, "words": 20.0}] * 2 for count in (3, 0, 2)]
    found = reduced(*fallen)
    assert (found["paraphrases_missing"], found["substituted_share"]) == (10, round(10 / 120, 3))
    counted = [[{**log, "queries": queries, "correct": correct}] for queries, correct in ((8.0, 8.0), (2.0, 0.0))]
    assert reduced(*counted)["contrastive_accuracy"] == 0.8, "weighted by their queries"
    with metrics.aggregate("reset") as aggregator:
        log_numbers(uniform)
        aggregator.reset()  # as after every --log-interval
        log_numbers([log])
        assert aggregator.get_smoothed_values().get("uniformity", 0) == 0, "without negatives there is none"


@pytest.mark.parametrize(("weight", "said"), [("1", "it only trained the masked"), ("0", "it trained nothing")])
def test_a_batch_without_negatives_says_so_once(weight: str, said: str, data_bin: Path, caplog: Any) -> None:
    trainer, dataset = build(data_bin, "--mlm-weight", weight)
    sample = dataset.collater([dataset[0]])
    for _ in range(2):
        trainer.train_step([sample])
    assert [said in record.message for record in caplog.records if "no negatives" in record.message] == [True]


EASY = {"queries": 32.0, "correct": 32.0, "negatives": 32.0 * 31, "without_negatives": 0.0}


@pytest.mark.parametrize(
    ("first", "updates", "changed", "max_update", "warned"),
    [
        (80, 20, {}, 1_000, True),
        (81, 20, {}, 10_000, False),
        (481, 20, {}, 60_000, True),
        (0, 20, {"correct": 31.6}, 10_000, False),
        (0, 20, {"negatives": 32.0 * 30}, 10_000, False),
        (0, 100, {"queries": 6.0, "correct": 6.0, "negatives": 6.0 * 4}, 10_000, False),
        (0, 20, {"queue_fill": 0.0}, 10_000, True),
        (0, 100, {"queries": 0.0, "correct": 0.0, "negatives": 0.0}, 10_000, False),
        (0, 100, {"candidates": 32.0 * 40}, 10_000, False),
    ],
    ids="early,late,early in a long run,hard,few candidates,3 texts,queue,0,masked".split(","),
)
def test_views_that_are_too_easy_are_reported_once(first, updates, changed, max_update, warned, caplog) -> None:
    watch = Watch()
    for update in range(first, first + updates):
        watch.update = update
        watch([{**EASY, **changed}, {**EASY, **changed}], max_update)
    assert sum("too easy" in record.message for record in caplog.records) == int(warned)


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
def test_matryoshka_with_a_head_is_told(layers: str, is_told: bool, data_bin: Path, caplog: Any) -> None:
    build(data_bin, "--matryoshka", "16,64", "--projection-layers", layers)
    assert any("--projection-layers 0" in record.getMessage() for record in caplog.records) == is_told


# Settings that a criterion does not accept

NT_XENT, MOCO = "--criterion clear_nt_xent ", "--criterion clear_moco --queue-size 20 "
GUIDED = "--criterion clear_self_guided --augment none "
MATRYOSHKA = "--augment none --mlm-weight 0 --projection-layers 0 --matryoshka "

MISTAKES = {
    NT_XENT + "--objective opt3": "valid are nt-xent",
    NT_XENT + "--contrastive-weight 0 --mlm-weight 0": "leave nothing to learn",
    NT_XENT + "--pooling layer:9": "layers 0 (embeddings) to 2",
    NT_XENT + "--anchor-mlm joint": "--anchor-mlm joint: only works with --views span, whose anchors it masks",
    NT_XENT + "--anchor-mlm joint --mlm-weight 0": "--anchor-mlm joint: only works with --views span",
    MATRYOSHKA + "64,129": "--matryoshka 64,129: the vectors have 128 dimensions; give none above 128",
    MATRYOSHKA + "64 --projection-dim 16 --projection-layers 1": "the vectors have 16 dimensions",
    MATRYOSHKA + "64 --contrastive-weight 0 --mlm-weight 1": "needs the contrastive term, which --contrastive-weight 0",
    MOCO + "--objective nt-xent": "valid are info-nce",
    MOCO + "--views paraphrase:original,bt,other --symmetric": "--symmetric: needs view sources with one positive",
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
def test_mistakes_are_one_line(flags: str, paired_bin: Path, caplog: pytest.LogCaptureFixture) -> None:
    refuses(caplog, MISTAKES[flags], paired_bin, *flags.split())


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
    log = trainer.train_step([dataset.collater([dataset[n] for n in range(8)])])
    assert log["negatives_per_query"] == 2 * 8 - 2 + 8
    for criterion in ("clear_moco", "clear_self_guided"):
        said = "--views far: has hard negatives; give --criterion clear_nt_xent"
        refuses(caplog, said, data_bin, "--views", "far", "--criterion", criterion)


# --directions one: SimCSE's equations in float64, gradient included, with all that can be combined with it

TAU = 0.02
ONE = (
    *("--directions", "one", "--augment", "none", "--mlm-weight", "0"),
    *("--temperature", str(TAU), "--projection-layers", "0"),
)
PAIRS = ("--views", "paraphrase:original,bt")
HARD = (*PAIRS, "--hard-negatives", "other")


def encoded(data: Path, count: int, *flags: str) -> tuple[Any, Any, dict[str, Any], np.ndarray]:
    """Loss, number of queries and log of a batch, and the vectors of its views in float64, anchors first."""
    model, criterion, dataset, _ = parts(data, *ONE, *flags)
    sample = dataset.collater([dataset[index] for index in range(count)])
    assert len(np.unique(sample["views"]["identity"], axis=0)) == count
    with torch.no_grad():
        vectors = model(views=sample["views"]["tokens"])[1]["projections"].double().numpy()
        loss, size, log = criterion(model, sample)
    return loss, size, log, vectors


def test_simcse_equation_4(paired_bin: Path) -> None:
    """Which is opt2 of Self-Guided."""
    loss, size, log, z = encoded(paired_bin, 6, *PAIRS)
    expected = oracles.self_guided_opt2(z[:6], z[6:], TAU)
    assert loss.item() == pytest.approx(expected, rel=1e-4)
    assert size == 6 and log["negatives"] == 6 * 5
    assert oracles.self_guided_opt2(z[6:], z[:6], TAU) != pytest.approx(expected, rel=1e-3), "the other direction"
    assert oracles.clear_equation_2(z, TAU) / 2 != pytest.approx(expected, rel=1e-3), "both directions"


def test_simcse_equation_5(paired_bin: Path) -> None:
    loss, size, log, z = encoded(paired_bin, 5, *HARD)
    assert len(z) == 15
    assert loss.item() == pytest.approx(oracles.simcse_equation_5(z[:5], z[5:10], z[10:], TAU), rel=1e-4)
    assert size == 5 and log["negatives"] == 5 * (4 + 5)


def test_matryoshka_in_one_direction(paired_bin: Path) -> None:
    loss, size, _, z = encoded(paired_bin, 5, *HARD, "--matryoshka", "8,32")
    expected = [oracles.simcse_equation_5(z[:5, :d], z[5:10, :d], z[10:, :d], TAU) for d in (8, 32)]
    assert loss.item() == pytest.approx(sum(expected) / 2, rel=1e-4) and size == 5


def test_false_negatives_are_masked(paired_bin: Path) -> None:
    loss, size, log, z = encoded(paired_bin, 8, *HARD, "--false-negatives", "guide:margin=0.5")
    queries, keys = torch.from_numpy(z[:8]), torch.from_numpy(z[8:])  # positives, then hard negatives
    masked = nearer(queries, keys, keys[:8], 0.5)
    positive = list(range(8))
    expected = oracles.nt_xent_with_exclusions(z[:8], z[8:], positive, TAU, masked)
    assert loss.item() == pytest.approx(expected, rel=1e-4, abs=1e-5)
    left = ~masked
    left[positive, positive] = False
    assert 0 < left.sum() < 8 * 15
    assert log["candidates"] == 8 * 15 and log["negatives"] == left.sum() and size == left.any(axis=1).sum()


@pytest.mark.parametrize(
    ("flags", "negatives"),
    [
        (("--keep-duplicates",), (15, 12, 9)),
        ((*PAIRS, "--keep-duplicates"), (15, 12, 9)),
        ((), (15, 12, 7)),
        (PAIRS, (12, 10, 6)),  # a text's hard negative is its positive, too
    ],
)
def test_a_blank_hard_negative_is_no_candidate(
    flags: tuple[str, ...], negatives: tuple[int, ...], paired_bin: Path
) -> None:
    """It is replaced by its text, which would be pushed away from itself, or be two negatives of each other text."""
    model, criterion, dataset, _ = parts(
        paired_bin, *ONE, *flags, "--hard-negatives", "bt"
    )  # every fifth line is blank
    batches = [dataset.collater(dataset.__getitems__(items)) for items in ([0, 1, 2], [3, 4, 5], [4, 4, 5])]
    assert tuple(int(criterion(model, batch)[2]["negatives"]) for batch in batches) == negatives
    assert criterion(model, dataset.collater([]))[2]["negatives"] == 0  # of a worker that has run out of texts


@pytest.mark.parametrize("directions", ["one", "both"])
def test_one_collective_counts_queries_and_hard_negatives(directions: str, paired_bin: Path) -> None:
    criterion, asked = parts(paired_bin, *ONE, *HARD, "--directions", directions)[1], list[int]()

    def layout(rows: int, device: torch.device) -> Layout:
        """As if another worker had four texts."""
        asked.append(rows)
        return Layout((rows, 4 * criterion.sides))

    views = Views(torch.zeros(12, 0), [0] * 12, torch.arange(3), torch.arange(6), torch.zeros(3))  # two for each text
    with mock.patch.object(criterion, "layout", layout):
        found = [criterion._layouts(views, is_empty) for is_empty in (False, True)]
    assert [one["negatives"].counts for one in found] == [(6, 8), (0, 8)]
    assert asked == [3 * criterion.sides, 0]


@pytest.mark.parametrize("block", [1, 7, 2**20])
def test_gradient_is_the_slope_of_equation_5(block: int, paired_bin: Path) -> None:
    criterion = parts(paired_bin, *ONE, *HARD)[1]
    z = torch.randn(12, 3, generator=torch.Generator().manual_seed(1), requires_grad=True)
    views = Views(torch.zeros(12, 0), [0] * 12, torch.arange(4), torch.arange(4, 8), torch.zeros(4))
    layouts = {name: Layout((count,)) for name, count in criterion.gathered_rows(views).items()}
    with in_blocks(block, 3):
        loss = criterion.contrast({"projections": z}, views, layouts)[0]
        (gradient,) = torch.autograd.grad(loss, z)
    values = z.detach().double().numpy()

    def equation(z: np.ndarray) -> float:
        return oracles.simcse_equation_5(z[:4], z[4:8], z[8:], TAU)

    assert loss.item() == pytest.approx(equation(values), rel=1e-5)
    assert gradient.numpy() == pytest.approx(oracles.slopes(equation, values), rel=1e-3, abs=1e-4)


def test_the_recipe_of_simcse_has_one_direction(paired_bin: Path) -> None:
    recipe = OmegaConf.load(ROOT / "examples/simcse/config/unsupervised.yaml")
    flags = shlex.split(REFINING["simcse"].flags)
    for directions in (recipe.criterion.directions, flags[flags.index("--directions") + 1]):
        trainer, dataset = build(paired_bin, *ONE[2:], "--views", "same", "--directions", directions)
        _, size, log = trainer.get_criterion()(trainer.get_model(), dataset.collater([dataset[i] for i in range(5)]))
        assert size == 5 and log["negatives"] == 5 * 4
        said = dict(_lines(trainer.task, trainer))["objective"]
        assert said == f"nt-xent (temperature {TAU}, one direction)"
