"""Self-Guided inside fairseq: who is trained, who guides, and what a checkpoint holds."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils

from fairseq_clear.criterions.clear_self_guided import parse_layers
from fairseq_clear.data.batch import Batch
from tests.criterions.test_clear_moco import batch
from tests.criterions.test_clear_nt_xent import backward, parts
from tests.objectives import oracles
from tests.training import build, distance, instances, weights

GUIDED = (
    *("--criterion", "clear_self_guided", "--augment", "none", "--pooling", "cls", "--lr", "0.1"),
    *("--projection-hidden-dim", "32", "--projection-dim", "16", "--projection-activation", "gelu"),
    "--projection-activate-last",
)


def items(dataset: Any, count: int = 5) -> Any:
    return dataset.collater([dataset[index] for index in range(count)])


def head(model: Any, vectors: torch.Tensor) -> np.ndarray:
    return model.projection_head(vectors).detach().double().numpy()


def layers_by_hand(model: Any, tokens: torch.Tensor, pooling: str) -> torch.Tensor:
    """(B, L, D) of every layer, text by text without padding, in evaluation mode."""
    encoder = model.frozen_encoder.encoder
    rows = []
    for row in tokens:
        text = row[row.ne(1)].unsqueeze(0)
        with torch.no_grad():
            states = encoder(text, return_all_hiddens=True)["encoder_states"]
        pools = {"max": lambda h: h[:, 0].amax(0), "mean": lambda h: h[:, 0].mean(0), "cls": lambda h: h[0, 0]}
        rows.append(torch.stack([pools[pooling](state) for state in states]))
    return torch.stack(rows)


@pytest.mark.slow
@pytest.mark.parametrize("pooling", ["max", "mean", "cls"])
@pytest.mark.parametrize("objective", ["sg", "opt1", "opt2", "opt3", "sg-opt"])
def test_the_loss_is_the_papers(objective: str, pooling: str, data_bin: Path) -> None:
    flags = f"--objective {objective} --guide-pooling {pooling} --temperature 0.2 --regularizer-weight 0.3".split()
    model, criterion, dataset, _ = parts(data_bin, *GUIDED, *flags)
    model.begin()
    with torch.no_grad():  # move the tuned encoder away from the guide
        for parameter in model.encoder.sentence_encoder.layers.parameters():
            parameter.add_(0.01)
    sample = items(dataset)
    loss, size, log, _ = backward(model, criterion, sample)
    texts = sample["views"]["tokens"][:5]
    c = head(model, model.embed(texts, "cls"))
    h = layers_by_hand(model, texts, pooling)
    if objective not in ("opt3", "sg-opt"):
        h = h[torch.arange(5), (sample["views"]["draw"] * 3).long()].unsqueeze(1)
    oracle = oracles.SELF_GUIDED["opt3" if objective == "sg-opt" else objective]
    expected = oracle(c, head(model, h), 0.2)
    assert size == (10 if objective == "sg" else 5)
    assert log["contrastive_loss"].item() == pytest.approx(expected, rel=1e-3)
    distance = 0.01**2 * sum(p.numel() for p in model.encoder.sentence_encoder.layers.parameters())
    assert loss.item() == pytest.approx(expected + 0.3 * distance * float(size), rel=1e-3)


def test_every_layer_is_drawn_and_draws_change_with_the_epoch(data_bin: Path) -> None:
    _, _, dataset, _ = parts(data_bin, *GUIDED, "--objective", "sg")
    draws: dict[int, list[float]] = {}
    for epoch in range(1, 11):
        dataset.set_epoch(epoch)
        draws[epoch] = [instances(dataset[index])[0].draw for index in range(len(dataset))]
    shares = np.bincount((np.array(list(draws.values())) * 3).astype(int).ravel()) / (10 * len(dataset))
    assert shares == pytest.approx([1 / 3] * 3, abs=0.08)  # four standard deviations of 600 draws
    assert draws[1] != draws[2]
    dataset.set_epoch(1)
    assert [instances(dataset[index])[0].draw for index in range(len(dataset))] == draws[1]


def train(data: Path, *flags: str, updates: int) -> tuple[Any, dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The trainer after some updates, the weights before, and the guide's before."""
    trainer, dataset = build(data, *GUIDED, *flags)
    before = weights(trainer)
    for update in range(updates):
        trainer.train_step([dataset.collater([dataset[(8 * update + k) % len(dataset)] for k in range(8)])])
    return trainer, before, weights(trainer)


@pytest.mark.slow
def test_the_guide_and_layer_0_are_unchanged_after_10_updates(data_bin: Path, tmp_path: Path) -> None:
    # dropout on: the guide must not see it
    trainer, before, after = train(data_bin, "--dropout", "0.1", "--optimizer", "adam", "--lr", "1e-3", updates=10)
    model = trainer.get_model()
    assert not any(module.training for module in model.frozen_encoder.modules())
    assert model.encoder.training
    for name in before:
        if name.startswith("frozen_encoder.") or ".embed_" in name or "layernorm_embedding" in name:
            assert torch.equal(before[name], after[name]), name
    moved = [name for name in before if not torch.equal(before[name], after[name])]
    assert all(name.startswith(("encoder.sentence_encoder.layers.", "projection_head.")) for name in moved)
    assert len(moved) > 30
    trainer.consolidate_optimizer()
    trainer.save_checkpoint(str(tmp_path / "run.pt"), {})
    state = checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / "run.pt"))
    copies = [name.partition(".")[0] for name in state["model"] if name.endswith("layers.0.fc1.weight")]
    assert sorted(copies) == ["encoder", "frozen_encoder"]
    assert not any("frozen" in str(key) for key in (state.get("criterion") or {}))


