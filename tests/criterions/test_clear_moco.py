"""MoCo inside fairseq, against a literal one in float64 that keeps its own queue and its own key encoder."""

import copy
import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fairseq import tasks

from fairseq_clear.data.batch import Batch
from tests.criterions.test_clear_nt_xent import backward, parts
from tests.objectives.oracles import cosine
from tests.training import build, configuration, refuses

MOCO = (
    *("--criterion", "clear_moco", "--augment", "none", "--pooling", "mean", "--projection-dim", "8", "--lr", "0.05"),
    *("--key-momentum", "0.9", "--temperature", "0.2"),
)


class LiteralMoco:
    """CERT section 4.1, one text at a time, in float64: a list as the queue, a copy of the model as f_k."""

    def __init__(self, model: Any, size: int, momentum: float, tau: float) -> None:
        self.key_model = copy.deepcopy(model).double()
        self.size, self.momentum, self.tau = size, momentum, tau
        self.queue: list[tuple[np.ndarray, list[int]] | None] = [None] * size
        self.pointer = 0

    def encode(self, model: Any, texts: torch.Tensor) -> list[np.ndarray]:
        with torch.no_grad():
            return [model(views=text[text.ne(1)].unsqueeze(0))[1]["projections"][0].double().numpy() for text in texts]

    def loss(self, model: Any, views: dict[str, Any]) -> tuple[float, int]:
        texts = len(views["identity"])
        queries = self.encode(copy.deepcopy(model).double(), views["tokens"][:texts])
        keys = self.encode(self.key_model, views["tokens"][texts:])
        identities = views["identity"].tolist()
        total, counted = 0.0, 0
        for query, key, identity in zip(queries, keys, identities, strict=True):
            others = [entry[0] for entry in self.queue if entry is not None and set(entry[1]).isdisjoint(identity)]
            if others:
                positive = math.exp(cosine(query, key) / self.tau)
                total -= math.log(positive / (positive + sum(math.exp(cosine(query, k) / self.tau) for k in others)))
                counted += 1
        for key, identity in zip(keys, identities, strict=True):
            self.queue[self.pointer] = (key / np.linalg.norm(key), identity)
            self.pointer = (self.pointer + 1) % self.size
        return total, counted

    def follow(self, model: Any) -> None:
        for mine, theirs in zip(self.key_model.parameters(), model.parameters(), strict=True):
            mine.data = self.momentum * mine.data + (1 - self.momentum) * theirs.data.double()


def plain(model: Any) -> Any:
    single = copy.deepcopy(model)
    single.key_encoder = single.key_queue = None
    return single


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 7, 37])
def test_sixteen_steps_equal_the_literal_ones(size: int, paired_bin: Path) -> None:
    flags = ("--queue-size", str(size), "--views", "paraphrase:original,bt")
    trainer, dataset = build(paired_bin, *MOCO, *flags)
    model = trainer.get_model()
    oracle = LiteralMoco(plain(model), size, 0.9, 0.2)
    rng = np.random.default_rng(3)
    for step in range(16):
        # ragged batches, texts met again, one batch longer than the smaller queues
        rows = rng.integers(0, 40, rng.integers(1, 6) if step != 4 else 12)
        sample = dataset.collater([dataset[int(row)] for row in rows])
        expected, counted = oracle.loss(plain(model), sample["views"])
        log = trainer.train_step([sample])
        oracle.follow(plain(model))
        if counted:
            assert float(log["contrastive_loss"]) == pytest.approx(expected / counted / math.log(2), rel=1e-3, abs=2e-3)
        queue = model.key_queue
        assert int(queue.pointer) == oracle.pointer
        assert int(queue.fill) == sum(entry is not None for entry in oracle.queue)
        for place, entry in enumerate(oracle.queue):
            if entry is not None:
                assert queue.identities[place].tolist() == entry[1]
                assert np.allclose(queue.keys[place].numpy(), entry[0], atol=1e-4)
    ours = [*model.key_encoder.encoder.parameters(), *model.key_encoder.head.parameters()]
    theirs = [*oracle.key_model.encoder.sentence_encoder.parameters(), *oracle.key_model.projection_head.parameters()]
    assert max((a.double() - b).abs().max().item() for a, b in zip(ours, theirs, strict=True)) < 1e-5
    queries = [*model.encoder.sentence_encoder.parameters(), *model.projection_head.parameters()]
    assert max((a - b).abs().max().item() for a, b in zip(ours, queries, strict=True)) > 1e-4


def batch(dataset: Any, *rows: int) -> Any:
    return dataset.collater([dataset[row] for row in rows])


