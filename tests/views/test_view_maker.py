"""Views are drawn from (seed, epoch, index, view), whatever else is in the batch, also where an item gives several pairs."""

import numpy as np
import pytest

from fairseq_clear.augmentations.chain import build_augmentation
from fairseq_clear.seeding import Draws
from fairseq_clear.text.documents import content_hashes
from fairseq_clear.tokens import Ragged
from fairseq_clear.views.view_maker import ViewMaker
from fairseq_clear.views.view_source import Pairs, ViewSource
from tests.augmentations.cases import BOS, EOS, SYMBOLS, array

TEXT = array([BOS, *range(4, 24), EOS])


class ShiftedPairs(ViewSource):
    """Three pairs of one anchor and two positives, the pairs shifted by a draw."""

    positives, anchors, text_lengths = 2, 3, np.full((5, 9), len(TEXT))

    def pairs(self, indices, draws):
        shifts = [int(3 * u) + pair for u in draws.per_row(5) for pair in range(3)]
        texts = [text for shift in shifts for text in (np.roll(TEXT, shift), TEXT, TEXT[::-1])]
        return Pairs(Ragged.of(texts), np.tile(np.arange(3), len(indices)))


def rows(texts):
    return [texts[row].tolist() for row in range(len(texts))]


def test_against_the_definition():
    chain = build_augmentation("del-word:ratio=0.5+reorder", SYMBOLS)
    made = ViewMaker(ShiftedPairs(), chain, seed=7, max_tokens=10)(np.array([4, 3, 0]), 2)
    raw = ShiftedPairs().pairs(np.array([3]), Draws.of(7, 2, np.array([3]), 0).fold(0)).texts
    texts = [raw[row] for row in range(9)]
    assert rows(made.pairs.texts)[9:18] == rows(raw)
    expected = []
    for view, text in enumerate(texts, 1):
        expected += rows(chain(Ragged.of([text]), Draws.of(7, 2, np.array([3]), view)).views)
    assert rows(made.augmented.views)[9:18] == expected and len(set(map(tuple, expected))) == 9
    cut = [view if len(view) <= 10 else [*view[:9], view[-1]] for view in expected]
    assert rows(made.views)[9:18] == cut and cut != expected
    assert made.pairs.identity.tolist() == [0, 1, 2] * 3
    assert len(set(made.draw.tolist())) == 9 and 0 <= made.draw.min() <= made.draw.max() < 1


def test_a_view_depends_on_nothing_else_in_the_batch():
    chain = build_augmentation("del-span+reorder/subs/eda:alpha=0.5/slice", SYMBOLS)
    maker = ViewMaker(ShiftedPairs(), chain, seed=7, max_tokens=30)
    alone = {index: maker(np.array([index]), 2) for index in range(5)}
    for batch in ([0, 1, 2, 3, 4], [4, 2, 0], [3, 3, 1], [2]):
        made = maker(np.array(batch), 2)
        for place, index in enumerate(batch):
            assert rows(made.views)[9 * place : 9 * place + 9] == rows(alone[index].views)
            assert made.draw[3 * place : 3 * place + 3].tolist() == alone[index].draw.tolist()
    epochs = maker(np.array([2, 2, 0]), np.array([2, 5, 2]))
    assert rows(epochs.views)[:9] == rows(alone[2].views) and rows(epochs.views)[18:] == rows(alone[0].views)
    assert rows(epochs.views)[9:18] == rows(maker(np.array([2]), 5).views) != rows(alone[2].views)


class OneItem(ViewSource):
    """Two pairs of an item, each with a positive and a hard negative."""

    negatives, anchors = 1, 2

    def __call__(self, index, rng):
        drawn = int(rng.integers(1 << 40))
        return [(10 * index + n, [np.array([index, role, drawn]) for role in range(3)]) for n in range(2)]


def test_a_source_of_one_item_makes_the_pairs_of_a_batch():
    items = np.array([4, 7])
    pairs = OneItem().pairs(items, Draws.of(1, 1, items, 0))
    assert pairs.identity.tolist() == [40, 41, 70, 71] and pairs.each == 3
    rows = [pairs.texts[row] for row in range(12)]
    assert [row[:2].tolist() for row in rows] == [[item, role] for item in (4, 4, 7, 7) for role in range(3)]
    assert pairs.negative_identity.tolist() == content_hashes(pairs.texts.select(np.array([2, 5, 8, 11]))).tolist()
    assert rows[0][2] != rows[6][2], "items have draws of their own"
    alone = OneItem().pairs(items[1:], Draws.of(1, 1, items[1:], 0))
    assert [row.tolist() for row in rows[6:]] == [alone.texts[row].tolist() for row in range(6)]

    source = OneItem()  # which must make as many texts as it says
    for source.positives, source.anchors in ((2, 2), (1, 1), (1, 3)):
        with pytest.raises(ValueError, match=r"OneItem made pairs of \[3, 3\] texts of item 4; .* it makes \["):
            source.pairs(items, Draws.of(1, 1, items, 0))


def test_the_longest_views_have_their_prompts() -> None:
    chain, prompts = build_augmentation("none", SYMBOLS), (array([5, 6, 7]), array([8]))
    longest = ViewMaker(ShiftedPairs(), chain, 7, 99, prompts=prompts).longest()
    assert (longest - ShiftedPairs.text_lengths).tolist() == [[3, 1, 1] * 3] * 5
