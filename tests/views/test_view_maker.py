"""Views are drawn one by one from (seed, epoch, index, view), also where an item gives several pairs."""

import numpy as np
import pytest

from fairseq_clear.augmentations.chain import build_augmentation
from fairseq_clear.seeding import rng_for
from fairseq_clear.views.view_maker import ViewMaker
from fairseq_clear.views.view_source import RawInstance
from tests.augmentations.cases import BOS, EOS, SYMBOLS, array

TEXT = array([BOS, *range(4, 24), EOS])


class Pairs:
    """Three pairs of one anchor and two positives, the pairs shifted by a draw."""

    positives, text_lengths = 2, np.full((5, 9), len(TEXT))

    def __call__(self, index, rng):
        shift = int(rng.integers(3))
        return [RawInstance(np.roll(TEXT, shift + pair), (TEXT, TEXT[::-1]), pair) for pair in range(3)]


def test_against_the_definition():
    chain = build_augmentation("del-word:ratio=0.5+reorder", SYMBOLS)
    maker = ViewMaker(Pairs(), chain, seed=7, max_tokens=10)
    instances, traced = maker(3, epoch=2), maker.trace(3, epoch=2)
    raw = Pairs()(3, rng_for(7, 2, 3, 0))
    texts = [text for pair in raw for text in (pair.anchor, *pair.positives)]
    expected = [chain(text, rng_for(7, 2, 3, view)).tokens for view, text in enumerate(texts, 1)]
    drawn = [view.tokens for _, views in traced for view in views]
    assert [view.tolist() for view in drawn] == [view.tolist() for view in expected]
    assert len({tuple(view) for view in drawn}) == 9
    cut = [view for instance in instances for view in (instance.anchor, *instance.positives)]
    assert [view.tolist() for view in cut] == [
        view.tolist() if len(view) <= 10 else [*view[:9], view[-1]] for view in expected
    ]
    assert any(len(view) > 10 for view in expected)
    assert [instance.text_length for instance in instances] == [3 * len(TEXT)] * 3


@pytest.mark.parametrize("other", [(8, 2, 3), (7, 1, 3), (7, 2, 4)])
def test_another_seed_epoch_or_index_draws_others(other):
    seed, epoch, index = other
    chain = build_augmentation("del-word:ratio=0.5", SYMBOLS)
    makers = ViewMaker(Pairs(), chain, 7, 30), ViewMaker(Pairs(), chain, seed, 30)
    views = [makers[0](3, 2)[0].positives[0].tolist(), makers[1](index, epoch)[0].positives[0].tolist()]
    assert views[0] != views[1]
