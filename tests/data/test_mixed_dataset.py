"""Several corpora as one training set: exact shares, equal coverage, the same in every process, also after resuming."""

from collections import Counter
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_clear.data.batch import Examples
from fairseq_clear.data.mixed_dataset import MixedDataset
from fairseq_clear.errors import UserError
from fairseq_clear.tokens import Ragged
from tests.conftest import binarize, sentences
from tests.training import build, instances


class Toy:
    """A corpus whose items hold the number of the corpus, their index and the epoch."""

    texts = None

    def __init__(self, number: int, size: int) -> None:
        self.number, self.size = number, size
        self.sizes = np.random.default_rng(number).integers(3, 9, size).astype(np.int32)
        self.totals = 3 * self.sizes

    def __len__(self) -> int:
        return self.size

    def examples(self, indices: np.ndarray, epochs: np.ndarray) -> Examples:
        assert indices.dtype == epochs.dtype == np.int64
        rows = [np.array([self.number, *names]) for names in zip(indices, epochs, strict=True)]
        return Examples(indices, (Ragged.of(rows),))


def mixed(sizes: list[int], weights: list[int], seed: int = 1, **options: Any) -> MixedDataset:
    corpora: Any = [Toy(number, size) for number, size in enumerate(sizes)]
    names = [f"corpus{number}" for number in range(len(sizes))]
    return MixedDataset(corpora, [Fraction(weight) for weight in weights], seed, names=names, **options)


def read(dataset: MixedDataset, epoch: int) -> list[tuple[int, int, int]]:
    """(corpus, item, pass) of every item of an epoch, in the order of its indices."""
    dataset.set_epoch(epoch)
    found = []
    for index in range(len(dataset)):
        example = dataset[index]
        assert example.index == index
        found.append(tuple(int(number) for number in example.sources[0].tokens))
    return found  # type: ignore[return-value]


def batches_of(dataset: MixedDataset, epoch: int, size: int) -> list[list[int]]:
    dataset.set_epoch(epoch)
    batches = dataset.batch_by_size(dataset.ordered_indices(), max_sentences=size, required_batch_size_multiple=8)
    return [np.asarray(batch).tolist() for batch in batches]


MIXES = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 12)), min_size=2, max_size=4).filter(
    # every corpus has at least one item in an epoch
    lambda mix: all(mix[0][0] * weight >= mix[0][1] for _, weight in mix)
)


@given(mix=MIXES, seed=st.integers(0, 2**32), epochs=st.integers(1, 5))
def test_shares_are_exact_and_every_item_is_read_equally_often(mix, seed, epochs) -> None:
    sizes, weights = ([pair[column] for pair in mix] for column in (0, 1))
    dataset, reads = mixed(sizes, weights, seed), Counter[tuple[int, int]]()
    passes = set()
    for epoch in range(1, epochs + 1):
        found = read(dataset, epoch)
        counts = Counter(corpus for corpus, _, _ in found)
        assert [counts[number] for number in range(len(mix))] == dataset.counts
        for (_, weight), count in zip(mix, dataset.counts, strict=True):
            assert abs(count * weights[0] - sizes[0] * weight) <= weights[0] / 2  # rounded to the nearest
        assert sorted(item for corpus, item, _ in found if corpus == 0) == list(range(sizes[0]))
        reads.update((corpus, item) for corpus, item, _ in found)
        for number, size in enumerate(sizes):
            each = [reads[number, item] for item in range(size)]
            assert max(each) - min(each) <= 1
        # each reading of an item is in a pass of its own, so it has views of its own
        assert not passes & set(found) and len(set(found)) == len(found)
        passes |= set(found)
        assert all(dataset.size(i) == 3 + (dataset.num_tokens(i) - 9) // 3 for i in range(len(dataset)))
        sizes_read = [int(dataset.corpora[corpus].sizes[item]) for corpus, item, _ in found]
        assert sizes_read == dataset.sizes.tolist()
    numbers = {number for (corpus, _, number) in passes if corpus == 0}
    assert numbers == set(range(1, epochs + 1))


@given(mix=MIXES, seed=st.integers(0, 9), epoch=st.integers(1, 4), workers=st.integers(1, 4), size=st.integers(1, 9))
def test_batches_hold_every_item_once_and_separate_ones_one_corpus(mix, seed, epoch, workers, size) -> None:
    sizes, weights = ([pair[column] for pair in mix] for column in (0, 1))
    for is_separate in (False, True):
        dataset = mixed(sizes, weights, seed, is_separate=is_separate)
        dataset.workers = workers
        batches = batches_of(dataset, epoch, size)
        assert sorted(index for batch in batches for index in batch) == list(range(len(dataset)))
        assert max(map(len, batches)) <= size and batches[0] and len(batches) % workers == 0
        if not is_separate:
            assert sum(not batch for batch in batches) < workers
            lengths = [dataset.size(index) for batch in batches for index in batch]
            assert lengths == sorted(lengths)
            continue
        found = [
            [int(dataset.corpus_of(index)) for batch in batches[first : first + workers] for index in batch]
            for first in range(0, len(batches), workers)
        ]
        assert all(len(set(corpora)) == 1 for corpora in found)


def test_a_limit_that_an_item_of_another_epoch_exceeds_is_found_in_the_first() -> None:
    dataset = mixed([40, 300], [4, 1])
    dataset.corpora[1].totals[int(dataset.items[dataset.items >= 40].max(initial=40)) + 1 :] = 99  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="--max-tokens 50: the longest item has 99 tokens"):
        dataset.batch_by_size(dataset.ordered_indices(), max_tokens=50)


