"""Chains of augmentations, built from a spec, that make views of texts."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fairseq_clear.augmentations import AUGMENTATIONS
from fairseq_clear.augmentations.base import Augmentation, Symbols
from fairseq_clear.augmentations.substitution import count_words
from fairseq_clear.augmentations.synonym_table import SynonymTable
from fairseq_clear.errors import UserError
from fairseq_clear.spec import KnobValue, Step, check_knobs, check_name, format_spec, format_value, parse_spec
from fairseq_clear.tokens import Tokens


class Augmented(NamedTuple):
    """A view of a text.

    Attributes:
        tokens: (m,) int64.
        source: (m,) int64, the position in the text that each token comes from; -1 for ``<del>``. All tokens of a
            substituted word have the position of the first token of the original word.
        words, substituted: number of words, and of substituted words, summed over the steps that replace words. Both are 0
            in a chain that draws no synonyms.
    """

    tokens: Tokens
    source: Tokens
    words: int
    substituted: int


def unchanged(text: npt.ArrayLike) -> Augmented:
    """Return a view that equals its text (n,)."""
    tokens = np.array(text, np.int64)
    return Augmented(tokens, np.arange(len(tokens)), 0, 0)


@dataclass(frozen=True)
class _Call:
    augmentation: Augmentation
    knobs: Mapping[str, KnobValue]


class Chain:
    """Makes views by a chain of steps, drawn from its alternatives at each call. Made by ``build_augmentation``; picklable.

    Attributes:
        spec: canonical spec, with every knob written out.
        needs_words: whether a step needs to know where words begin, which it reads from the synonym table.
        needs_synonyms: whether a step draws synonyms from the table.
        is_identity: whether views equal their texts (``none``).
    """

    def __init__(self, alternatives: tuple[tuple[_Call, ...], ...], symbols: Symbols, spec: str) -> None:
        self.spec = spec
        calls = [call for chain in alternatives for call in chain]
        self.needs_words = any(call.augmentation.needs_words for call in calls)
        self.needs_synonyms = any(call.augmentation.needs_synonyms(call.knobs) for call in calls)
        self.is_identity = not any(alternatives)
        self._alternatives = alternatives
        self._symbols = symbols

    def __call__(self, tokens: npt.ArrayLike, rng: np.random.Generator) -> Augmented:
        """Make a view of ``tokens`` (n,), which are not modified.

        A leading ``<s>`` and a final ``</s>`` stay in place. The tokens between them are augmented; at least one is left,
        possibly a ``<del>``, unless there were none. Each run of ``<del>`` becomes a single ``<del>``.
        """
        text = np.asarray(tokens, dtype=np.int64)
        if self.is_identity:
            return unchanged(text)
        head = int(len(text) > 0 and text[0] == self._symbols.bos)
        tail = int(len(text) > head and text[-1] == self._symbols.eos)
        content, source = text[head : len(text) - tail], None
        words = substituted = 0
        for call in self._draw(rng) if len(content) else ():
            before = content
            content, step_source = call.augmentation.function(before, rng, symbols=self._symbols, **call.knobs)
            source = step_source if source is None else _compose(source, step_source)
            if self.needs_synonyms and call.augmentation.needs_words:
                counts = count_words(before, content, step_source, self._symbols)
                words, substituted = words + counts[0], substituted + counts[1]
        if source is None:  # no step was applied
            return unchanged(text)
        content, source = self._collapse(content, source)
        end = head + len(content)
        view, origin = np.empty(end + tail, np.int64), np.empty(end + tail, np.int64)
        view[:head], view[head:end], view[end:] = text[:head], content, text[len(text) - tail :]
        origin[:head], origin[head:end], origin[end:] = 0, source + head, len(text) - 1
        origin[head:end][source < 0] = -1
        return Augmented(view, origin, words, substituted)

    def with_synonyms(self, table: SynonymTable) -> "Chain":
        """Return the same chain with this synonym table."""
        return Chain(self._alternatives, replace(self._symbols, synonyms=table), self.spec)

    def bound(self, length: int) -> int:
        """Maximum length of a view of a text of ``length`` tokens, with or without ``<s>`` and ``</s>``."""
        contents = range(max(length - 2, 0), length + 1)
        return max(_bound(calls, content) + length - content for calls in self._alternatives for content in contents)

    def _draw(self, rng: np.random.Generator) -> tuple[_Call, ...]:
        # A single chain needs no draw: its steps get the first random numbers of rng.
        drawn = int(rng.integers(len(self._alternatives))) if len(self._alternatives) > 1 else 0
        return self._alternatives[drawn]

    def _collapse(self, tokens: Tokens, source: Tokens) -> tuple[Tokens, Tokens]:
        """Replace each run of ``<del>`` by one, so that the remaining words of two views are not at the same positions.

        Otherwise the model could match the views by position (CLEAR, section 3.3).
        """
        is_deleted = tokens == self._symbols.delete
        follows = is_deleted[1:] & is_deleted[:-1]
        if not follows.any():
            return tokens, source
        keep = np.ones(len(tokens), np.bool_)
        np.logical_not(follows, out=keep[1:])
        return tokens[keep], source[keep]


def _compose(before: Tokens, step: Tokens) -> Tokens:
    """Compose the sources of two consecutive steps, (n,) and (m,), into one (m,); -1 marks new tokens."""
    source = before[step]
    source[step < 0] = -1
    return source


def build_augmentation(
    spec: str, symbols: Symbols, *, flag: str = "--augment", allow_missing_synonyms: bool = False
) -> Chain:
    """Build the augmentation that ``spec`` names, such as ``subs+del-span:ratio=0.1/del-word``; ``none`` is the identity.

    Args:
        spec: as the user typed it.
        symbols: ids of the special symbols, and the synonym table.
        flag: flag that error messages name.
        allow_missing_synonyms: build the chain without a synonym table, to read its ``needs_synonyms`` and ``bound`` before a
            table is loaded.

    Raises:
        UserError: a malformed spec, an unknown name or knob, a value out of range, or a step that needs synonyms without a
            table. The message names ``flag`` and what is valid.
    """
    alternatives = parse_spec(spec, flag=flag)
    built = tuple(tuple(_build_call(step, flag) for step in chain) for chain in alternatives)
    chain = Chain(built, symbols, _canonical_spec(alternatives, built))
    if chain.needs_synonyms and symbols.synonyms is None and not allow_missing_synonyms:
        raise UserError(
            f"{flag} {chain.spec}: needs a synonym table; make it with "
            "`fairseq-clear synonyms --data-bin DATA --source counterfitted.json` (or `--source wordnet`)"
        )
    return chain


def _build_call(step: Step, flag: str) -> _Call:
    check_name(step, AUGMENTATIONS, flag=flag)
    augmentation = AUGMENTATIONS[step.name]
    return _Call(augmentation, check_knobs(step, augmentation.knobs, flag=flag))


def _canonical_spec(alternatives: tuple[tuple[Step, ...], ...], built: tuple[tuple[_Call, ...], ...]) -> str:
    chains = []
    for steps, calls in zip(alternatives, built, strict=True):
        texts = [{knob: format_value(value) for knob, value in call.knobs.items()} for call in calls]
        chains.append(tuple(Step(step.name, (), knobs) for step, knobs in zip(steps, texts, strict=True)))
    return format_spec(tuple(chains))


def _bound(calls: tuple[_Call, ...], length: int) -> int:
    for call in calls:
        length = call.augmentation.bound(length, call.knobs)
    return length
