"""Types shared by augmentations: symbols, entries of the table, rounding."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from fairseq_clear.augmentations.synonym_table import SynonymTable
from fairseq_clear.spec import Knob, KnobValue
from fairseq_clear.tokens import Tokens


@dataclass(frozen=True)
class Symbols:
    """Ids of special symbols, and the synonym table.

    ``delete`` is ``<del>``, ``mask`` is ``<mask>``. ``synonyms`` says where words begin and holds their synonyms. It may be
    None, or have no rows, for augmentations that do not need it (see ``Augmentation.needs_words`` and ``needs_synonyms``).
    """

    bos: int
    eos: int
    pad: int
    delete: int
    unk: int
    mask: int
    synonyms: SynonymTable | None = None


def keep_length(length: int, knobs: Mapping[str, KnobValue]) -> int:
    """The bound of an augmentation that never makes a text longer."""
    return length


def never(knobs: Mapping[str, KnobValue]) -> bool:
    """The ``needs_synonyms`` of an augmentation that draws none."""
    return False


def always(knobs: Mapping[str, KnobValue]) -> bool:
    """The ``needs_synonyms`` of an augmentation that always draws synonyms."""
    return True


@dataclass(frozen=True)
class Augmentation:
    """An entry of the table of augmentations.

    Attributes:
        function: ``f(tokens, rng, *, symbols, **knobs) -> (tokens, source)``. Tokens are (n,) int64, n >= 1, without
            the leading ``<s>`` and the final ``</s>``; the result is (m,) with m >= 1, and ``source`` (m,) holds the
            input position that each output token comes from, -1 where it is new. The input is never modified; all
            randomness comes from ``rng``.
        summary: what it does, in one sentence.
        paper: the paper that it comes from.
        knobs: settings that a spec may give.
        needs_words: whether it needs ``symbols.synonyms``, which says where words begin.
        needs_synonyms: whether, with these knobs, that table must also hold synonyms.
        bound: maximum m for n input tokens and these knobs; it does not decrease as n grows.
    """

    function: Callable[..., tuple[Tokens, Tokens]]
    summary: str
    paper: str
    knobs: Mapping[str, Knob] = field(default_factory=dict)
    needs_words: bool = False
    needs_synonyms: Callable[[Mapping[str, KnobValue]], bool] = never
    bound: Callable[[int, Mapping[str, KnobValue]], int] = keep_length


def round_randomly(expected: float, rng: np.random.Generator) -> int:
    """Round ``expected`` down or up at random, so that its mean is kept: floor(expected + u), u uniform in [0, 1).

    Rounding to the nearest integer would leave texts shorter than 1 / (2 * ratio) unchanged.
    """
    return math.floor(expected + rng.random())