def test_an_epoch_depends_on_seed_and_number_alone() -> None:
    sizes, weights = [40, 300], [4, 1]
    dataset = mixed(sizes, weights)
    forward = [(read(dataset, epoch), batches_of(dataset, epoch, 8)) for epoch in (1, 2, 3)]
    fresh = [(read(mixed(sizes, weights), epoch), batches_of(mixed(sizes, weights), epoch, 8)) for epoch in (3, 1, 2)]
    assert [fresh[1], fresh[2], fresh[0]] == forward
    others = [{item for corpus, item, _ in items if corpus} for items, _ in forward]
    assert all(one != two for found in (forward, others) for one, two in pairwise(found))
    assert read(mixed(sizes, weights, seed=2), 1) != forward[0][0]


def test_any_batch_mixes_the_corpora() -> None:
    dataset = mixed([64, 640], [1, 1])
    found = [{int(dataset.corpus_of(index)) for index in batch} for batch in batches_of(dataset, 1, 16)]
    assert sum(len(corpora) == 2 for corpora in found) >= len(found) - 1


@pytest.mark.parametrize(("weights", "count"), [([1000, 1], "0"), ([1, 10**12], "10,000,000,000,000")])
def test_an_implausible_weight_is_an_error(weights: list[int], count: str) -> None:
    with pytest.raises(UserError, match=rf"would read {count} texts of corpus1, and each of the 10 of corpus0 once"):
        mixed([10, 10], weights)


# Real corpora


def rows(batch: dict[str, Any]) -> list[Any]:
    """Ids and model inputs of a batch."""
    return [tokens.tolist() for tokens in (batch["id"], batch["net_input"]["src_tokens"], batch["views"]["tokens"])]


@pytest.mark.slow
@pytest.mark.parametrize("batches", ["any", "one"])
@pytest.mark.parametrize("data_workers", ["0", "2"])
def test_a_run_resumed_in_an_epoch_reads_the_rest(batches, data_workers, data_bin, other_bin) -> None:
    mix = ("--mix", f"{other_bin}:0.25,{data_bin}:.75", "--mix-batches", batches)
    trainer, dataset = build(data_bin, *mix, "--num-workers", "0")
    assert len(dataset) == 160 and dataset.counts == [120, 40]
    iterator = trainer.get_train_iterator(1)
    first = [rows(batch) for batch in iterator.next_epoch_itr()]
    second = trainer.get_train_iterator(2, load_dataset=False)
    found, saved = [], None
    for batch in second.next_epoch_itr():
        found.append(rows(batch))
        if len(found) == 7:
            saved = second.state_dict()
    assert saved is not None and saved["iterations_in_epoch"] == 7
    resumed_trainer, _ = build(data_bin, *mix, "--num-workers", data_workers)
    resumed = resumed_trainer.get_train_iterator(2)
    resumed.load_state_dict(saved)
    assert [rows(batch) for batch in resumed.next_epoch_itr()] == found[7:]
    third = trainer.get_train_iterator(3, load_dataset=False).next_epoch_itr()
    again = resumed_trainer.get_train_iterator(3, load_dataset=False).next_epoch_itr()
    assert [rows(batch) for batch in third] == [rows(batch) for batch in again]
    assert first != found


