"""Aligned texts: line for line, blanks falling back, mistakes named."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fairseq_clear.errors import UserError
from fairseq_clear.text.documents import content_hash
from fairseq_clear.text.sentence_dataset import SentenceDataset
from fairseq_clear.views.paraphrase_views import AlignedSentences, Paraphrases, WithHardNegatives, aligned_sentences
from tests.training import build
from tests.views.cases import pairs_of

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


def test_lines_stay_aligned_over_blank_ones() -> None:
    aligned = AlignedSentences(sentences(), OTHER, "other")
    assert len(aligned) == 3  # line 1 of the text is blank: its partner is never read
    assert [aligned[n].tolist() for n in range(3)] == [[BOS, 20, EOS], [], [BOS, 23, 24, 25, 26, EOS]]
    assert aligned.sizes.tolist() == [3, 0, 6]


def test_a_blank_paraphrase_falls_back_and_is_counted() -> None:
    texts = sentences()
    source = Paraphrases(texts, lambda name: AlignedSentences(texts, OTHER, name), ["original", "de"])
    pairs = [pairs_of(source, n)[0] for n in range(3)]
    assert [pair.anchor.tolist() for pair in pairs] == [[BOS, 10, 11, EOS], [BOS, 12, 13, 14, EOS], [BOS, 15, EOS]]
    assert [pair.positives[0].tolist() for pair in pairs] == [
        [BOS, 20, EOS], [BOS, 12, 13, 14, EOS], [BOS, 23, 24, 25, 26, EOS]
    ]  # fmt: skip
    assert [pair.fell_back for pair in pairs] == [0, 1, 0]
    assert source.text_lengths.tolist() == [[4, 3], [5, 5], [3, 6]]


def test_the_identity_is_that_of_the_original() -> None:
    """So that a back-translation of a text is no negative of another one of it."""
    texts = sentences()
    makers = {name: AlignedSentences(texts, lines, name) for name, lines in (("de", OTHER), ("zh", Lines([[30]] * 4)))}
    source = Paraphrases(texts, makers.__getitem__, ["de", "zh"])
    (pair,) = pairs_of(source, 0)
    assert (pair.anchor.tolist(), pair.positives[0].tolist()) == ([BOS, 20, EOS], [BOS, 30, EOS])
    assert pair.identity == content_hash(texts[0].numpy())
    assert Paraphrases(texts, makers.__getitem__, ["original", "de", "zh"]).positives == 2


def test_hard_negatives_follow_the_positives() -> None:
    texts = sentences()
    other = AlignedSentences(texts, OTHER, "other")
    source = WithHardNegatives(Paraphrases(texts, lambda name: other, ["original", "de"]), [other], texts)
    assert source.negatives == 1
    (pair,) = pairs_of(source, 2)
    assert [row.tolist() for row in pair.negatives] == [[BOS, 23, 24, 25, 26, EOS]]
    (blank,) = pairs_of(source, 1)
    assert blank.negatives[0].tolist() == texts[1].tolist()  # a duplicate of its own text, so no negative of its views
    assert source.text_lengths.shape == (3, 3)


def test_several_hard_negatives_are_in_the_order_of_their_names() -> None:
    texts = sentences()
    other, longer = AlignedSentences(texts, OTHER, "other"), AlignedSentences(texts, Lines([[30, 31]] * 4), "longer")
    source = WithHardNegatives(Paraphrases(texts, lambda name: other, ["original", "de"]), [longer, other], texts)
    assert source.negatives == 2 and source.text_lengths.shape == (3, 4)
    (pair,) = pairs_of(source, 2)
    assert [row.tolist() for row in pair.negatives] == [[BOS, 30, 31, EOS], [BOS, 23, 24, 25, 26, EOS]]
    assert source.text_lengths[2].tolist() == [len(texts[2]), 6, 4, 6]
    (blank,) = pairs_of(source, 1)
    assert blank.negatives[1].tolist() == texts[1].tolist() and blank.fell_back == 2


@pytest.mark.parametrize("names", [[], ["original"], ["de", "de"]])
def test_too_few_or_equal_names(names: list[str]) -> None:
    with pytest.raises(UserError, match="give two or more different texts"):
        Paraphrases(sentences(), lambda name: AlignedSentences(sentences(), OTHER, name), names)


def test_unequal_line_counts_name_both(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has 5 lines, but the text 4"):
        AlignedSentences(sentences(), Lines([[1]] * 5), "x")


def test_a_missing_name_lists_those_there_are(tmp_path: Path) -> None:
    (tmp_path / "paraphrase" / "de").mkdir(parents=True)
    texts = sentences(str(tmp_path / "train"))
    with pytest.raises(UserError, match=r"zh/train does not exist; there are original, de"):
        aligned_sentences(texts, "zh", lambda path: None, flag="--views paraphrase")


def test_texts_that_are_no_lines() -> None:
    with pytest.raises(UserError, match="--sample-break-mode eos"):
        aligned_sentences(object(), "de", lambda path: None, flag="--views paraphrase")


def test_a_folder_elsewhere(tmp_path: Path) -> None:
    texts = sentences(str(tmp_path / "here" / "train"))
    asked: list[str] = []
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    aligned_sentences(texts, str(elsewhere), lambda path: asked.append(path) or OTHER, flag="--hard-negatives")
    assert asked == [str(elsewhere / "train")]


def batch(dataset: Any, *indices: int) -> Any:
    return dataset.collater([dataset[index] for index in indices])


def test_through_the_task(paired_bin: Path) -> None:
    flags = ("--views", "paraphrase:original,bt", "--hard-negatives", "other", "--augment", "none", "--mlm-weight", "0")
    trainer, dataset = build(paired_bin, *flags)
    sample = batch(dataset, *range(5))
    views = sample["views"]
    assert views["tokens"].shape[0] == 15
    assert views["negative_identity"].shape == (5,)
    assert views["fell_back"] == 1  # every fifth line is blank in bt
    loss, size, log = trainer.get_criterion()(trainer.get_model(), sample)
    assert size == 10
    # 10 queries see 8 other views and 5 hard negatives, none of which is a text of the batch
    assert log["negatives"] == 10 * 13
    empty = dataset.collater([])
    assert empty["views"]["tokens"].shape[0] == 3
    assert trainer.get_criterion()(trainer.get_model(), empty)[1] == 0


def test_two_hard_negatives_through_the_task(paired_bin: Path) -> None:
    flags = ("--views", "same", "--hard-negatives", "other,bt", "--augment", "none", "--mlm-weight", "0")
    trainer, dataset = build(paired_bin, *flags)
    sample = batch(dataset, *range(4))
    assert sample["views"]["tokens"].shape[0] == 16 and sample["views"]["negative_identity"].shape == (8,)
    _, size, log = trainer.get_criterion()(trainer.get_model(), sample)
    assert size == 8 and log["negatives"] == 8 * (6 + 8)
    assert dataset.collater([])["views"]["tokens"].shape[0] == 4
    with pytest.raises(SystemExit):
        build(paired_bin, *flags[:3], "other,absent", *flags[4:])


def test_hard_negatives_change_the_loss_as_the_equation_says(paired_bin: Path) -> None:
    """Both directions, whose candidates are all views and the hard negatives: a softmax by hand."""
    flags = ("--views", "paraphrase:original,bt", "--hard-negatives", "other", "--augment", "none", "--mlm-weight", "0")
    trainer, dataset = build(paired_bin, *flags, "--temperature", "0.3")
    model = trainer.get_model().eval()
    sample = batch(dataset, 0, 1, 2)
    with torch.no_grad():
        loss, _, _ = trainer.get_criterion()(model, sample)
        z = torch.nn.functional.normalize(model(views=sample["views"]["tokens"])[1]["projections"], dim=-1).double()
    expected = 0.0
    for query in range(6):
        positive = (query + 3) % 6
        candidates = [k for k in range(9) if k != query]
        logits = torch.stack([z[query] @ z[k] / 0.3 for k in candidates])
        expected += float(torch.logsumexp(logits, 0) - z[query] @ z[positive] / 0.3)
    assert loss.item() == pytest.approx(expected, rel=1e-4)
