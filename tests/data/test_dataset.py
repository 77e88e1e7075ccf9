"""Items do not depend on data workers; sizes are upper bounds; long, blank and missing lines are handled."""

import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fairseq import options
from fairseq.data import FairseqDataset, data_utils
from fairseq.tasks.masked_lm import MaskedLMTask
from fairseq_cli import preprocess

from fairseq_clear.data.batch import Batch, Examples, collate
from fairseq_clear.errors import UserError
from fairseq_clear.seeding import rng_for
from fairseq_clear.text.documents import content_hash
from fairseq_clear.tokens import Ragged
from tests.conftest import WORDS, run, sentences, tool
from tests.training import build, instances, rows_of

pytestmark = pytest.mark.slow

AUGMENTS = ["none", "del-word", "del-span+reorder", "del-word:ratio=0.3/reorder"]


def views(dataset: Any, workers: int, epochs: list[int]) -> list[list[list[int]]]:
    """All views of each epoch, as the loader delivers them."""
    batches = [list(range(begin, begin + 8)) for begin in range(0, 24, 8)]
    loader = torch.utils.data.DataLoader(
        dataset, batch_sampler=batches, collate_fn=dataset.collater, num_workers=workers, persistent_workers=False
    )
    found = []
    for epoch in epochs:
        dataset.set_epoch(epoch)
        found.append([batch["views"]["tokens"].tolist() + batch["target"].tolist() for batch in loader])
    return found


@pytest.mark.parametrize("augment", AUGMENTS)
def test_items_do_not_depend_on_data_workers(augment: str, data_bin: Path) -> None:
    _, dataset = build(data_bin, "--augment", augment)
    assert views(dataset, 0, [1, 2]) == views(dataset, 2, [1, 2])


@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--views", "span:min=3,max=9"),
        ("--views", "span:min=3,max=9", "--anchor-mlm", "joint"),
        ("--mlm-copies", "2"),
    ],
)
def test_a_batch_is_its_items_joined(flags: tuple[str, ...], data_bin: Path) -> None:
    """The trainer's first batch is made item by item, all others at once; an item is the same in both, in every grouping."""
    _, dataset = build(data_bin, *flags, "--augment", "del-word/reorder")
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
    numbers = np.arange(3)
    examples = Examples(
        numbers, views=Ragged.of(rows), identity=numbers, negative_identity=np.arange(6), draw=np.zeros(3)
    )
    assert (examples.each, examples.positives) == (5, 2)
    views = Batch.of(collate(examples, 1)).views
    assert views is not None
    expected = [(anchor, 0) for anchor in range(3)]
    expected += [(anchor, role) for anchor in range(3) for role in (1, 2)]
    expected += [(anchor, role) for anchor in range(3) for role in (3, 4)]
    assert [tuple(row[:2]) for row in views.tokens.tolist()] == expected
    assert views.lengths == [2 + anchor + role for anchor, role in expected]
    assert all(
        row[length:] == [1] * (len(row) - length)
        for row, length in zip(views.tokens.tolist(), views.lengths, strict=True)
    )


def flatten(sample: Any) -> list[np.ndarray]:
    """All values of a batch, in the order of their names."""
    if isinstance(sample, dict):
        return [value for name in sorted(sample) for value in flatten(sample[name])]
    return [np.asarray(sample)]


def test_items_do_not_depend_on_order_and_do_on_epoch_seed_and_view(data_bin: Path) -> None:
    _, dataset = build(data_bin)
    dataset.set_epoch(1)

    def items() -> list[list[int]]:
        return [
            view.tolist()
            for i in range(12)
            for inst in instances(dataset[i])
            for view in (inst.anchor, *inst.positives)
        ]

    first = items()
    dataset[7], dataset[3]
    assert items() == first
    assert any(a != b for a, b in zip(first[::2], first[1::2], strict=True))
    dataset.set_epoch(2)
    assert items() != first
    dataset.set_epoch(1)
    assert items() == first
    _, other = build(data_bin, "--seed", "2")
    assert [instances(other[i])[0].anchor.tolist() for i in range(12)] != first[::2]


def test_the_trainers_iterator_delivers_the_masks_of_its_epoch(data_bin: Path) -> None:
    """fairseq's persistent data workers would continue with the masks of the previous epoch."""

    def second_epoch(workers: str, *flags: str) -> list[Any]:
        trainer, _ = build(data_bin, "--num-workers", workers, *flags)
        iterator = trainer.get_train_iterator(epoch=1)
        for _ in iterator.next_epoch_itr():
            pass
        return [batch["target"].tolist() for batch in iterator.next_epoch_itr()]

    assert second_epoch("0") == second_epoch("2")
    assert second_epoch("0") != second_epoch("2", "--persistent-workers")


