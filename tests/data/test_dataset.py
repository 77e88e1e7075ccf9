"""Items do not depend on data workers; sizes are upper bounds; long, blank and missing lines are handled."""

import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fairseq.data import FairseqDataset, data_utils
from fairseq.tasks.masked_lm import MaskedLMTask

from fairseq_clear.data.batch import Batch, Examples, collate
from fairseq_clear.errors import UserError
from fairseq_clear.text.documents import LoadedLines, MappedLines
from fairseq_clear.tokens import Ragged
from tests.conftest import WORDS, binarize, sentences
from tests.training import build, instances, refuses, rows_of
from tests.views.cases import content_hash

pytestmark = pytest.mark.slow

SOURCES = (
    *("--augment del-span+reorder", "--augment del-word:ratio=0.3/reorder --sample-break-mode complete"),
    *("--augment slice --views span:min=3,max=9,strategy=adjacent", "--augment slice --views neighbor:sentences=2"),
    "--augment none --views cloze:keep=0.5",
)
PARTS = ("", "--mlm-weight 0", "--contrastive-weight 0", "--mlm-copies 2")
JOINT = SOURCES[2] + " --anchor-mlm joint"


@pytest.mark.parametrize("flags", [*SOURCES, JOINT, "--augment none"])
def test_items_do_not_depend_on_data_workers(flags: str, data_bin: Path) -> None:
    _, dataset = build(data_bin, *flags.split())

    def items(workers: int) -> list[Any]:
        """Views and masked targets of two epochs, as the loader delivers them."""
        batches = [list(range(begin, begin + 4)) for begin in range(0, 16, 4)]
        how = {"batch_sampler": batches, "collate_fn": dataset.collater, "num_workers": workers}
        loader, found = torch.utils.data.DataLoader(dataset, **how), []
        for epoch in (1, 2):
            dataset.set_epoch(epoch)
            for batch in loader:
                targets = batch["target"] if "target" in batch else batch["views"]["target"]
                found.append(batch["views"]["tokens"].tolist() + targets.tolist())
        return found

    alone = items(0)
    assert alone == items(2) and alone[:4] != alone[4:]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("source", SOURCES)
def test_sizes_bound_every_epoch_and_the_stand_in_has_the_shape_of_a_batch(source, part, data_bin) -> None:
    _, dataset = build(data_bin, *source.split(), *part.split(), "--tokens-per-sample", "12")
    copies = set()
    for epoch in (1, 2):
        dataset.set_epoch(epoch)
        for index in range(len(dataset)):
            item = dataset[index]
            lengths = list(map(len, rows_of(item)))
            assert max(lengths) <= dataset.size(index) <= 12 and sum(lengths) <= dataset.num_tokens(index)
            copies.add(len(item.sources))
    assert dataset.num_tokens_vec(np.array([2, 5])).tolist() == [dataset.num_tokens(2), dataset.num_tokens(5)]
    real, stand_in = dataset.collater([dataset[0]]), dataset.collater([])
    assert real.keys() == stand_in.keys() and real["net_input"].keys() == stand_in["net_input"].keys()
    assert (real["is_empty"], stand_in["is_empty"]) == (False, True)
    assert stand_in["ntokens"] == stand_in["nsentences"] == 0
    assert {len(stand_in["net_input"].get("src_tokens", []))} == copies


SPANS = "--views span:min=3,max=9"


@pytest.mark.parametrize("flags", ["", SPANS, f"{SPANS} --anchor-mlm joint", "--mlm-copies 2"])
def test_a_batch_is_its_items_joined(flags: str, data_bin: Path) -> None:
    """The trainer's first batch is made item by item, all others at once; an item is the same in both, in every grouping."""
    _, dataset = build(data_bin, *flags.split(), "--augment", "del-word/reorder")
    dataset.set_epoch(3)
    indices = [9, 2, 14, 2, 0]
    together, joined = dataset.collater(dataset.__getitems__(indices)), dataset.collater([dataset[i] for i in indices])
    halves = dataset.collater(dataset.__getitems__(indices[:2]) + dataset.__getitems__(indices[2:]))
    assert together.keys() == joined.keys() == halves.keys()
    for other in (joined, halves):
        for one, two in zip(flatten(together), flatten(other), strict=True):
            assert np.array_equal(one, two)
    assert dataset.__getitems__([]) == [] and dataset.collater([])["is_empty"]


