"""A small vocabulary with a synonym table, texts over it, and specs, for the tests of the augmentations."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st
from scipy.stats import chisquare

from fairseq_clear.augmentations import AUGMENTATIONS, Symbols, SynonymTable
from fairseq_clear.seeding import Draws
from fairseq_clear.spec import Step, format_spec, format_value
from fairseq_clear.tokens import Ragged

BOS, PAD, EOS, UNK = range(4)
STARTS, INNER = range(4, 14), range(14, 24)
VOCABULARY = 24
MASK, DELETE = VOCABULARY, VOCABULARY + 1

ROWS = {
    (4,): [(5,)],
    (5,): [(4, 14, 15), (6, 6), (7, 20)],
    (4, 14): [(6, 15, 16), (7,), (4, 15)],
    (8, 15, 16): [(9,), (9, 15, 16, 17)],
    (10,): [(10, 14)],
    (11, 14): [(11,)],
}
IS_WORD_START = np.array([True, True, True, False] + [piece in STARTS for piece in range(4, VOCABULARY)])
TABLE = SynonymTable.build(ROWS, IS_WORD_START)
SYMBOLS = Symbols(bos=BOS, eos=EOS, pad=PAD, delete=DELETE, mask=MASK, synonyms=TABLE)

PIECES = st.sampled_from([EOS, PAD, UNK, MASK, 4, 4, 5, 8, 10, 11, *STARTS, 14, 14, 15, 16, *INNER])
WORDS = st.lists(st.sampled_from(list(ROWS)), min_size=1, max_size=30)
CONTENTS = st.lists(PIECES, min_size=1, max_size=12) | WORDS.map(lambda words: [p for word in words for p in word])
SEEDS = st.integers(0, 2**32)


def array(tokens):
    """Tokens as a read-only int64 array, so that a function that writes to its argument fails."""
    tokens = np.array(tokens, np.int64)
    tokens.setflags(write=False)
    return tokens


NEIGHBOURS = array([4, 5, 8, 15, 16, 10, 11, 14]), array([EOS, 10])


def row(tokens, rng, made_of):
    """Call ``made_of(texts, draws)`` with a text between two others; return its tokens, its source, and what else there is."""
    texts = Ragged.of([NEIGHBOURS[0], array(tokens), NEIGHBOURS[1]])
    draws = Draws(rng.integers(2**64, size=3, dtype=np.uint64))
    views, source, *counts = made_of(texts, draws)
    part = source[views.offsets[1] : views.offsets[2]]
    assert len(views) == 3 and len(source) == len(views.tokens) == views.offsets[-1]
    return views[1], np.where(part < 0, -1, part - len(NEIGHBOURS[0])), *(int(count[1]) for count in counts)


def one(function):
    """A function of a batch as one of a single text, ``f(tokens, rng, **knobs) -> (view, source)``."""
    return lambda tokens, rng, **knobs: row(tokens, rng, lambda texts, draws: function(texts, draws, **knobs))


def are_alike(drawn, possible):
    """Whether exactly these were drawn, all about equally often; ``drawn`` counts them."""
    return set(drawn) == set(possible) and chisquare([drawn[one] for one in possible]).pvalue > 1e-3


class View(NamedTuple):
    """What a chain makes of one text."""

    tokens: np.ndarray
    source: np.ndarray
    words: int
    substituted: int


def make_view(chain, tokens, rng):
    return View(*row(tokens, rng, chain))


def share_of(name):
    """The knob that sets how much of a text an augmentation changes; 0 changes nothing."""
    return next(knob for knob in ("ratio", "alpha", "length") if knob in AUGMENTATIONS[name].knobs)


@st.composite
def knob_values(draw, name):
    values = {}
    for knob, described in AUGMENTATIONS[name].knobs.items():
        if described.choices:
            drawn = draw(st.lists(st.sampled_from(described.choices), min_size=1, max_size=4, unique=True))
            values[knob] = "-".join(drawn) if described.several else drawn[0]
        elif described.kind is int:
            values[knob] = draw(st.integers(int(described.minimum), 6))
        else:
            values[knob] = draw(st.integers(0, 20)) / 20
    return values


@st.composite
def steps(draw):
    name = draw(st.sampled_from(list(AUGMENTATIONS)))
    knobs = draw(knob_values(name))
    return Step(name, (), {knob: format_value(value) for knob, value in knobs.items()})


CHAINS = st.lists(steps(), max_size=3).map(tuple)
SPECS = st.lists(CHAINS, min_size=1, max_size=2).map(tuple).map(format_spec)


def every_row(table):
    """The rows of a synonym table as a dictionary again, read one by one."""

    def parts(items, offsets):
        return [items[start:end] for start, end in pairwise(offsets)]

    words = map(tuple, parts(table.word_pieces.tolist(), table.word_offsets))
    alternatives = list(map(tuple, parts(table.alternative_pieces.tolist(), table.alternative_offsets)))
    return dict(zip(words, parts(alternatives, table.row_offsets), strict=True))


def split_words(tokens):
    """Return the (start, end) of each word, found token by token; the oracle of SynonymTable.word_starts."""
    specials = {BOS, PAD, EOS, MASK, DELETE}
    words = []
    for place, token in enumerate(tokens):
        previous = tokens[place - 1] if place else EOS
        if previous in specials or token in specials or token in STARTS:
            words.append([place, place + 1])
        else:
            words[-1][1] += 1
    return [(start, end) for start, end in words]


def is_word(tokens, start):
    return tokens[start] not in {BOS, PAD, EOS, MASK, DELETE}
