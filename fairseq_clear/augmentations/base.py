"""Types shared by augmentations: symbols, entries of the table, rounding; the adapter of functions of one text."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fairseq_clear.augmentations.synonym_table import SynonymTable
from fairseq_clear.seeding import Draws, Floats, rng_for
from fairseq_clear.spec import Knob, KnobValue
from fairseq_clear.tokens import Ragged, Tokens, place_rows, ranges


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

    @functools.cached_property
    def are_special(self) -> npt.NDArray[np.bool_]:
        """(vocabulary of the table + 1,) whether an id is a word of its own; the last entry is for ids beyond."""
        assert self.synonyms is not None
        size = len(self.synonyms.is_word_start)
        special = np.zeros(size + 1, np.bool_)
        special[np.minimum([self.bos, self.eos, self.pad, self.delete, size], size)] = True
        return special

    @functools.cached_property
    def begin_words(self) -> npt.NDArray[np.bool_]:
        """(vocabulary of the table + 1,) whether a word begins at an id, whatever is before it."""
        assert self.synonyms is not None
        return np.append(self.synonyms.is_word_start, True) | self.are_special


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
        function: ``f(texts, draws, *, symbols, **knobs) -> (views, source)``. ``texts`` is a batch of R texts, without the
            leading ``<s>`` and the final ``</s>``; rows may be empty and stay so. ``views`` are R rows, none of which is empty
            if its text is not. ``source`` has, for each token of the views, the position in ``texts.tokens`` that it comes
            from, -1 where it is new. The input is never modified; all randomness comes from ``draws``, so that a view does not
            depend on the batch. ``per_text`` makes such a function of one that takes a single text.
        summary: what it does, in one sentence.
        paper: the paper that it comes from.
        knobs: settings that a spec may give.
        needs_words: whether it needs ``symbols.synonyms``, which says where words begin.
        needs_synonyms: whether, with these knobs, that table must also hold synonyms.
        bound: maximum m for n input tokens and these knobs; it does not decrease as n grows.
        writes_deleted: whether views may hold ``<del>``, for which the encoder then has a row.
    """

    function: Callable[..., tuple[Ragged, Tokens]]
    summary: str
    paper: str
    knobs: Mapping[str, Knob] = field(default_factory=dict)
    needs_words: bool = False
    needs_synonyms: Callable[[Mapping[str, KnobValue]], bool] = never
    bound: Callable[[int, Mapping[str, KnobValue]], int] = keep_length
    writes_deleted: bool = True


def round_randomly(expected: Floats, draws: Floats) -> Tokens:
    """Round ``expected`` (R,) down or up at random, so that its mean is kept: floor(expected + u), u uniform in [0, 1).

    Rounding to the nearest integer would leave texts shorter than 1 / (2 * ratio) unchanged.
    """
    return np.floor(expected + draws).astype(np.int64)


def per_text(function: Callable[..., tuple[Tokens, Tokens]]) -> Callable[..., tuple[Ragged, Tokens]]:
    """Adapt ``f(tokens, rng, *, symbols, **knobs) -> (view, source)``, which takes one text, to a batch.

    ``tokens`` is (n,) int64 with n >= 1, ``view`` and ``source`` are (m,) with m >= 1; ``source`` counts from the beginning of
    the text, and ``rng`` is a numpy generator of this view.
    """

    @functools.wraps(function)
    def apply(texts: Ragged, draws: Draws, *, symbols: Symbols, **knobs: KnobValue) -> tuple[Ragged, Tokens]:
        views, sources = [], []
        for row, (key, first) in enumerate(zip(draws.key.tolist(), texts.offsets.tolist(), strict=False)):
            view, source = texts[row], np.arange(len(texts[row]))
            if len(view):
                view, source = function(view, rng_for(key), symbols=symbols, **knobs)
            views.append(view)
            sources.append(np.where(source < 0, -1, source + first))
        return Ragged.of(views), np.concatenate([np.zeros(0, np.int64), *sources])

    return apply


def merge_rows(texts: Ragged, parts: Sequence[tuple[Tokens, Ragged, Tokens]]) -> tuple[Ragged, Tokens]:
    """Join views of parts of a batch.

    Args:
        texts: the batch, R texts.
        parts: the rows of each part (K,), ascending; their views, made of ``texts.select(rows)``; and the views' ``source``,
            positions in the tokens of that selection. Each row is in one part.

    Returns:
        The views of all R texts, and their ``source`` in ``texts.tokens``.
    """
    joined = place_rows(len(texts), [(rows, views) for rows, views, _ in parts])
    source = np.empty_like(joined.tokens)
    for rows, views, step in parts:
        old = ranges(texts.offsets[rows], texts.lengths[rows])  # position of each token of the selection
        source[ranges(joined.offsets[rows], views.lengths)] = compose(old, step)
    return joined, source


def compose(before: Tokens, step: Tokens) -> Tokens:
    """Compose the sources of two consecutive steps, (n,) and (m,), into one (m,); -1 marks new tokens."""
    is_new = step < 0
    if not is_new.any():
        return before[step]
    source = before[step] if len(before) else np.empty_like(step)
    source[is_new] = -1
    return source
