"""Types shared by augmentations: symbols, entries of the table, rounding."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fairseq_clear.augmentations.synonym_table import SynonymTable
from fairseq_clear.spec import Knob, KnobValue

Tokens = npt.NDArray[np.int64]
"""Token ids, or positions of tokens: (n,) int64."""


@dataclass(frozen=True)
class Symbols:
    """Ids of special symbols. ``delete`` is ``<del>``, ``mask`` is ``<mask>``; ``synonyms`` says where words
    begin and holds their synonyms; those augmentations need it that say so, and some of them no rows in it.
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
        summary: what it does, one sentence.
        paper: where it comes from.
        knobs: what the spec may set.
        needs_words: whether ``symbols.synonyms`` must be there, to say where words begin.
        needs_synonyms: whether, with these knobs, it must hold synonyms as well.
        bound: greatest m for n input tokens and these knobs; never falls as n grows.
    """

    function: Callable[..., tuple[Tokens, Tokens]]
    summary: str
    paper: str
    knobs: Mapping[str, Knob] = field(default_factory=dict)
    needs_words: bool = False
    needs_synonyms: Callable[[Mapping[str, KnobValue]], bool] = never
    bound: Callable[[int, Mapping[str, KnobValue]], int] = keep_length


def round_randomly(expected: float, rng: np.random.Generator) -> int:
    """``expected``, rounded down or up so that its mean is kept: floor(expected + u), u uniform in [0, 1).

    A fixed rounding would leave texts shorter than 1 / ratio untouched, or change them far more than the ratio says.
    """
    return math.floor(expected + rng.random())
