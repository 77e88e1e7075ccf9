"""Aligned texts: line for line, blanks falling back, mistakes named."""

import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from fairseq_clear.errors import UserError
from fairseq_clear.objectives.exclusion import Exclusion
from fairseq_clear.seeding import Draws
from fairseq_clear.text.sentence_dataset import SentenceDataset
from fairseq_clear.views.paraphrase_views import AlignedSentences, Paraphrases, WithHardNegatives, aligned_sentences
from fairseq_clear.views.view_source import Pairs
from fairseq_clear.views.view_table import count_hashes
from tests.training import build
from tests.views.cases import content_hash, pairs_of

BOS, EOS = 0, 2


class Lines(list[torch.Tensor]):
    """Lines of ids as fairseq stores them, ``</s>`` at the end, blank lines being it alone."""

    def __init__(self, lines: list[list[int]]) -> None:
        super().__init__(torch.tensor([*line, EOS]) for line in lines)
        self.sizes = np.array([len(line) + 1 for line in lines])


TEXT = Lines([[10, 11], [], [12, 13, 14], [15]])
OTHER = Lines([[20], [21, 22], [], [23, 24, 25, 26, 27, 28]])


def sentences(prefix: str | None = None) -> SentenceDataset:
    return SentenceDataset(TEXT, BOS, EOS, max_tokens=6, name="text", prefix=prefix)


def test_lines_stay_aligned_over_blank_ones_and_a_blank_paraphrase_falls_back() -> None:
    """Line 1 of the text is blank: its partner is never read."""
    texts = sentences()
    aligned = AlignedSentences(texts, OTHER, "other")
    assert aligned.sizes.tolist() == [3, 5, 6] and aligned.is_blank.tolist() == [False, True, False]
    source = Paraphrases(texts, lambda name: aligned, ["original", "de"])
    pairs = [pairs_of(source, n)[0] for n in range(3)]
    assert [pair.anchor.tolist() for pair in pairs] == [[BOS, 10, 11, EOS], [BOS, 12, 13, 14, EOS], [BOS, 15, EOS]]
    assert [pair.positives[0].tolist() for pair in pairs] == [
        [BOS, 20, EOS], [BOS, 12, 13, 14, EOS], [BOS, 23, 24, 25, 26, EOS]
    ]  # fmt: skip
    assert [pair.fell_back for pair in pairs] == [0, 1, 0]
    assert source.text_lengths.tolist() == [[4, 3], [5, 5], [3, 6]]


def test_train1_of_aligned_texts_is_read_too(paired_bin: Path, tmp_path: Path) -> None:
    data = Path(shutil.copytree(paired_bin, tmp_path / "bin"))
    for path in (*data.glob("train.*"), *data.glob("paraphrase/bt/train.*")):
        shutil.copyfile(path, path.with_name(path.name.replace("train", "train1")))
    trainer, alone = build(data, "--views", "paraphrase:original,bt")
    trainer.task.load_dataset("train", combine=True)
    both = trainer.task.dataset("train")
    assert len(both) == 2 * len(alone)
    for n in (3, 4):
        pairs = [some.view_maker.pairs(np.array([m]), 1) for some, m in ((alone, n), (both, n), (both, n + len(alone)))]
        assert pairs[0].texts.tokens.tolist() == pairs[1].texts.tokens.tolist() == pairs[2].texts.tokens.tolist()


def excluded(mine: list[list[int]], theirs: list[list[int]]) -> list[list[int]]:
    """Which texts are not negatives of which."""
    rules = Exclusion(identities=(torch.tensor(mine), torch.tensor(theirs)))
    return rules.block(slice(0, len(mine)), slice(0, len(theirs)), torch.device("cpu")).int().tolist()


def test_the_identity_is_that_of_the_original() -> None:
    """So that a back-translation of a text is no negative of another one of it."""
    texts = sentences()
    makers = {name: AlignedSentences(texts, lines, name) for name, lines in (("de", OTHER), ("zh", Lines([[30]] * 4)))}
    source = Paraphrases(texts, makers.__getitem__, ["de", "zh"])
    (pair,) = pairs_of(source, 0)
    assert (pair.anchor.tolist(), pair.positives[0].tolist()) == ([BOS, 20, EOS], [BOS, 30, EOS])
    rows = (texts[0].numpy(), pair.anchor, pair.positives[0])
    assert pair.identity == [content_hash(row) for row in rows]
    to_original = pairs_of(Paraphrases(texts, makers.__getitem__, ["original", "de"]), 0)[0].identity
    assert to_original == [content_hash(row) for row in rows[:2]]
    assert count_hashes("paraphrase:de,zh") == 3 and count_hashes("paraphrase:original,de") == 2
    assert Paraphrases(texts, makers.__getitem__, ["original", "de", "zh"]).positives == 2


