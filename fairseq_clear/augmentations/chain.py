"""Chains of augmentations, built from a spec, that make views of texts."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from fairseq_clear.augmentations import AUGMENTATIONS
from fairseq_clear.augmentations.base import Augmentation, Symbols, apply_by_row, collapse_runs, compose
from fairseq_clear.augmentations.substitution import count_words
from fairseq_clear.augmentations.synonym_table import SynonymTable
from fairseq_clear.seeding import Draws, floor_of
from fairseq_clear.spec import KnobValue, Step, check_knobs, check_name, format_spec, format_value, parse_spec
from fairseq_clear.tokens import Ragged, Tokens

FLAG = "--augment"


class Augmented(NamedTuple):
    """Views of a batch of R texts.

    Attributes:
        views: R rows.
        source: (tokens of the views,) int64, the position in ``texts.tokens`` that each token comes from; -1 for a new token,
            such as ``<del>``. All tokens of a substituted word have the position of the first token of the original word.
        words, substituted: (R,) number of words, and of substituted words, summed over the steps that replace words. Both are
            0 in a chain that draws no synonyms.
    """

    views: Ragged
    source: Tokens
    words: Tokens
    substituted: Tokens


def unchanged(texts: Ragged) -> Augmented:
    """Return views that equal their texts."""
    nothing = np.zeros(len(texts), np.int64)
    return Augmented(texts, np.arange(len(texts.tokens)), nothing, nothing)


class _Call(NamedTuple):
    augmentation: Augmentation
    knobs: Mapping[str, KnobValue]
    step: Step  # with every knob


class Chain:
    """Makes views by a chain of steps, drawn from its alternatives at each call. Made by ``build_augmentation``; picklable.

    Attributes:
        spec: canonical spec, with every knob written out.
        needs_words: whether a step needs to know where words begin, which it reads from the synonym table.
        needs_synonyms: whether a step draws synonyms from the table.
        is_identity: whether views equal their texts (``none``).
        writes_deleted: whether views may hold ``<del>``.
    """

    def __init__(self, alternatives: tuple[tuple[_Call, ...], ...], symbols: Symbols) -> None:
        self.spec = format_spec(tuple(tuple(call.step for call in chain) for chain in alternatives))
        calls = [call for chain in alternatives for call in chain]
        self.needs_words = any(call.augmentation.needs_words for call in calls)
        needs = ((call.augmentation.needs_synonyms, call.knobs) for call in calls)
        self.needs_synonyms = any(need(knobs) if callable(need) else need for need, knobs in needs)
        self.is_identity = not any(alternatives)
        self.writes_deleted = any(call.augmentation.writes_deleted for call in calls)
        self._alternatives = alternatives
        self._symbols = symbols

    def __call__(self, texts: Ragged, draws: Draws, *, traced: bool = True) -> Augmented:
        """Make a view of each text. A view does not depend on the other texts.

        A leading ``<s>`` and a final ``</s>`` stay in place. The tokens between them are augmented; at least one is left,
        possibly a ``<del>``, unless there were none. Each run of ``<del>`` becomes a single ``<del>``.

        ``draws`` have a row for each text. Only if ``traced``, the result has a ``source``, which takes as long as the view.
        """
        if self.is_identity or not len(texts):
            return unchanged(texts)
        tokens, begins, ends = texts.tokens, texts.offsets[:-1], texts.offsets[1:]
        heads, tails = np.zeros(len(texts), np.bool_), np.zeros(len(texts), np.bool_)  # whether there is a <s>, a </s>
        full = np.flatnonzero(texts.lengths)
        heads[full] = tokens[begins[full]] == self._symbols.bos
        full = full[texts.lengths[full] > heads[full]]
        tails[full] = tokens[ends[full] - 1] == self._symbols.eos
        outer = np.concatenate([begins[heads], ends[tails] - 1])
        is_content = np.ones(len(tokens), np.bool_)
        is_content[outer] = False
        framing = heads.astype(np.int64) + tails
        content = Ragged.of_lengths(tokens[is_content], texts.lengths - framing)
        made = self._augment(content, draws, traced)
        # Each run of <del> becomes one, so that the remaining words of two views are not at the same positions. Otherwise the
        # model could match the views by position (CLEAR, section 3.3).
        content, step = collapse_runs(made.views, made.source, made.views.tokens == self._symbols.delete)
        lengths = content.lengths + framing
        views = Ragged.of_lengths(np.empty(int(lengths.sum()), np.int64), lengths)
        there = np.concatenate([views.offsets[:-1][heads], views.offsets[1:][tails] - 1])
        is_new = np.ones(len(views.tokens), np.bool_)
        is_new[there] = False
        views.tokens[is_new], views.tokens[there] = content.tokens, tokens[outer]
        source = np.empty(len(views.tokens) if traced else 0, np.int64)
        if traced:
            source[is_new], source[there] = compose(np.flatnonzero(is_content), step), outer
        return Augmented(views, source, made.words, made.substituted)

    def with_synonyms(self, table: SynonymTable) -> "Chain":
        """Return the same chain with this synonym table."""
        return Chain(self._alternatives, replace(self._symbols, synonyms=table))

    def bound(self, length: int) -> int:
        """Maximum length of a view of a text of ``length`` tokens, with or without ``<s>`` and ``</s>``."""
        contents = range(max(length - 2, 0), length + 1)
        return max(_bound(calls, content) + length - content for calls in self._alternatives for content in contents)

    def _augment(self, texts: Ragged, draws: Draws, traced: bool) -> Augmented:
        """Apply to each text one of the alternatives."""
        if len(self._alternatives) == 1:
            return self._apply(self._alternatives[0], texts, draws, traced)
        choice = floor_of(draws.per_row(0), len(self._alternatives))
        functions = [partial(self._apply, calls, traced=True) for calls in self._alternatives]
        return Augmented(*apply_by_row(texts, draws, choice, functions))

    def _apply(self, calls: tuple[_Call, ...], texts: Ragged, draws: Draws, traced: bool) -> Augmented:
        """Apply steps, one after the other."""
        views, source, words, substituted = unchanged(texts)
        for number, call in enumerate(calls):
            before = views
            # the number of the step is in its draws: otherwise del-word+del-word would delete the same words twice
            step = draws.fold(number)
            views, origin = call.augmentation.function(before, step, symbols=self._symbols, **call.knobs)
            if traced:
                source = origin if number == 0 else compose(source, origin)
            if self.needs_synonyms and call.augmentation.needs_words:
                counts = count_words(before, views, origin, self._symbols)
                words, substituted = words + counts[0], substituted + counts[1]
        return Augmented(views, source if traced else source[:0], words, substituted)


def build_augmentation(spec: str, symbols: Symbols) -> Chain:
    """Build the augmentation that ``spec`` names, such as ``subs+del-span:ratio=0.1/del-word``; ``none`` is the identity.

    The ``symbols`` have the synonym table, if one is loaded already.

    Raises:
        UserError: a malformed spec, an unknown name or knob, or a value out of range. The message names what is valid.
    """
    return Chain(tuple(tuple(map(_build_call, steps)) for steps in parse_spec(spec, flag=FLAG)), symbols)


def _build_call(step: Step) -> _Call:
    check_name(step, [*AUGMENTATIONS, "none"], flag=FLAG)
    augmentation = AUGMENTATIONS[step.name]
    knobs = check_knobs(step, augmentation.knobs, flag=FLAG)
    return _Call(augmentation, knobs, Step(step.name, (), {name: format_value(knobs[name]) for name in knobs}))


def _bound(calls: tuple[_Call, ...], length: int) -> int:
    for call in calls:
        bound = call.augmentation.bound
        length = length if bound is None else bound(length, call.knobs)
    return length