@pytest.mark.parametrize("augment", AUGMENTS)
@pytest.mark.parametrize("mode", ["eos", "complete"])
def test_sizes_bound_every_epoch(augment: str, mode: str, data_bin: Path) -> None:
    flags = ("--augment", augment, "--sample-break-mode", mode, "--tokens-per-sample", "16")
    for parts in ((), ("--mlm-weight", "0"), ("--contrastive-weight", "0"), ("--mlm-copies", "2")):
        _, dataset = build(data_bin, *flags, *parts)
        for epoch in (1, 2):
            dataset.set_epoch(epoch)
            for index in range(0, len(dataset), 3):
                item = dataset[index]
                rows = rows_of(item)
                assert max(map(len, rows)) <= dataset.size(index) <= 16
                assert sum(map(len, rows)) <= dataset.num_tokens(index)
        assert dataset.num_tokens_vec(np.array([2, 5])).tolist() == [dataset.num_tokens(2), dataset.num_tokens(5)]


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


def test_batches_have_similar_lengths_and_are_otherwise_random(data_bin: Path) -> None:
    _, dataset = build(data_bin)
    sizes = dataset.sizes
    for dataset.sizes in (sizes, sizes * 1_000, sizes * 5_000, sizes + 2**16):
        assert dataset.ordered_indices().tolist() == np.lexsort([dataset.order, dataset.sizes]).tolist()


def test_max_tokens_counts_every_part(data_bin: Path) -> None:
    _, dataset = build(data_bin)
    with pytest.raises(UserError, match="no text is left to train on"):
        dataset.batch_by_size(dataset.ordered_indices()[:0], max_sentences=8, required_batch_size_multiple=8)
    batches = dataset.batch_by_size(dataset.ordered_indices(), max_tokens=200)
    for indices in batches:
        batch = dataset.collater([dataset[i] for i in indices])
        assert batch["net_input"]["src_tokens"].numel() + batch["views"]["tokens"].numel() <= 200
    assert len(batches) > 3