def test_an_empty_queue_counts_no_query_and_takes_the_keys(data_bin: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer, dataset = build(data_bin, *MOCO, "--queue-size", "50")
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        logs = [trainer.train_step([batch(dataset, *rows)]) for rows in ((0, 1, 2), (3, 4))]
    assert not caplog.records, "the first update is no reason for a warning"
    assert [float(log["queue_fill"]) for log in logs] == [0, 3]
    assert float(logs[0]["loss"]) == 0 < float(logs[1]["loss"]) and float(logs[1]["negatives_per_query"]) == 3


def test_keys_of_the_same_text_are_no_negatives(data_bin: Path) -> None:
    for flags, negatives in (((), 2 * 2), (("--keep-duplicates",), 2 * 3)):
        model, criterion, dataset, _ = parts(data_bin, *MOCO, "--queue-size", "50", *flags)
        backward(model, criterion, batch(dataset, 0, 1, 2))
        _, _, log, _ = backward(model, criterion, batch(dataset, 0, 1))
        assert log["negatives"] == negatives


def test_validation_and_stand_ins_touch_nothing(data_bin: Path) -> None:
    trainer, dataset = build(data_bin, *MOCO, "--queue-size", "20")
    trainer.train_step([batch(dataset, 0, 1, 2)])
    model = trainer.get_model()
    before = {name: value.clone() for name, value in model.state_dict().items() if name.startswith("key_")}
    trainer.valid_step(batch(dataset, 3, 4))
    model.train()
    trainer.get_criterion().train()
    trainer.get_criterion()(model, dataset.collater([]))
    after = {name: value for name, value in model.state_dict().items() if name.startswith("key_")}
    assert all(torch.equal(before[name], after[name]) for name in before)
    trainer.train_step([batch(dataset, 3, 4)])
    assert int(model.key_queue.fill) == 5
    assert any(not torch.equal(before[name], model.state_dict()[name]) for name in before if "encoder" in name)


def test_one_momentum_step_an_update_whatever_the_frequency(data_bin: Path) -> None:
    trainer, dataset = build(data_bin, *MOCO, "--queue-size", "20", "--update-freq", "3")
    model = trainer.get_model()
    weight = model.encoder.sentence_encoder.layers[0].fc1.weight
    trainer.train_step([batch(dataset, 0, 1), batch(dataset, 2, 3), batch(dataset, 4)])
    start = model.key_encoder.encoder.layers[0].fc1.weight.clone()
    trainer.train_step([batch(dataset, 5), batch(dataset, 6, 7), batch(dataset, 8)])
    assert torch.allclose(model.key_encoder.encoder.layers[0].fc1.weight, 0.9 * start + 0.1 * weight, atol=1e-7)
    assert int(model.key_queue.fill) == 9


def test_the_symmetric_form_is_both_directions(paired_bin: Path) -> None:
    """With an unchanged key encoder: the loss of the pairs one way plus the other way."""
    losses = {}
    spoken = {"there": "original,bt", "back": "bt,original", "both": "original,bt --symmetric"}
    for name, views in spoken.items():
        flags = ("--queue-size", "20", "--views", *f"paraphrase:{views}".split())
        model, criterion, dataset, _ = parts(paired_bin, *MOCO, *flags)
        model.key_queue.enqueue(torch.randn(9, 8, generator=torch.Generator().manual_seed(1)), torch.ones(9, 2).long())
        loss, size, _, _ = backward(model, criterion, batch(dataset, 0, 1, 2))
        losses[name] = loss.item()
        assert size == (6 if name == "both" else 3)
        assert int(model.key_queue.fill) == (15 if name == "both" else 12)
    assert losses["both"] == pytest.approx(losses["there"] + losses["back"], rel=1e-4)


def test_a_criterion_that_is_built_after_loading_is_not_computed(data_bin: Path, caplog: Any) -> None:
    """As in fairseq-validate, whose queue would be empty."""
    flags = ("--criterion", "clear_moco")
    trainer, _ = build(data_bin, *flags)
    cfg = configuration(data_bin, *flags)
    task = tasks.setup_task(cfg.task)
    task.build_model(cfg.model).load_state_dict(trainer.get_model().state_dict())
    refuses(caplog, "encoder and queue were not loaded", cfg.criterion, of=task.build_criterion)


def test_without_the_contrastive_term_there_is_no_second_encoder(data_bin: Path) -> None:
    trainer, _ = build(data_bin, "--criterion", "clear_moco", "--contrastive-weight", "0", "--mlm-weight", "1")
    model = trainer.get_model()
    assert model.key_encoder is None and model.key_queue is None
    model.after_update()


def test_lengths_are_those_of_the_rows(data_bin: Path) -> None:
    flags = ("--symmetric", "--augment", "slice:ratio=0.3", "--augment-texts", "positives")
    _, criterion, dataset, _ = parts(data_bin, *MOCO, *flags)
    views = Batch.of(batch(dataset, 0, 1, 2, 3)).views
    inputs = criterion.view_inputs(views)
    for tokens, lengths in (("views", "view_lengths"), ("key_texts", "key_lengths")):
        assert inputs[lengths] == inputs[tokens].ne(1).sum(dim=1).tolist()
    assert inputs["view_lengths"] != inputs["key_lengths"]
