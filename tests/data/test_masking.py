"""Masks of anchors are the stock data set's, by (seed, epoch, item, anchor); joint and separate data; runs that use them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fairseq.data import Dictionary, ListDataset, MaskTokensDataset

from fairseq_clear.data.masking import AnchorMasks, Masker
from fairseq_clear.views.view_source import Instance, RawInstance
from tests.training import build

SPAN = ("--views", "span:anchors=2,positives=2,min=3,max=9", "--augment", "none", "--tokens-per-sample", "32")


@pytest.fixture
def dictionary() -> Dictionary:
    known = Dictionary()
    for number in range(60):
        known.add_symbol(f"w{number}")
    for symbol in ("<mask>", "<del>"):
        known.add_symbol(symbol)
    return known


def stock(known: Dictionary, texts: Any, targets: bool, seed: int = 3) -> MaskTokensDataset:
    mask = known.index("<mask>")
    return MaskTokensDataset(
        texts, known, pad_idx=known.pad(), mask_idx=mask, return_masked_tokens=targets, seed=seed, mask_prob=0.4
    )


def masker(known: Dictionary, seed: int = 3) -> Masker:
    symbols = (known.index("<mask>"), known.index("<del>"))
    return Masker(lambda texts, targets: stock(known, texts, targets, seed), symbols, known.pad())


TEXTS = [np.array([0, *range(first, first + 12), 2]) for first in (4, 20, 33, 44)]


def test_masks_are_those_of_the_stock_data_set(dictionary: Dictionary) -> None:
    texts = ListDataset([torch.from_numpy(text) for text in TEXTS], [len(text) for text in TEXTS])
    ours, theirs = masker(dictionary), [stock(dictionary, texts, targets) for targets in (False, True)]
    for epoch in (1, 2):
        for dataset in theirs:
            dataset.set_epoch(epoch)
        for key, text in enumerate(TEXTS):
            source, target = ours(text, epoch, key)
            assert source.tolist() == theirs[0][key].tolist() and target.tolist() == theirs[1][key].tolist()
            again = ours(text, epoch, key)
            assert (again[0] == source).all() and (source != text).any() and (target != dictionary.pad()).any()
    # another text under the same key is that text's, though the stock data set keeps its last items
    assert set(ours(TEXTS[1], 2, 0)[0].tolist()) != set(ours(TEXTS[0], 2, 0)[0].tolist())


def test_symbols_that_an_augmentation_wrote_are_neither_masked_nor_predicted(dictionary: Dictionary) -> None:
    text = TEXTS[0].copy()
    text[3:9] = dictionary.index("<mask>")
    text[10] = dictionary.index("<del>")
    places = [3, 4, 5, 6, 7, 8, 10]
    for key in range(30):
        source, target = masker(dictionary)(text, 1, key)
        assert (source[places] == text[places]).all() and (target[places] == dictionary.pad()).all()
    assert (text[places] != dictionary.pad()).all(), "the argument is left as it was"


def anchors(joint: bool, known: Dictionary, copies: int = 1) -> AnchorMasks:
    maskers = [masker(known, 3 + copy) for copy in range(copies)]
    return AnchorMasks(maskers, 2, lambda tokens: tokens[:8], joint=joint)


def test_every_anchor_has_masks_of_its_own(dictionary: Dictionary) -> None:
    raw = [RawInstance(TEXTS[0], (TEXTS[1],), 1), RawInstance(TEXTS[0], (TEXTS[1],), 1)]
    masks = anchors(False, dictionary, copies=2)
    sources, targets = masks.copies(raw, 5, 1)
    assert masks.rows == len(sources) == len(targets) == 4 and all(len(source) == 8 for source in sources)
    assert len({tuple(source) for source in sources}) == 4
    expected = [masker(dictionary, 3 + copy)(TEXTS[0][:8], 1, 10 + number) for copy in (0, 1) for number in (0, 1)]
    assert [source.tolist() for source in sources] == [source.tolist() for source, _ in expected]
    for other in ((5, 2), (6, 1)):
        assert [s.tolist() for s in masks.copies(raw, *other)[0]] != [s.tolist() for s in sources]


def test_joint_masks_the_embedded_anchor(dictionary: Dictionary) -> None:
    masks = anchors(True, dictionary)
    instances = [Instance(text, (TEXTS[2],), number, 28) for number, text in enumerate(TEXTS[:2])]
    masked = masks.views(instances, 4, 1)
    assert masks.rows == 0
    for number, (before, after) in enumerate(zip(instances, masked, strict=True)):
        source, target = masker(dictionary)(before.anchor, 1, 8 + number)
        assert after.anchor.tolist() == source.tolist() and after.anchor_target is not None
        assert after.anchor_target.tolist() == target.tolist()
        assert (after.positives, after.identity, before.anchor_target) == (before.positives, number, None)


def test_separate_batches(data_bin: Path) -> None:
    trainer, dataset = build(data_bin, *SPAN)
    known, mask = trainer.task.dictionary, trainer.task.mask_idx
    batch = dataset.collater([dataset[0], dataset[3]])
    assert batch["net_input"]["src_tokens"].shape == batch["target"].shape == (4, batch["target"].shape[1])
    anchors_of = batch["views"]["tokens"][:4]
    sources, targets = batch["net_input"]["src_tokens"], batch["target"]
    # rows: the first anchors of all items, then the second; the views' are item by item
    for row, anchor in zip([0, 2, 1, 3], anchors_of, strict=True):
        hidden = targets[row] != known.pad()
        length = int((anchor != known.pad()).sum())
        assert (targets[row][hidden] == anchor[: len(hidden)][hidden]).all()
        assert (sources[row][~hidden][:length] == anchor[: len(hidden)][~hidden][:length]).all()
    assert (sources == mask).any() and not (anchors_of == mask).any()
    assert "target" not in batch["views"]


def test_joint_batches(data_bin: Path) -> None:
    trainer, dataset = build(data_bin, *SPAN, "--anchor-mlm", "joint")
    known, mask = trainer.task.dictionary, trainer.task.mask_idx
    examples = [dataset[0], dataset[3]]
    batch = dataset.collater(examples)
    tokens, target = batch["views"]["tokens"], batch["views"]["target"]
    assert batch["net_input"] == {} and "target" not in batch
    assert target.shape == (4, tokens.shape[1]) and (tokens[:4] == mask).any() and not (tokens[4:] == mask).any()
    raw = [pair for index in (0, 3) for pair in dataset.view_maker.raw_pairs(index, 1)]
    for row, pair in enumerate(raw):
        length, hidden = len(pair.anchor), target[row] != known.pad()
        assert not hidden[length:].any()
        assert (target[row][hidden].numpy() == pair.anchor[hidden[:length].numpy()]).all()
        assert (tokens[row, :length][~hidden[:length]].numpy() == pair.anchor[~hidden[:length].numpy()]).all()
    stand_in = dataset.collater([])
    assert stand_in["views"].keys() == batch["views"].keys() and (stand_in["views"]["target"] == known.pad()).all()


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), ("--mlm-weight", "0"), ("--contrastive-weight", "0"), ("--mlm-copies", "2")])
@pytest.mark.parametrize(
    "source",
    [
        SPAN,
        ("--views", "neighbor", "--augment", "slice", "--tokens-per-sample", "12"),
        ("--views", "cloze:keep=0.5", "--augment", "none", "--tokens-per-sample", "12"),
    ],
)
def test_sizes_bound_every_epoch(source: tuple[str, ...], flags: tuple[str, ...], data_bin: Path) -> None:
    _, dataset = build(data_bin, *source, *flags)
    lengths, stand_in = set(), dataset.collater([])
    for epoch in (1, 2):
        dataset.set_epoch(epoch)
        for index in range(len(dataset)):
            item = dataset[index]
            rows = [*item.sources, *(v for inst in item.instances for v in (inst.anchor, *inst.positives))]
            assert max(map(len, rows)) <= dataset.size(index)
            assert sum(map(len, rows)) <= dataset.num_tokens(index)
            lengths.add(len(item.sources))
    assert len(lengths) == 1
    real = dataset.collater([dataset[0]])
    assert real.keys() == stand_in.keys() and real["net_input"].keys() == stand_in["net_input"].keys()
    assert len(stand_in["net_input"].get("src_tokens", [])) == lengths.pop()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "mode"),
    [
        ("span:min=3,max=9,strategy=adjacent", "separate"),
        ("span:min=3,max=9,strategy=adjacent", "joint"),
        ("neighbor:sentences=2", "separate"),
        ("cloze:keep=0.5", "separate"),
    ],
)
def test_items_do_not_depend_on_data_workers(source: str, mode: str, data_bin: Path) -> None:
    _, dataset = build(data_bin, "--views", source, "--augment", "slice", "--anchor-mlm", mode)

    def items(workers: int) -> list[list[list[int]]]:
        batches = [list(range(begin, begin + 4)) for begin in range(0, 16, 4)]
        loader = torch.utils.data.DataLoader(
            dataset, batch_sampler=batches, collate_fn=dataset.collater, num_workers=workers
        )
        found = []
        for epoch in (1, 2):
            dataset.set_epoch(epoch)
            for batch in loader:
                targets = batch["target"] if "target" in batch else batch["views"]["target"]
                found.append(batch["views"]["tokens"].tolist() + targets.tolist())
        return found

    assert items(0) == items(2)
    assert items(0)[:4] != items(0)[4:]


@pytest.mark.parametrize("source", ["span:min=3,max=9", "neighbor", "cloze", "titles:longest=60"])
def test_an_update(source: str, data_bin: Path) -> None:
    trainer, dataset = build(data_bin, "--views", source, "--same-document-negatives", "exclude")
    batch = dataset.collater([dataset[index] for index in (0, 7, 14)])  # of three documents
    log = trainer.train_step([batch])
    assert np.isfinite(log["loss"]) and log["contrastive_accuracy"] >= 0 and log["mlm_loss"] > 0
