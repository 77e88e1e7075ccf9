"""The model: chunks, heads, and checkpoints of other recipes."""

import logging
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from fairseq import tasks

from fairseq_clear.errors import UserError
from fairseq_clear.models.clear_roberta import ClearRobertaModel
from fairseq_clear.models.state_dicts import EMBEDDING, VOCABULARY_ROWS, complete_copies, fit_state_dict
from fairseq_clear.modules import chunking
from fairseq_clear.modules.projection import ProjectionHead
from tests.training import build, configuration


def step(data: Path, *flags: str) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradients of one batch."""
    trainer, dataset = build(data, *flags)
    model, criterion = trainer.get_model(), trainer.get_criterion()
    if "clear_moco" in flags:  # its queue begins empty, and the first loss is 0
        criterion(model, dataset.collater([dataset[index] for index in range(9, 18)]))
    torch.manual_seed(5)
    loss, _, _ = criterion(model, dataset.collater([dataset[index] for index in range(9)]))
    loss.backward()
    return loss.item(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    return max((one[name] - other[name]).abs().max().item() / (1 + one[name].abs().max().item()) for name in one)


def test_a_stock_task_trains_no_projection_head(data_bin: Path) -> None:
    """Several workers would wait for its gradients."""
    cfg = configuration(data_bin)
    task = tasks.setup_task(cfg.task)
    model = task.build_model(cfg.model)
    assert not any(parameter.requires_grad for parameter in model.projection_head.parameters())
    task.build_criterion(cfg.criterion)
    assert all(parameter.requires_grad for parameter in model.projection_head.parameters())


@pytest.mark.parametrize("flags", [("--compile",), ("--encode-chunk-size", "64")])
def test_a_stock_task_neither_compiles_nor_encodes_in_chunks(flags: tuple[str, ...]) -> None:
    cfg = configuration("data", *flags)
    ClearRobertaModel.check_run(cfg)
    cfg.task._name = "masked_lm"
    with pytest.raises(UserError, match=f"{flags[0]}: has no effect with --task masked_lm"):
        ClearRobertaModel.check_run(cfg)


@pytest.mark.parametrize("window", ["5", "-4"])
def test_a_model_checks_its_window_whatever_the_task(window: str, data_bin: Path, caplog: Any) -> None:
    cfg = configuration(data_bin, "--attention-window", window)
    with pytest.raises(SystemExit):
        tasks.setup_task(cfg.task).build_model(cfg.model)
    assert f"--attention-window {window}: give an even number" in caplog.text


@pytest.mark.parametrize("size", ["1", "50", "10000"])
def test_chunks_are_the_whole_without_dropout(size: str, data_bin: Path) -> None:
    whole, gradients = step(data_bin)
    chunked, of_chunks = step(data_bin, "--encode-chunk-size", size)
    assert chunked == pytest.approx(whole, rel=1e-5)
    assert difference(gradients, of_chunks) < 1e-5


def test_recomputed_chunks_are_kept_chunks_with_dropout(data_bin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ("--encode-chunk-size", "50", "--dropout", "0.1", "--attention-dropout", "0.1")
    recomputed, gradients = step(data_bin, *flags)
    stock = chunking.checkpoint
    monkeypatch.setattr(chunking, "checkpoint", lambda function, *parts, **_: function(*parts))
    kept, of_kept = step(data_bin, *flags)
    assert kept == pytest.approx(recomputed, rel=1e-6)
    assert difference(gradients, of_kept) < 1e-6
    forget = {"use_reentrant": False, "preserve_rng_state": False}
    monkeypatch.setattr(chunking, "checkpoint", lambda function, *parts, **_: stock(function, *parts, **forget))
    _, other_masks = step(data_bin, *flags)
    assert difference(gradients, other_masks) > 1e-4


IN_PARTS = {
    "nt-xent": ("--augment", "del-word:ratio=0.6"),
    "two positives, one pass": ("--views", "span:anchors=1,positives=2,min=2,max=12", "--anchor-mlm", "joint"),
    "self-guided": ("--criterion", "clear_self_guided", "--views", "neighbor", "--guide-dropout"),
    "opt1": ("--criterion", "clear_self_guided", "--objective", "opt1", "--views", "neighbor"),
    "moco": ("--criterion", "clear_moco", "--views", "neighbor", "--queue-size", "30"),
    "moco, symmetric": ("--criterion", "clear_moco", "--views", "neighbor", "--queue-size", "30", "--symmetric"),
    "window": ("--attention-window", "4", "--augment", "del-word:ratio=0.6"),
    "in chunks": ("--encode-chunk-size", "60", "--augment", "del-word:ratio=0.6"),
    "window, in chunks": ("--attention-window", "4", "--encode-chunk-size", "60", "--augment", "del-word:ratio=0.6"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", IN_PARTS)
def test_parts_of_like_length_are_the_whole_without_dropout(name, data_bin, monkeypatch) -> None:
    whole, gradients = step(data_bin, *IN_PARTS[name])
    monkeypatch.setattr(chunking, "ENOUGH_CELLS", {"cpu": 1, "cuda": 1})
    with mock.patch.object(chunking.Parts, "map", autospec=True, side_effect=chunking.Parts.map) as mapped:
        loss, of_parts = step(data_bin, *IN_PARTS[name])
    assert max(len(call.args[0].parts) for call in mapped.call_args_list) > 2
    assert loss == pytest.approx(whole, rel=1e-5)
    assert difference(gradients, of_parts) < 1e-5
    monkeypatch.setattr(chunking.Parts, "in_order", lambda self, results: torch.cat(list(results)))
    assert abs(step(data_bin, *IN_PARTS[name])[0] - whole) > 1e-3 * abs(whole), "rows out of order are told"


MASKED = ("--augment", "del-word:ratio=0.6")
MASKED_SPANS = ("--views", "span:anchors=2,positives=1,min=2,max=12", "--anchor-mlm", "separate")


@pytest.mark.parametrize("flags", [MASKED, MASKED_SPANS, (*MASKED, "--encode-chunk-size", "60")])
def test_masked_texts_of_mixed_length_are_read_in_parts(flags, data_bin, monkeypatch) -> None:
    original = ClearRobertaModel._mlm_loss
    read = mock.create_autospec(original, side_effect=original)
    monkeypatch.setattr(ClearRobertaModel, "_mlm_loss", read)
    whole, gradients = step(data_bin, *flags)
    assert ("--encode-chunk-size" in flags) == read.called, "few enough to be one part"
    read.reset_mock()
    monkeypatch.setattr(chunking, "ENOUGH_CELLS", {"cpu": 1, "cuda": 1})
    loss, of_parts = step(data_bin, *flags)
    parts = [call.args[1] for call in read.call_args_list]
    assert all(part.shape[1] == part.ne(1).sum(1).max() for part in parts), "no wider than the longest"
    assert len(parts) > 2 and sum(map(len, parts)) == (9 if flags is MASKED else 18)  # chunks once more, backward
    assert loss == pytest.approx(whole, rel=1e-5)
    assert difference(gradients, of_parts) < 1e-5
    monkeypatch.setattr(ClearRobertaModel, "_mlm_loss", lambda *inputs, **options: 0.9 * original(*inputs, **options))
    assert difference(gradients, step(data_bin, *flags)[1]) > 1e-3, "a loss that is lost is told"


def test_chunks_bound_what_is_kept(data_bin: Path) -> None:
    """What autograd saves must not grow with the rows, of which only the vectors are kept."""

    def saved(rows: int, chunk_size: str) -> int:
        trainer, _ = build(data_bin, "--encode-chunk-size", chunk_size)
        tokens = torch.randint(4, 50, (rows, 20))
        total = 0

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal total
            total += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            trainer.get_model()(views=tokens)
        return total

    assert saved(32, "0") > 20 * saved(32, "80")


@pytest.mark.parametrize(
    ("flags", "widths"),
    [
        (("--projection-layers", "0"), []),
        (("--projection-layers", "1", "--projection-dim", "0", "--projection-activation", "tanh"), [(128, 128)]),
        (("--projection-layers", "2"), [(128, 128), (128, 128)]),
        (
            ("--projection-layers", "3", "--projection-hidden-dim", "32", "--projection-dim", "8"),
            [(128, 32), (32, 32), (32, 8)],
        ),
    ],
)
def test_heads(flags: tuple[str, ...], widths: list[tuple[int, int]], data_bin: Path) -> None:
    trainer, _ = build(data_bin, *flags)
    head = trainer.get_model().projection_head
    assert [(layer.in_features, layer.out_features) for layer in head.layers] == widths
    if widths and "tanh" not in flags:
        last = build(data_bin, *flags, "--projection-activate-last")[0].get_model().projection_head
        assert [part(torch.randn(20, 128)).min() < 0 for part in (head, last)] == [True, False]


def test_workers_that_drop_other_layers_do_not_wait_for_each_other(data_bin: Path) -> None:
    for rate, searches in (("0", False), ("0.5", True)):
        cfg = configuration(data_bin, "--encoder-layerdrop", rate)
        ClearRobertaModel.check_run(cfg)
        assert cfg.distributed_training.find_unused_parameters == searches


@pytest.mark.parametrize(
    ("flags", "frozen", "kept"),
    [
        ("--encoder-layerdrop 0.1 --frozen-layers 2", "encoder.layers.0.", "encoder.layers.1."),
        ("--pooling layer:1 --mlm-weight 0", "encoder.layers.1.", "encoder.layers.0."),
        ("--untie-weights-roberta --mlm-weight 0", "lm_head.weight", "encoder.layers.1."),
        ("--encoder-normalize-before --pooling layer:1 --mlm-weight 0", "encoder.layer_norm.weight", "layers.0."),
        ("--encoder-normalize-before --pooling layer:2 --mlm-weight 0", "lm_head.dense.weight", "encoder.layer_norm."),
    ],
)
def test_what_a_backward_pass_does_not_reach_is_frozen(flags: str, frozen: str, kept: str, data_bin: Path) -> None:
    """DistributedDataParallel fails on weights without gradient."""
    trainer, _ = build(data_bin, *flags.split())
    trained = [name for name, weight in trainer.get_model().named_parameters() if weight.requires_grad]
    assert [any(part in name for name in trained) for part in (frozen, kept)] == [False, True]


def state(data: Path, *flags: str) -> tuple[Any, dict[str, torch.Tensor]]:
    trainer, _ = build(data, *flags)
    model = trainer.get_model()
    weights = {name: torch.randn_like(value) for name, value in model.state_dict().items()}
    weights["encoder.lm_head.weight"] = weights[EMBEDDING]
    return model, weights


@pytest.mark.parametrize("criterion", ["clear_nt_xent", "clear_moco", "clear_self_guided"])
def test_a_stock_checkpoint_is_extended(criterion: str, data_bin: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Only <del> and the projection head are newly initialised; ``begin`` fills the key and the frozen encoder."""
    augment = () if criterion == "clear_nt_xent" else ("--augment", "none")
    model = build(data_bin, "--criterion", criterion, *augment)[0].get_model()
    _, weights = state(data_bin)
    fresh = model.state_dict()[EMBEDDING][-1].clone()
    stock = {name: value for name, value in weights.items() if name.startswith("encoder.")}
    for name in VOCABULARY_ROWS:
        stock[name] = stock[name][:-1].clone()
    caplog.clear()
    model.load_state_dict(dict(stock))
    deleted, others = (record.getMessage() for record in caplog.records)
    assert "<del>" in deleted and "projection_head.layers.0.weight" in others
    assert not any(name in others for name in ("frozen_encoder.", "key_encoder.", "key_queue."))
    loaded = model.state_dict()
    assert torch.equal(loaded[EMBEDDING][:-1], stock[EMBEDDING]) and torch.equal(loaded[EMBEDDING][-1], fresh)
    if copy := model.frozen_encoder or model.key_encoder:
        assert torch.equal(copy.encoder.embed_tokens.weight[:-1], stock[EMBEDDING])