def test_guide_dropout_is_off_unless_asked_for(data_bin: Path) -> None:
    for flags, same in (((), True), (("--guide-dropout",), False)):
        model, _, dataset, _ = parts(data_bin, *GUIDED, "--dropout", "0.3", *flags)
        model.train()
        texts = items(dataset)["views"]["tokens"][:5]
        assert torch.equal(model.frozen_encoder(texts, 1), model.frozen_encoder(texts, 1)) is same


def test_paraphrases_go_to_the_guide_in_the_order_given(paired_bin: Path) -> None:
    seen = {}
    for spec in ("original,bt", "bt,original"):
        _, criterion, dataset, _ = parts(paired_bin, *GUIDED, "--views", f"paraphrase:{spec}")
        inputs = criterion.view_inputs(Batch.of(items(dataset, 4)).views)
        seen[spec] = [[row[row.ne(1)].tolist() for row in inputs[name]] for name in ("views", "frozen_texts")]
    original, bt = seen["original,bt"]
    assert seen["bt,original"] == [bt, original]
    assert [text[1:-1][::-1] for text in original] == [text[1:-1] for text in bt]


def test_training_starts_from_what_was_loaded(data_bin: Path) -> None:
    """The guide is what --finetune-from-model brought, not what the model was initialised with; a resumed one is kept."""
    trainer, _, _ = train(data_bin, updates=0)
    model = trainer.get_model()
    with torch.no_grad():
        for parameter in model.encoder.sentence_encoder.parameters():
            parameter.add_(0.5)
    started = model.encoder.sentence_encoder.embed_tokens.weight.detach().clone()
    assert not torch.equal(model.frozen_encoder.encoder.embed_tokens.weight, started)
    trainer.task.begin(trainer)
    dataset = trainer.task.dataset("train")
    for update in range(3):
        trainer.train_step([dataset.collater([dataset[8 * update + k] for k in range(8)])])
    assert torch.equal(model.frozen_encoder.encoder.embed_tokens.weight, started)
    block = model.encoder.sentence_encoder.layers[0].fc1.weight
    assert not torch.equal(model.frozen_encoder.encoder.layers[0].fc1.weight, block)


@pytest.mark.parametrize("has_copy", [True, False])
def test_checkpoints_with_and_without_a_frozen_encoder_open(has_copy: bool, data_bin: Path) -> None:
    model, _, _, _ = parts(data_bin, *GUIDED)
    saved = {key: value + key.startswith("frozen_encoder.") + 1 for key, value in model.state_dict().items()}
    copy = {key: saved.pop(key) for key in [*saved] if key.startswith("frozen_encoder.")}
    if has_copy:
        saved |= copy
    bias = "layers.1.fc2.bias"
    expected = copy[f"frozen_encoder.encoder.{bias}"] if has_copy else saved[f"encoder.sentence_encoder.{bias}"]
    model.load_state_dict(saved)
    assert torch.equal(model.frozen_encoder.state_dict()[f"encoder.{bias}"], expected)


@pytest.mark.slow
def test_nt_xent_with_the_same_regulariser_and_frozen_layer(paired_bin: Path) -> None:
    """The paper's back-translation baseline: NT-Xent, layer 0 frozen, weights held."""
    flags = "--criterion clear_nt_xent --mlm-weight 0 --views paraphrase:original,bt --frozen-layers 1".split()
    trainer, before, after = train(paired_bin, *flags, "--regularizer-weight", "0.1", updates=3)
    frozen = "encoder.sentence_encoder.embed_tokens.weight"
    assert torch.equal(before[frozen], after[frozen])
    log = trainer.train_step([items(trainer.task.dataset("train"))])
    assert float(log["squared_distance"]) > 0
    assert distance(before, after) > 1e-4


def test_some_layers_only(data_bin: Path) -> None:
    model, _, dataset, _ = parts(data_bin, *GUIDED, "--guide-layers", "0,2")
    texts = items(dataset)["views"]["tokens"][:5]
    everything = layers_by_hand(model, texts, "max")
    assert torch.allclose(model.frozen_encoder(texts, 1), everything[:, [0, 2]], atol=1e-5)
    assert parse_layers("0, 3-5", 6) == [0, 3, 4, 5] and parse_layers("4 - 6,5,1", 6) == [1, 4, 5, 6]
    assert parse_layers("all", 2) == [0, 1, 2] == parse_layers("0-2", 2)


def test_all_positives_of_an_anchor_have_the_layer_of_its_draw(paired_bin: Path) -> None:
    flags = ("--objective", "sg", "--views", "paraphrase:original,bt,other")
    _, criterion, dataset, _ = parts(paired_bin, *GUIDED, *flags)
    views = Batch.of(batch(dataset, 0, 1, 2)).views
    assert criterion.view_inputs(views)["layer_draw"].tolist() == [d for d in views.draw.tolist() for _ in range(2)]
