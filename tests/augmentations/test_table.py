"""What every entry of AUGMENTATIONS keeps by itself; test_chain has the contract of views."""

import numpy as np
import pytest

from fairseq_clear.augmentations import AUGMENTATIONS
from fairseq_clear.augmentations.base import per_text
from fairseq_clear.seeding import Draws
from fairseq_clear.tokens import Ragged
from tests.augmentations.cases import SYMBOLS, array, one, share_of

LONG = array([4 + place % 20 for place in range(200)])


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_defaults_change_a_long_text_differently_for_each_seed(name):
    defaults = {knob: described.default for knob, described in AUGMENTATIONS[name].knobs.items()}
    function = one(AUGMENTATIONS[name].function)
    drawn = (function(LONG, np.random.default_rng(seed), symbols=SYMBOLS, **defaults)[0] for seed in range(5))
    results = {tuple(tokens) for tokens in drawn}
    assert len(results) == 5 and tuple(LONG) not in results


@pytest.mark.parametrize("name", [name for name, entry in AUGMENTATIONS.items() if entry.bound])
def test_bounds_never_fall_as_texts_grow(name):
    knobs = {knob: described.default for knob, described in AUGMENTATIONS[name].knobs.items()} | {share_of(name): 0.35}
    bounds = [AUGMENTATIONS[name].bound(length, knobs) for length in range(600)]
    assert bounds == sorted(bounds)


def test_a_function_of_one_text_is_applied_to_each_text_of_a_batch():
    """The source counts from the beginning of the batch, empty texts stay empty, and each text has draws of its own."""

    def first_and_new(tokens, rng, *, symbols, number):
        return np.array([tokens[0], number, rng.integers(1 << 40)]), np.array([0, -1, -1])

    texts = Ragged.of([np.array(row, np.int64) for row in ([], [5, 6], [7], [])])
    draws = Draws.of(1, 1, np.arange(4), 1)
    views, source = per_text(first_and_new)(texts, draws, symbols=SYMBOLS, number=9)
    assert views.lengths.tolist() == [0, 3, 3, 0]
    assert views[1][:2].tolist() == [5, 9] and views[2][:2].tolist() == [7, 9] and views[1][2] != views[2][2]
    assert source.tolist() == [0, -1, -1, 2, -1, -1]
    alone, _ = per_text(first_and_new)(
        texts.select(np.array([2])), draws.select(np.array([2])), symbols=SYMBOLS, number=9
    )
    assert alone[0].tolist() == views[2].tolist()
