"""Masks are the stock data set's, or have their distribution; joint and separate anchors; runs that use them."""

from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fairseq.data import Dictionary, ListDataset, MaskTokensDataset
from scipy.stats import chi2_contingency

from fairseq_clear.data.masking import Masks
from fairseq_clear.seeding import Draws
from fairseq_clear.tokens import Ragged
from tests.training import build

SPAN = ("--views", "span:anchors=2,positives=2,min=3,max=9", "--augment", "none", "--tokens-per-sample", "32")


@pytest.fixture
def dictionary() -> Dictionary:
    known = Dictionary()
    for number in range(60):
        known.add_symbol(f"w{number}", n=number + 1)
    for symbol in ("<mask>", "<del>"):
        known.add_symbol(symbol)
    return known


def masks_of(known: Dictionary, *, as_stock: bool = False, **settings: Any) -> Masks:
    usual = {
        "data": "", "seed": 3, "mlm_copies": 1, "mask_prob": 0.4, "leave_unmasked_prob": 0.1, "random_token_prob": 0.1,
        "freq_weighted_replacement": False, "mask_whole_words": False, "mask_multiple_length": 1, "mask_stdev": 0.0,
    }  # fmt: skip
    return Masks(Namespace(**usual | settings), known, as_stock=as_stock)


def stock(known: Dictionary, texts: Any, targets: bool, masks: Masks) -> MaskTokensDataset:
    names = ("seed", "mask_prob", "leave_unmasked_prob", "random_token_prob", "freq_weighted_replacement")
    names += ("mask_multiple_length", "mask_stdev")
    settings = {name: getattr(masks.cfg, name) for name in names}
    words = torch.from_numpy(masks._word_starts.astype(np.uint8)) if masks.cfg.mask_whole_words else None
    return MaskTokensDataset(
        texts, known, pad_idx=known.pad(), mask_idx=known.index("<mask>"), return_masked_tokens=targets,
        mask_whole_words=words, **settings,
    )  # fmt: skip


TEXTS = [np.array([0, *range(first, first + 12), 2]) for first in (4, 20, 33, 44)]
SETTINGS: list[dict[str, Any]] = [
    {},
    {"freq_weighted_replacement": True, "random_token_prob": 0.9, "leave_unmasked_prob": 0.05},
    {"leave_unmasked_prob": 0.0, "random_token_prob": 0.5},
    {"random_token_prob": 0.0, "leave_unmasked_prob": 0.5},
    {"random_token_prob": 0.0, "leave_unmasked_prob": 0.0},
    {"mask_whole_words": True},
    {"mask_multiple_length": 3},
    {"mask_multiple_length": 2, "mask_stdev": 1.0},
]


