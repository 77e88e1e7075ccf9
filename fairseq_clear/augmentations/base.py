"""Types shared by augmentations: symbols, entries of the table, rounding; joining and composing views."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fairseq_clear.augmentations.synonym_table import SynonymTable
from fairseq_clear.seeding import Draws, Floats, rng_for
from fairseq_clear.spec import Knob, KnobValue
from fairseq_clear.tokens import Bools, Ragged, Tokens, place_rows, ranges

Edited = tuple[Ragged, Tokens]
"""Views of a batch, and the position in the texts that each of their tokens comes from; -1 where it is new."""


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
    mask: int
    synonyms: SynonymTable | None = None

    @property
    def table(self) -> SynonymTable:
        """The synonym table; ValueError if there is none."""
        if self.synonyms is None:
            raise ValueError(
                "Symbols has no synonym table; give one (a table without rows still marks where words begin)"
            )
        return self.synonyms

    @functools.cached_property
    def are_special(self) -> Bools:
        """(vocabulary of the table + 1,) whether an id is a word of its own; the last entry is for ids beyond."""
        size = len(self.table.is_word_start)
        special = np.zeros(size + 1, np.bool_)
        special[np.minimum([self.bos, self.eos, self.pad, self.delete, self.mask, size], size)] = True
        return special

    @functools.cached_property
    def begin_words(self) -> Bools:
        """(vocabulary of the table + 1,) whether a word begins at an id, whatever is before it."""
        return np.append(self.table.is_word_start, True) | self.are_special


@dataclass(frozen=True)
class Augmentation:
    """An entry of the table of augmentations.

    Attributes:
        function: ``f(texts, draws, *, symbols, **knobs) -> (views, source)``. ``texts`` is a batch of R texts, without the
            leading ``<s>`` and the final ``</s>``; rows may be empty and stay so. ``views`` are R rows; a row is only empty
            if its text is. ``source`` has, for each token of the views, the position in ``texts.tokens`` that it comes
            from, -1 where it is new. The input is never modified; all randomness comes from ``draws``, so that a view does not
            depend on the batch. ``per_text`` makes such a function of one that takes a single text.
        summary: what it does, in one sentence.
        paper: the paper that it comes from.
        knobs: settings that a spec may give.
        needs_words: whether it needs ``symbols.synonyms``, which says where words begin.
        needs_synonyms: whether that table must also hold synonyms; a function of the knobs if it depends on them.
        bound: maximum m for n input tokens and these knobs; it does not decrease as n grows. None if texts never grow.
        writes_deleted: whether views may hold ``<del>``, for which the encoder then has a row.
    """

    function: Callable[..., Edited]
    summary: str
    paper: str
    knobs: Mapping[str, Knob] = field(default_factory=dict)
    needs_words: bool = False
    needs_synonyms: bool | Callable[[Mapping[str, KnobValue]], bool] = False
    bound: Callable[[int, Mapping[str, KnobValue]], int] | None = None
    writes_deleted: bool = True


def round_randomly(expected: Floats, draws: Floats) -> Tokens:
    """Round ``expected`` (R,) down or up at random, so that its mean is kept: floor(expected + u), u uniform in [0, 1).

    Rounding to the nearest integer would leave texts shorter than 1 / (2 * ratio) unchanged.
    """
    return np.floor(expected + draws).astype(np.int64)


def per_text(function: Callable[..., tuple[Tokens, Tokens]]) -> Callable[..., Edited]:
    """Adapt ``f(tokens, rng, *, symbols, **knobs) -> (view, source)``, which takes one text, to a batch.

    ``tokens`` is (n,) int64 with n >= 1, ``view`` and ``source`` are (m,) with m >= 1; ``source`` counts from the beginning of
    the text, and ``rng`` is a numpy generator of this view.
    """

    @functools.wraps(function)
    def apply(texts: Ragged, draws: Draws, **settings: Any) -> Edited:
        views, sources = [np.zeros(0, np.int64)] * len(texts), [np.zeros(0, np.int64)]
        for row in np.flatnonzero(texts.lengths).tolist():
            views[row], source = function(texts[row], rng_for(int(draws.key[row])), **settings)
            sources.append(np.where(source < 0, -1, source + texts.offsets[row]))
        return Ragged.of(views), np.concatenate(sources)

    return apply


def apply_by_row(
    texts: Ragged, draws: Draws, choice: Tokens, functions: Sequence[Callable[[Ragged, Draws], Sequence[Any]]]
) -> list[Any]:
    """Apply to each of R texts the function whose number ``choice`` (R,) says.

    Args:
        functions: ``f(texts, draws) -> (views, source, *counts)``, ``source`` in the tokens of the texts that it gets, and
            counts with an entry for each text.

    Returns:
        The views of all texts, their ``source`` in ``texts.tokens``, and each count (R,).
    """
    parts = []
    for number, function in enumerate(functions):
        rows = np.flatnonzero(choice == number)
        if len(rows):
            parts.append((rows, *function(texts.select(rows), draws.select(rows))))
    views = place_rows(len(texts), [(rows, made) for rows, made, *_ in parts])
    source, counts = np.empty_like(views.tokens), np.zeros((len(parts[0]) - 3 if parts else 0, len(texts)), np.int64)
    for rows, made, step, *found in parts:
        old = ranges(texts.offsets[rows], texts.lengths[rows])  # position of each token that the function got
        source[ranges(views.offsets[rows], made.lengths)] = compose(old, step)
        for count, of_rows in zip(counts, found, strict=True):
            count[rows] = of_rows
    return [views, source, *counts]


def collapse_runs(texts: Ragged, source: Tokens, is_run: Bools) -> Edited:
    """Keep only the first token of each run, where ``is_run`` (T,) is True; runs end with their text.

    ``source`` has an entry for each token, or none.
    """
    if not is_run.any():
        return texts, source
    follows = np.zeros(len(is_run), np.bool_)
    np.logical_and(is_run[1:], is_run[:-1], out=follows[1:])
    follows[texts.offsets[:-1][texts.lengths > 0]] = False
    if not follows.any():
        return texts, source
    keep = np.flatnonzero(~follows)  # three times as fast as a mask and its cumulative sum
    kept = Ragged(texts.tokens[keep], np.searchsorted(keep, texts.offsets))
    return kept, source[keep] if len(source) else source


def compose(before: Tokens, step: Tokens) -> Tokens:
    """Compose the sources of two consecutive steps, (n,) and (m,), into one (m,); -1 marks new tokens."""
    is_new = step < 0
    if not is_new.any():
        return before[step]
    source = before[step] if len(before) else np.empty_like(step)
    source[is_new] = -1
    return source