def test_what_does_not_fit_is_dropped_and_named(data_bin: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Parts of other recipes, a head of another shape, and the row of <del> where the run has none."""
    model, weights = state(data_bin)
    more = {name: torch.cat([weights[name], weights[name][-1:] + 1]) for name in VOCABULARY_ROWS}
    for others, level, said in (
        ({"key_queue.keys": torch.zeros(3)}, logging.INFO, "key_queue.keys"),
        ({"frozen_encoder.encoder.bias": torch.zeros(3)}, logging.INFO, "frozen_encoder"),
        ({"another_head.weight": torch.zeros(3)}, logging.WARNING, "another_head.weight"),
        ({"projection_head.layers.0.weight": torch.zeros(7, 128)}, logging.WARNING, "projection_head.layers.0.weight"),
        (more, logging.WARNING, "<del>"),
    ):
        caplog.clear()
        with caplog.at_level(logging.INFO):
            model.load_state_dict({**weights, **others})
        assert {(record.levelno, said in record.getMessage()) for record in caplog.records} == {(level, True)}
        assert torch.equal(model.state_dict()[EMBEDDING], weights[EMBEDDING])


def test_another_architecture_is_rejected(data_bin: Path) -> None:
    model, weights = state(data_bin)
    missing = {name: value for name, value in weights.items() if ".layers.1." not in name}
    with pytest.raises(RuntimeError, match="Missing key"):
        model.load_state_dict(missing)
    deeper = {**weights, **{name.replace(".layers.1.", ".layers.2."): value for name, value in weights.items()}}
    with pytest.raises(RuntimeError, match="Unexpected key"):
        model.load_state_dict(deeper)
    with pytest.raises(UserError, match=r"--max-positions 30"):
        weights["encoder.sentence_encoder.embed_positions.weight"] = torch.zeros(32, 128)
        model.load_state_dict(weights)


@pytest.mark.parametrize("last", [False, True])
def test_the_last_layer_is_activated_only_if_asked_for(last) -> None:
    torch.manual_seed(1)
    head, x = ProjectionHead(4, 8, 4, 2, "relu", last), torch.randn(64, 4)
    first, second = head.layers
    expected = second(first(x).relu())
    assert torch.equal(head(x), expected.relu() if last else expected) and expected.min() < 0


@pytest.mark.parametrize("found", [4, 8])
def test_two_rows_more_or_fewer_are_another_vocabulary(found: int) -> None:
    with pytest.raises(UserError, match=rf"vocabulary has {found} entries and the data's 6"):
        fit_state_dict({EMBEDDING: torch.zeros(found, 2)}, {EMBEDDING: torch.zeros(6, 2)})


def test_copies_of_a_checkpoint_before_fairseq_0_10_are_its_encoder() -> None:
    """It calls the encoder a decoder."""
    weights = {"decoder.sentence_encoder.layers.0.weight": torch.ones(2)}
    complete_copies(weights, {"frozen_encoder.encoder.layers.0.weight": torch.zeros(2)})
    assert weights["frozen_encoder.encoder.layers.0.weight"].tolist() == [1, 1]