@pytest.fixture
def words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every third token begins a word."""
    starts = np.array([number < 4 or number % 3 == 0 for number in range(66)])
    monkeypatch.setattr(Masks, "_word_starts", property(lambda self: starts))


@pytest.mark.usefixtures("words")
@pytest.mark.parametrize("settings", SETTINGS)
def test_masks_as_stock_are_those_of_the_stock_data_set(dictionary: Dictionary, settings: dict[str, Any]) -> None:
    texts = ListDataset([torch.from_numpy(text) for text in TEXTS], [len(text) for text in TEXTS])
    masks = masks_of(dictionary, as_stock=True, **settings)
    theirs = [stock(dictionary, texts, targets, masks) for targets in (False, True)]
    for epoch in (1, 2):
        for dataset in theirs:
            dataset.set_epoch(epoch)
        ours = masks(Ragged.of(TEXTS), epoch, np.arange(4))
        for key, text in enumerate(TEXTS):
            for mine, dataset in zip(ours, theirs, strict=True):
                assert mine[key].tolist() == dataset[key].tolist()
            assert (ours[1][key] != dictionary.pad()).any() and len(ours[0][key]) == len(text)
    # another text under the same key is that text's, though the stock data set keeps its last items
    swapped = masks(Ragged.of(TEXTS[::-1]), 2, np.arange(4))
    assert not set(swapped[1][0]) & set(TEXTS[0][1:-1]) and set(swapped[1][0]) & set(TEXTS[3])


@pytest.mark.usefixtures("words")
@pytest.mark.parametrize("settings", SETTINGS[:6])
def test_masks_have_the_distribution_of_the_stock_data_set(dictionary: Dictionary, settings: dict[str, Any]) -> None:
    size = 4_000
    texts, known = [TEXTS[number % 4] for number in range(size)], len(dictionary)
    found = []
    for masks in (masks_of(dictionary, **settings), masks_of(dictionary, as_stock=True, **settings)):
        source, target = masks(Ragged.of(texts), 1, np.arange(size))
        flat, number = np.concatenate(texts), np.tile(np.arange(14), size)
        chosen = target.tokens != dictionary.pad()
        assert (target.tokens[chosen] == flat[chosen]).all() and (source.tokens[~chosen] == flat[~chosen]).all()
        is_mask, is_same = source.tokens == masks.mask, source.tokens == flat
        random = np.bincount(source.tokens[chosen & ~is_mask & ~is_same], minlength=known)
        counts = np.bincount(np.add.reduceat(chosen, np.arange(0, len(flat), 14)), minlength=15)
        places = np.bincount(number[chosen], minlength=14)
        pairs = np.bincount((chosen[:-1] & chosen[1:])[number[:-1] < 13].astype(int), minlength=2)
        kinds = np.array([(chosen & is_mask).sum(), (chosen & is_same).sum(), random.sum()])
        found.append((counts, places, pairs, kinds, random))
    for ours, theirs in zip(*found, strict=True):
        both = np.stack([ours, theirs])
        both = both[:, both.sum(axis=0) > 10]
        assert both.shape[1] < 2 or chi2_contingency(both).pvalue > 1e-4


def test_the_comparison_tells_another_distribution(dictionary: Dictionary) -> None:
    kinds = []
    for share in (0.1, 0.13):
        masks = masks_of(dictionary, random_token_prob=share)
        source, target = masks(Ragged.of(TEXTS * 1_000), 1, np.arange(4_000))
        chosen = target.tokens != dictionary.pad()
        kinds.append([(source.tokens[chosen] == masks.mask).sum(), (source.tokens[chosen] != masks.mask).sum()])
    assert chi2_contingency(kinds).pvalue < 1e-6


@pytest.mark.parametrize("settings", [{}, {"as_stock": True}, {"mask_multiple_length": 3}])
def test_symbols_that_an_augmentation_wrote_are_neither_masked_nor_predicted(dictionary, settings) -> None:
    text = TEXTS[0].copy()
    text[3:9] = dictionary.index("<mask>")
    text[10] = dictionary.index("<del>")
    text.setflags(write=False)
    places = [3, 4, 5, 6, 7, 8, 10]
    source, target = masks_of(dictionary, **settings)(Ragged.of([text] * 30), 1, np.arange(30))
    for key in range(30):
        assert (source[key][places] == text[places]).all() and (target[key][places] == dictionary.pad()).all()
    assert (target.tokens != dictionary.pad()).sum() > 30


def test_masks_of_a_text_depend_on_nothing_else_in_the_batch(dictionary: Dictionary) -> None:
    masks = masks_of(dictionary)
    alone = [[part[0].tolist() for part in masks(Ragged.of([TEXTS[n]]), 2, np.array([n]))] for n in range(4)]
    for batch in ([0, 1, 2, 3], [3, 1], [2, 2, 0]):
        found = masks(Ragged.of([TEXTS[n] for n in batch]), 2, np.array(batch))
        assert [[part[row].tolist() for part in found] for row in range(len(batch))] == [alone[n] for n in batch]
    epochs = masks(Ragged.of([TEXTS[1]] * 2), np.array([2, 3]), np.array([1, 1]))
    assert [part[0].tolist() for part in epochs] == alone[1] != [part[1].tolist() for part in epochs]
    assert [part[0].tolist() for part in masks(Ragged.of([TEXTS[1]]), 2, np.array([1]), 1)] != alone[1]


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


FIXED = tuple(SPAN[2:]) + ("--views", "span:anchors=2,positives=1,min=6,max=6")


def test_every_anchor_of_an_item_has_masks_of_its_own(data_bin: Path) -> None:
    trainer, dataset = build(data_bin, *FIXED)
    masked = [[(part.tokens != trainer.task.dictionary.pad()).tolist() for part in item.targets] for item in dataset]
    assert sum(one == two for one, two in masked) < len(dataset) / 2


def test_joint_batches(data_bin: Path) -> None:
    trainer, dataset = build(data_bin, *SPAN, "--anchor-mlm", "joint")
    known, mask = trainer.task.dictionary, trainer.task.mask_idx
    examples = [dataset[0], dataset[3]]
    batch = dataset.collater(examples)
    tokens, target = batch["views"]["tokens"], batch["views"]["target"]
    assert batch["net_input"] == {} and "target" not in batch
    assert target.shape == (4, tokens.shape[1]) and (tokens[:4] == mask).any() and not (tokens[4:] == mask).any()
    anchors = dataset.view_maker.pairs(np.array([0, 3]), dataset.epoch).anchors()
    assert len(anchors) == 4
    for row in range(4):
        anchor, hidden = anchors[row], (target[row] != known.pad()).numpy()
        length = len(anchor)
        assert not hidden[length:].any()
        assert (target[row].numpy()[hidden] == anchor[hidden[:length]]).all()
        assert (tokens[row, :length].numpy()[~hidden[:length]] == anchor[~hidden[:length]]).all()
    whole = dataset.collater([dataset[n] for n in range(len(dataset))])["views"]
    rows, lengths = np.arange(len(whole["target"])), whole["lengths"][: len(whole["target"])]
    hidden = (whole["target"] != known.pad()).numpy()
    assert hidden[:, 1].any() and not hidden[:, 0].any() and not hidden[rows, lengths - 1].any()
    assert (whole["tokens"][rows, lengths - 1] == known.eos()).all() and (whole["tokens"][:, 0] == known.bos()).all()
    stand_in = dataset.collater([])
    assert stand_in["views"].keys() == batch["views"].keys() and (stand_in["views"]["target"] == known.pad()).all()


@pytest.mark.parametrize("joint", ["joint", "separate"])
def test_masks_of_items_in_different_epochs_are_their_own(joint, data_bin: Path) -> None:
    _, dataset = build(data_bin, *FIXED, "--anchor-mlm", joint, "--mask-prob", "0.5")
    both = dataset.examples(np.array([0, 3]), np.array([1, 2]))
    alone = [dataset.examples(np.array([item]), epoch) for item, epoch in ((0, 1), (3, 2))]
    for number, one in enumerate(alone):
        if joint == "joint":
            found = [both.anchor_target[2 * number + n].tolist() for n in range(2)]
            assert found == [one.anchor_target[n].tolist() for n in range(2)]
        else:
            assert [part[number].tolist() for part in both.targets] == [part[0].tolist() for part in one.targets]


@pytest.mark.parametrize(
    "flags",
    [
        "--views span:min=3,max=9 --augment del-word",
        "--augment del-span+slice/reorder --mlm-copies 2 --criterion clear_self_guided --objective sg --mlm-weight 1",
    ],
)
def test_no_random_number_is_used_for_two_things(flags, data_bin: Path, monkeypatch) -> None:
    drawn = []
    for name in ("bits", "per_row"):
        stock = getattr(Draws, name)

        def watched(self, *args, stock=stock):
            found = stock(self, *args)
            drawn.append(found >> np.uint64(11) if found.dtype == np.uint64 else (found * 2.0**53).astype(np.uint64))
            return found

        monkeypatch.setattr(Draws, name, watched)
    _, dataset = build(data_bin, *flags.split(), "--tokens-per-sample", "32")
    dataset.__getitems__(range(12))
    every = np.concatenate(drawn)
    assert len(every) > 500 and len(np.unique(every)) == len(every)