def test_an_item_over_max_tokens_is_named(data_bin: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer, dataset = build(data_bin, "--max-tokens", "30", "--batch-size", "100")
    with pytest.raises(SystemExit) as stop:
        trainer.get_train_iterator(1)
    assert stop.value.code == 2
    assert f"--max-tokens {dataset.totals.max()}" in caplog.text


def binarize(folder: Path, text: str, split: str = "train") -> Path:
    """Add a split to ``folder/bin``; the first one decides the dictionary."""
    (folder / "text").write_text(text)
    command = ("--only-source", f"--{split}pref", folder / "text", "--destdir", folder / "bin", "--workers", "1")
    if split != "train":
        command += ("--srcdict", folder / "bin" / "dict.txt")
    preprocess.main(options.get_preprocessing_parser().parse_args([str(part) for part in command]))
    return folder / "bin"


LINES = (3, 9, 1, 9, 10, 11, 0, 0, 12, 30, 31, 2, 0, 33, 5, 70_000, 8)
LIMIT = 12
MODES = ["none", "complete", "complete_doc", "eos"]


def lines_of(lengths: tuple[int, ...]) -> str:
    """One line per number of words, all different."""
    words = iter(f"{a} {b}" for a in WORDS for b in WORDS)
    return "".join(" ".join((f"{next(words)} " * length).split()[:length]) + "\n" for length in lengths)


@pytest.fixture(scope="module")
def long_bin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("long")
    for split in ("train", "valid"):
        binarize(folder, lines_of(LINES if split == "train" else LINES[-5:]), split)
    return folder / "bin"


@pytest.mark.parametrize("split", ["train", "valid"])
@pytest.mark.parametrize("mode", MODES)
def test_long_texts_are_split_and_nothing_is_lost(
    mode: str, split: str, long_bin: Path, caplog: pytest.LogCaptureFixture
) -> None:
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
    lines = [record.message for record in caplog.records if "--tokens-per-sample 12" in record.message]
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
        identity = instances(dataset[index])[0].identity
        assert identity == content_hash(np.array(samples[index]))


@pytest.mark.parametrize("limit", ["9", "64"])
@pytest.mark.parametrize("mode", MODES)
def test_texts_are_the_same_one_by_one_and_together(mode: str, limit: str, data_bin: Path) -> None:
    """In order, out of order and twice, of memory-mapped data and of other."""
    texts = build(data_bin, "--sample-break-mode", mode, "--tokens-per-sample", limit)[1].texts
    assert texts.mapped is not None
    indices = np.append(np.random.default_rng(1).permutation(len(texts)), [3, 3])
    for _ in range(2):
        rows = texts.rows(indices)
        assert [rows[row].tolist() for row in range(len(rows))] == [texts[index].tolist() for index in indices.tolist()]
        assert len(texts.rows(indices[:0])) == 0
        texts.mapped = None


def test_aligned_texts_are_the_same_one_by_one_and_together(paired_bin: Path) -> None:
    for limit in ("5", "64"):
        data = build(paired_bin, "--views", "paraphrase:original,bt", "--tokens-per-sample", limit)[1]
        for texts in data.view_maker.source.sources:
            assert texts.mapped is not None
            rows = texts.rows(np.arange(len(texts))[::-1])
            assert [rows[row].tolist() for row in range(len(rows))] == [
                texts[index].tolist() for index in range(len(texts))[::-1]
            ]


@pytest.mark.parametrize("mode", MODES[:-1])
def test_texts_that_fit_equal_those_of_masked_lm(mode: str, data_bin: Path) -> None:
    task = build(data_bin, "--sample-break-mode", mode)[0].task
    texts, stock = task.load_sentences("train"), MaskedLMTask._load_dataset_split(task, "train", 1, False)
    assert texts.sizes.tolist() == stock.sizes.tolist() and texts.sizes.dtype == stock.sizes.dtype
    assert all(torch.equal(texts[index], stock[index]) for index in range(len(stock)))


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
        assert len(dataset) == lines
        assert "cut off" in caplog.text
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


def test_blank_lines_are_dropped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = binarize(tmp_path, "one two\n\n\nthree\n\n")
    caplog.set_level(logging.INFO)
    _, dataset = build(data, "--tokens-per-sample", "12", "--augment", "none")
    assert [len(instances(dataset[index])[0].anchor) for index in range(len(dataset))] == [4, 3]
    assert "2 sentences; 3 blank lines dropped, 0 longer than --tokens-per-sample 12" in caplog.text


def test_only_blank_lines_is_an_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = binarize(tmp_path, "\n\n")
    with pytest.raises(SystemExit):
        build(data)
    assert "no sentence" in caplog.text


def test_missing_split_and_folder(data_bin: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer, _ = build(data_bin)
    with pytest.raises(SystemExit):
        trainer.task.load_dataset("tset")
    assert "tset" in caplog.text
    caplog.clear()
    with pytest.raises(SystemExit):
        build(tmp_path)
    assert "fairseq-clear prepare" in caplog.text


def test_shards_take_turns(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    for folder, seed in ((first, 1), (second, 5)):
        folder.mkdir()
        (folder / "text").write_text("\n".join(sentences(10, seed)))
    for folder, extra in ((first, ()), (second, ("--srcdict", first / "bin" / "dict.txt"))):
        command = ("--only-source", "--trainpref", folder / "text", "--destdir", folder / "bin", "--workers", "1")
        run(*tool("preprocess"), *command, *extra)
    trainer, _ = build(f"{first / 'bin'}:{second / 'bin'}")
    texts = []
    for epoch in (1, 2, 3):
        trainer.task.load_dataset("train", epoch=epoch)
        texts.append([instances(trainer.task.dataset("train")[i])[0].identity for i in range(8)])
    assert texts[0] == texts[2] != texts[1]


def test_the_stand_in_has_the_shape_of_a_batch(data_bin: Path) -> None:
    for flags in ((), ("--mlm-weight", "0"), ("--contrastive-weight", "0"), ("--mlm-copies", "2")):
        _, dataset = build(data_bin, *flags)
        real, stand_in = dataset.collater([dataset[0]]), dataset.collater([])
        assert real.keys() == stand_in.keys()
        assert real["net_input"].keys() == stand_in["net_input"].keys()
        assert (real["is_empty"], stand_in["is_empty"]) == (False, True)
        assert stand_in["ntokens"] == stand_in["nsentences"] == 0


def test_word_masks_cover_words(data_bin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fairseq_clear.data import masking
    from fairseq_clear.text.tokenizers import WhitespaceTokenizer

    monkeypatch.setattr(masking, "load_tokenizer", lambda folder: WhitespaceTokenizer())
    _, dataset = build(data_bin, "--mask-whole-words")
    assert dataset[0].targets[0].lengths == dataset[0].sources[0].lengths


def test_generators_are_independent() -> None:
    draws = {
        rng_for(*key).integers(2**62) for key in [(1, 1, 1, 1), (2, 1, 1, 1), (1, 2, 1, 1), (1, 1, 2, 1), (1, 1, 1, 2)]
    }
    assert len(draws) == 5
    assert rng_for(1, 2, 3, 4).integers(2**62) == rng_for(1, 2, 3, 4).integers(2**62)
    # With hash((seed, epoch, index)) % 1e6, indices a million apart would share a generator.
    assert len({rng_for(1, 1, index, 1).integers(2**62) for index in range(0, 10**9, 10**6)}) == 1000


def test_identity_depends_only_on_the_content() -> None:
    tokens = np.array([0, 5, 6, 2])
    assert (
        content_hash(tokens)
        == content_hash(tokens.astype(np.int32).astype(np.int64))
        == content_hash(tokens[::1].copy())
    )
    assert 0 <= content_hash(tokens) < 2**63
    assert content_hash(tokens) != content_hash(tokens[::-1])