def test_views_are_collated_anchors_first_then_positives_then_negatives() -> None:
    """Three anchors with two positives and two negatives each; a row is (anchor, number of the text, ...)."""
    rows = [np.array([anchor, role, *[7] * (anchor + role)]) for anchor in range(3) for role in range(5)]
    hashes = {"identity": np.arange(3), "negative_identity": np.arange(6)}
    examples = Examples(np.arange(3), views=Ragged.of(rows), **hashes, draw=np.zeros(3))
    assert (examples.each, examples.positives) == (5, 2)
    views = Batch.of(collate(examples, 1)).views
    assert views is not None
    order = [(anchor, role) for roles in ((0,), (1, 2), (3, 4)) for anchor in range(3) for role in roles]
    width = max(map(len, rows))
    expected = [
        [*row, *[1] * (width - len(row))] for row in (rows[5 * anchor + role].tolist() for anchor, role in order)
    ]
    assert views.tokens.tolist() == expected
    assert views.lengths == [2 + anchor + role for anchor, role in order]


def flatten(sample: Any) -> list[np.ndarray]:
    """All values of a batch, in the order of their names."""
    if isinstance(sample, dict):
        return [value for name in sorted(sample) for value in flatten(sample[name])]
    return [np.asarray(sample)]


def test_the_trainers_iterator_delivers_the_masks_of_its_epoch(data_bin: Path) -> None:
    """fairseq's persistent data workers would continue with the masks of the previous epoch."""

    def second_epoch(workers: str, *flags: str) -> list[Any]:
        trainer, _ = build(data_bin, "--num-workers", workers, *flags)
        iterator = trainer.get_train_iterator(epoch=1)
        for _ in iterator.next_epoch_itr():
            pass
        return [batch["target"].tolist() for batch in iterator.next_epoch_itr()]

    assert second_epoch("0") == second_epoch("2")
    assert second_epoch("0") != second_epoch("1", "--persistent-workers")


def test_no_text_is_left_out_of_an_epoch(data_bin: Path) -> None:
    """fairseq's own data sets drop the last batch, of the longest texts, for ``required_batch_size_multiple``."""
    _, dataset = build(data_bin)
    indices = dataset.ordered_indices()
    assert sorted(indices.tolist()) == list(range(len(dataset)))
    for texts in (5, 8, 21):
        batches = dataset.batch_by_size(indices[:texts], max_sentences=8, required_batch_size_multiple=8)
        assert [index for batch in batches for index in batch.tolist()] == indices[:texts].tolist()
        assert max(map(len, batches)) <= 8
    stock = FairseqDataset.batch_by_size(dataset, indices[:21], max_sentences=8, required_batch_size_multiple=8)
    assert sum(map(len, stock)) == 16
    sizes = dataset.sizes  # texts of similar lengths are together
    for dataset.sizes in (sizes, sizes * 1_000, sizes * 5_000, sizes + 2**16):
        assert dataset.ordered_indices().tolist() == np.lexsort([dataset.order, dataset.sizes]).tolist()