@pytest.mark.slow
def test_items_are_those_of_the_corpora_alone(data_bin: Path, other_bin: Path) -> None:
    """DATA's texts have the masks and views of the run without --mix; others those of their pass."""
    _, dataset = build(data_bin, "--mix", f"{data_bin}:1,{other_bin}:5")
    alone = [build(folder)[1] for folder in (data_bin, other_bin)]
    seen = Counter[int]()
    for epoch in (1, 2):
        dataset.set_epoch(epoch)
        for index in range(len(dataset)):
            number, item = int(dataset.corpus_of(index)), int(dataset.items[index])
            if index % 9 == 0:
                alone[number].set_epoch(int(dataset.passes[index]))
                theirs = alone[number].collater([alone[number][item]])
                assert rows(dataset.collater([dataset[index]]))[1:] == rows(theirs)[1:]
            seen[int(dataset.passes[index])] += number
    assert set(seen) == {1, 2, 3, 4} and seen[1] == seen[2] == seen[3] == 300 == 2 * 600 - 900


@pytest.mark.slow
def test_workers_contrast_texts_of_one_corpus(data_bin: Path, other_bin: Path) -> None:
    """The workers' batches of a step are one contrastive batch."""
    mix = ("--mix", f"{data_bin}:3,{other_bin}:1", "--mix-batches", "one")
    steps, how = [], {"max_sentences": 8, "required_batch_size_multiple": 8, "num_shards": 2, "epoch": 2}
    for worker in range(2):
        trainer, dataset = build(data_bin, *mix)
        iterator = trainer.task.get_batch_iterator(dataset=dataset, shard_id=worker, **how)
        steps.append([batch["id"].tolist() * (not batch["is_empty"]) for batch in iterator.next_epoch_itr()])
    assert len(steps[0]) == len(steps[1]) == 11  # 15 batches and an empty one; 5 and an empty one
    corpora = [{int(dataset.corpus_of(index)) for index in (*one, *two)} for one, two in zip(*steps, strict=True)]
    assert all(len(found) == 1 for found in corpora) and len({min(found) for found in corpora}) == 2
    assert corpora != sorted(corpora, key=min), "shuffled"
    assert sorted(index for share in steps for batch in share for index in batch) == list(range(160))


@pytest.mark.slow
def test_paraphrases_and_hard_negatives_are_those_of_each_corpus(paired_bin, other_bin, tmp_path, caplog) -> None:
    flags = ("--views", "paraphrase:original,bt", "--hard-negatives", "other", "--augment", "none")
    lines = {"train": sentences(40, 8), "valid": sentences(9, 9)}
    mine = binarize(tmp_path / "mine", paired_bin / "dict.txt", **lines)
    for name, back in (("bt", True), ("other", False)):
        reordered = {
            split: [" ".join(sorted(line.split(), reverse=back)) for line in own] for split, own in lines.items()
        }
        binarize(mine / "paraphrase" / name, paired_bin / "dict.txt", **reordered)
    trainer, dataset = build(paired_bin, "--mix", f"{paired_bin}:3,{mine}:1", *flags)
    assert dataset.counts == [120, 40]
    words = trainer.task.dictionary.symbols
    texts = [line.split() for line in lines["train"] if line]
    for index in range(120, 160):
        (pair,) = instances(dataset[index])
        pair_of = (pair.anchor, *pair.positives, *pair.negatives)
        anchor, positive, negative = ([words[token] for token in text[1:-1]] for text in pair_of)
        assert anchor == texts[dataset.items[index]]
        assert positive == sorted(anchor, reverse=True) and negative == sorted(anchor)
    with pytest.raises(SystemExit) as stop:
        build(paired_bin, "--mix", f"{paired_bin}:3,{other_bin}:1", *flags)
    assert stop.value.code == 2 and f"{other_bin}/paraphrase/bt/train does not exist" in caplog.text


def test_corpora_of_one_size_are_read_in_different_orders_and_ties_in_that_of_the_seed() -> None:
    found = read(mixed([40, 40, 40], [2, 1, 1]), 1)
    one, other = ([item for corpus, item, _ in found if corpus == number] for number in (1, 2))
    assert len(one) == len(other) == 20 and one != other
    assert mixed([40, 40], [1, 1], seed=1).order.tolist() != mixed([40, 40], [1, 1], seed=2).order.tolist()