def test_pairs_with_one_query_or_one_passage_are_not_negatives_of_each_other() -> None:
    passages = SentenceDataset(Lines([[10], [11], [12], [10]]), BOS, EOS, max_tokens=6, name="text")
    lines = {"query": [[20], [20], [21], [12]], "negative": [[11], [10], [30], [12]]}
    aligned = {name: AlignedSentences(passages, Lines(some), name) for name, some in lines.items()}

    def of_pairs(*names: str) -> Pairs:
        source = Paraphrases(passages, aligned.__getitem__, names)
        hard = WithHardNegatives(source, [aligned["negative"]], passages)
        return hard.pairs(np.arange(4), Draws.of(1, 1, np.arange(4), 0))

    pairs = of_pairs("query", "original")
    identity, negatives = pairs.identity.tolist(), pairs.negative_identity.tolist()
    # texts 0 and 1 have one query, 0 and 3 one passage; the query of 3 is the passage of 2
    assert excluded(identity, identity) == [[1, 1, 0, 1], [1, 1, 0, 0], [0, 0, 1, 1], [1, 0, 1, 1]]
    # the hard negative of 0 is the passage of 1, that of 1 the passage of 0 and 3, that of 3 its own query
    assert excluded(identity, negatives) == [[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1], [0, 1, 0, 1]]
    swapped = of_pairs("original", "query").identity.tolist()
    assert excluded(swapped, identity) == excluded(identity, identity)


def test_several_hard_negatives_are_in_the_order_of_their_names() -> None:
    texts = sentences()
    other, longer = AlignedSentences(texts, OTHER, "other"), AlignedSentences(texts, Lines([[30, 31]] * 4), "longer")
    source = WithHardNegatives(Paraphrases(texts, lambda name: other, ["original", "de"]), [longer, other], texts)
    assert source.negatives == 2 and source.text_lengths.shape == (3, 4)
    (pair,) = pairs_of(source, 2)
    assert [row.tolist() for row in pair.negatives] == [[BOS, 30, 31, EOS], [BOS, 23, 24, 25, 26, EOS]]
    assert source.text_lengths[2].tolist() == [len(texts[2]), 6, 4, 6]
    (blank,) = pairs_of(source, 1)  # a duplicate of its own text, so no negative of its views
    assert blank.negatives[1].tolist() == texts[1].tolist() and blank.fell_back == 2


def test_folders_and_mistakes(tmp_path: Path) -> None:
    (tmp_path / "paraphrase" / "de").mkdir(parents=True)
    texts = sentences(str(tmp_path / "train"))

    def named(*names: str) -> object:
        return Paraphrases(texts, lambda name: AlignedSentences(texts, OTHER, name), names)

    def read(texts: object, name: str) -> object:
        return aligned_sentences(texts, name, lambda path: None, flag="--views paraphrase")

    for make, said in (
        *((partial(named, *names), "give two or more different texts") for names in ([], ["original"], ["de", "de"])),
        (lambda: AlignedSentences(texts, Lines([[1]] * 5), "x"), "has 5 lines, but the text 4"),
        (lambda: read(texts, "zh"), "zh/train does not exist; there are original, de"),
        (lambda: read(object(), "de"), "--sample-break-mode eos"),
    ):
        with pytest.raises(UserError, match=said):
            make()
    asked: list[str] = []  # a folder elsewhere
    aligned_sentences(texts, str(tmp_path), lambda path: asked.append(path) or OTHER, flag="--hard-negatives")
    assert asked == [str(tmp_path / "train")]


@pytest.mark.parametrize(("views", "negatives"), [("paraphrase:original,bt", "other"), ("same", "other,bt")])
def test_through_the_task(views: str, negatives: str, paired_bin: Path) -> None:
    flags = ("--views", views, "--hard-negatives", negatives, "--augment", "none", "--mlm-weight", "0")
    trainer, dataset = build(paired_bin, *flags)
    sample = dataset.collater([dataset[index] for index in range(5)])  # every fifth line is blank in bt
    each = 2 + len(negatives.split(","))
    assert len(sample["views"]["tokens"]) == 5 * each and len(sample["views"]["negative_identity"]) == 5 * (each - 2)
    assert sample["views"]["counts"]["fell_back"] == 1
    _, size, log = trainer.get_criterion()(trainer.get_model(), sample)
    # 10 queries see 8 other views and the hard negatives that are not blank
    blank = 10 * ("bt" in negatives)
    assert size == 10 and log["negatives"] == 10 * (8 + 5 * (each - 2)) - blank
    empty = dataset.collater([])
    assert len(empty["views"]["tokens"]) == each
    assert trainer.get_criterion()(trainer.get_model(), empty)[1] == 0