def steps(data: Path, workers: int, size: int, *flags: str, **settings: Any) -> list[list[int]]:
    """The items that all workers read in each step of two epochs, in batches of ``size`` items in all."""
    parts, (trainer, dataset) = [], build(data, *flags)
    for worker in range(workers):
        trainer.task.dataset_to_epoch_iter.clear()  # fairseq's cache, of the worker before
        parts.append([])
        for epoch in (1, 2):
            dataset.set_epoch(epoch)
            shard = {"num_shards": workers, "shard_id": worker, "epoch": epoch, "required_batch_size_multiple": 8}
            loader = trainer.task.get_batch_iterator(dataset, max_sentences=size // workers, **shard, **settings)
            parts[-1] += [batch["id"].tolist() * (not batch["is_empty"]) for batch in loader.next_epoch_itr()]
    return [sorted(sum(step, [])) for step in zip(*parts, strict=True)]


@pytest.mark.parametrize("flags", [(), ("--contrastive-weight", "0")])
def test_workers_read_together_what_one_worker_reads(flags: tuple[str, ...], data_bin: Path, other_bin: Path) -> None:
    """In each step, in the same order, and nothing is left out. Control: without views, batches are masked_lm's.

    The last batch has 24 and 12 texts, of which the latter is no multiple of 8.
    """
    for data in (data_bin, other_bin):
        alone = steps(data, 1, 32, *flags)
        assert sorted(sum(alone, [])) == sorted(2 * list(range(len(build(data)[1]))))
        assert [steps(data, workers, 32, *flags) == alone for workers in (2, 4, 8)] == 3 * [not flags]


def test_a_batch_size_that_is_not_a_multiple_of_8_is_not_rounded(data_bin: Path) -> None:
    """Control: without views, it is rounded as in masked_lm."""
    for flags, size in ((), 20), (("--contrastive-weight", "0"), 16):
        assert len(steps(data_bin, 1, 20, *flags)[0]) == size
    assert steps(data_bin, 2, 24) == steps(data_bin, 1, 24)
    # and grouped shuffling leaves nothing out
    read = steps(data_bin, 4, 32, "--contrastive-weight", "0", grouped_shuffling=True)
    assert sorted(sum(read, [])) == sorted(2 * list(range(len(build(data_bin)[1]))))


@pytest.mark.parametrize("flags", [(), ("--contrastive-weight", "0")])
def test_every_epoch_has_other_negatives(flags: tuple[str, ...], data_bin: Path) -> None:
    """Only where there are negatives: validation stays comparable, and MLM alone is masked_lm's."""
    trainer, training = build(data_bin, "--num-workers", "0", *flags)
    trainer.task.load_dataset("valid")

    def batches(dataset: Any, epoch: int) -> list[list[int]]:
        iterator = trainer.task.get_batch_iterator(dataset, max_sentences=8, epoch=epoch, seed=1)
        return sorted(sorted(batch["id"].tolist()) for batch in iterator.next_epoch_itr(shuffle=False))

    first, second = batches(training, 1), batches(training, 2)
    assert sorted(sum(first, [])) == sorted(sum(second, [])) == list(range(len(training)))
    assert (first == second) == bool(flags)
    assert batches(training, 1) == first, "the batches depend on the epoch alone"
    assert batches(trainer.task.dataset("valid"), 1) == batches(trainer.task.dataset("valid"), 2)


def test_max_tokens_counts_every_part_and_an_item_over_it_is_named(data_bin: Path, caplog) -> None:
    _, dataset = build(data_bin)
    with pytest.raises(UserError, match="no text is left to train on"):
        dataset.batch_by_size(dataset.ordered_indices()[:0], max_sentences=8, required_batch_size_multiple=8)
    batches = dataset.batch_by_size(dataset.ordered_indices(), max_tokens=200)
    for indices in batches:
        batch = dataset.collater([dataset[i] for i in indices])
        assert batch["net_input"]["src_tokens"].numel() + batch["views"]["tokens"].numel() <= 200
    assert len(batches) > 3
    trainer, dataset = build(data_bin, "--max-tokens", "30", "--batch-size", "100")
    refuses(caplog, f"--max-tokens {dataset.totals.max()}", 1, of=trainer.get_train_iterator)
    trainer.task.load_dataset("valid")
    trainer.cfg.dataset.max_tokens_valid = 20
    refuses(caplog, "--max-tokens-valid 20: the longest item has ", "valid", of=trainer.get_valid_iterator)


LINES = (3, 9, 1, 9, 10, 11, 0, 0, 12, 30, 31, 2, 0, 33, 5, 70_000, 8)
LIMIT = 12
MODES = ["none", "complete", "complete_doc", "eos"]


def lines_of(lengths: tuple[int, ...]) -> list[str]:
    """One line per number of words, all different."""
    words = iter(f"{a} {b}" for a in WORDS for b in WORDS)
    return [" ".join((f"{next(words)} " * length).split()[:length]) for length in lengths]


@pytest.fixture(scope="module")
def long_bin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("long") / "bin"
    return binarize(folder, None, train=lines_of(LINES), valid=lines_of(LINES[-5:]))


@pytest.mark.parametrize("split", ["train", "valid"])
@pytest.mark.parametrize("mode", MODES)
def test_long_texts_are_split_and_nothing_is_lost(mode, split, long_bin, caplog) -> None:
    task = build(long_bin, "--tokens-per-sample", str(LIMIT), "--sample-break-mode", mode)[0].task
    stored = [line.tolist() for line in data_utils.load_indexed_dataset(str(long_bin / split), task.dictionary)]
    assert [len(line) - 1 for line in stored] == list(LINES if split == "train" else LINES[-5:])
    caplog.clear()
    caplog.set_level(logging.INFO)
    texts = task.load_sentences(split)
    samples = [texts[index].tolist() for index in range(len(texts))]
    assert [len(sample) for sample in samples] == texts.sizes.tolist()
    assert max(map(len, samples)) <= LIMIT
    assert all(sample[0] == 0 and 0 not in sample[1:] for sample in samples)
    if mode == "eos":  # blank lines are dropped, and every sample has a </s> of its own
        assert all(sample[-1] == 2 and 2 not in sample[:-1] for sample in samples)
        found = [token for sample in samples for token in sample[1:-1]]
        assert found == [token for line in stored for token in line[:-1]]
    else:  # fairseq's complete_doc drops blank lines
        kept = [line for line in stored if mode != "complete_doc" or len(line) > 1]
        assert [token for sample in samples for token in sample[1:]] == [token for line in kept for token in line]
    capacity = LIMIT - (2 if mode == "eos" else 1)
    sizes = [len(line) - (mode == "eos") for line in stored]
    parts = [-(-size // capacity) for size in sizes if size > capacity]
    lines = [line for line in caplog.messages if "--tokens-per-sample 12" in line]
    if mode == "none":  # fairseq fills blocks of that length
        assert not lines
        return
    assert len(lines) == 1 and f"({split})" in lines[0] and f"{sum(parts):d} samples" in lines[0]
    assert re.search(rf"\b{len(parts)} (sentences longer|split)", lines[0])
    # the parts of one sentence differ by at most one token, so no part is very short
    assert min(len(sample) for sample in samples if len(sample) > 5) > 6
    # masks and views are made from all parts
    task.load_dataset(split)
    dataset = task.dataset(split)
    assert len(dataset) == len(samples) and dataset.sizes.max() <= LIMIT
    for index in (0, len(dataset) - 1):
        assert instances(dataset[index])[0].identity == content_hash(np.array(samples[index]))


@pytest.mark.parametrize("limit", ["9", "64"])
@pytest.mark.parametrize("mode", MODES)
def test_texts_are_the_same_one_by_one_and_together(mode: str, limit: str, data_bin: Path) -> None:
    """In order, out of order and twice, of memory-mapped data and of other."""
    task = build(data_bin, "--sample-break-mode", mode, "--tokens-per-sample", limit)[0].task
    texts = task.load_sentences("train")
    assert isinstance(texts.text, MappedLines)
    indices = np.append(np.random.default_rng(1).permutation(len(texts)), [3, 3])
    for _ in range(2):
        rows = texts.rows(indices)
        assert [rows[row].tolist() for row in range(len(rows))] == [texts[index].tolist() for index in indices.tolist()]
        assert len(texts.rows(indices[:0])) == 0
        texts.text = LoadedLines(data_utils.load_indexed_dataset(str(data_bin / "train"), task.dictionary))


def test_aligned_texts_are_the_same_one_by_one_and_together(paired_bin: Path) -> None:
    for limit in ("5", "64"):
        data = build(paired_bin, "--views", "paraphrase:original,bt", "--tokens-per-sample", limit)[1]
        for texts in data.view_maker.source.sources:
            assert isinstance(texts.text, MappedLines)
            order = np.arange(len(texts.sizes))[::-1]
            rows = texts.rows(order)
            for place, row in enumerate(order):
                assert rows[place].tolist() == texts.rows(np.array([row])).tokens.tolist()


@pytest.mark.parametrize("mode", MODES[:-1])
def test_texts_that_fit_equal_those_of_masked_lm(mode: str, data_bin: Path) -> None:
    task = build(data_bin, "--sample-break-mode", mode)[0].task
    texts, stock = task.load_sentences("train"), MaskedLMTask._load_dataset_split(task, "train", 1, False)
    assert texts.sizes.tolist() == stock.sizes.tolist() and texts.sizes.dtype == stock.sizes.dtype
    assert all(map(torch.equal, texts, stock))


def test_aligned_lines_are_cut_off(paired_bin: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Item i stays line i, because other files hold its paraphrase or hard negative."""
    caplog.set_level(logging.INFO)
    limit = ("--tokens-per-sample", "8")
    plain = build(paired_bin, *limit)[1]
    lines = sum(bool(line) for line in sentences(120, 1))
    assert len(plain) > lines
    for flags in (("--views", "paraphrase:original,bt"), ("--hard-negatives", "other")):
        caplog.clear()
        dataset = build(paired_bin, *limit, "--augment", "none", *flags)[1]
        assert len(dataset) == lines and "cut off" in caplog.text
        for index, line in enumerate(line for line in sentences(120, 1) if line):
            anchor = instances(dataset[index])[0].anchor
            assert len(anchor) == min(len(line.split()) + 2, 8) and (anchor[0], anchor[-1]) == (0, 2)


def test_neighbours_longer_than_tokens_per_sample_are_cut_off(long_bin: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    dataset = build(long_bin, "--views", "neighbor", "--tokens-per-sample", str(LIMIT), "--augment", "none")[1]
    assert "9 of the 22 spans are longer than --tokens-per-sample 12" in caplog.text
    for index in range(len(dataset)):
        (pair,) = instances(dataset[index])
        rows = [pair.anchor, *pair.positives, *(copy[0] for copy in dataset[index].sources)]
        assert max(map(len, rows)) == dataset.size(index) <= LIMIT
        assert all((row[0], row[-1]) == (0, 2) for row in rows[:2])


def test_data_without_a_sentence_split_or_folder(data_bin, tmp_path, caplog) -> None:
    blank, task = binarize(tmp_path / "bin", None, train=["", ""]), build(data_bin)[0].task
    refuses(caplog, "no sentence", blank)
    refuses(caplog, "fairseq-clear prepare", tmp_path)
    refuses(caplog, "tset", "tset", of=task.load_dataset)


def test_shards_take_turns(paired_bin: Path) -> None:
    task = build(f"{paired_bin}:{paired_bin}/paraphrase/other")[0].task
    texts = []
    for epoch in (1, 2, 3):
        task.load_dataset("train", epoch=epoch)
        texts.append([instances(task.dataset("train")[i])[0].identity for i in range(8)])
    assert texts[0] == texts[2] != texts[1]
