"""How many rows the encoder reads of each text, and how long they are.

Views differ in length by chance; some are drawn, and a batch is taken to hold lengths as they do.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from fairseq_clear.augmentations.base import Symbols, Tokens
from fairseq_clear.augmentations.chain import build_augmentation
from fairseq_clear.augmentations.synonym_table import SynonymTable
from fairseq_clear.errors import UserError
from fairseq_clear.spec import check_knobs
from fairseq_clear.views.span_sampling import sample_lengths
from fairseq_clear.views.span_views import SPAN_KNOBS
from fairseq_clear.views.view_table import find_view_source

__all__ = ["Rows", "read_rows", "view_lengths"]

SAMPLES = 128  # texts whose views are drawn to see how long they get
SPANS = 512  # anchors, with their positives
FRAME = 2  # <s> and </s>


@dataclass(frozen=True)
class Rows:
    """What a text becomes.

    Attributes:
        anchors, positives: views: anchors, and positives of each.
        texts: texts that the masked language model reads.
        text_lengths: tokens of some of those, as a batch may hold them.
        view_lengths: tokens of some views likewise.
    """

    anchors: int
    positives: int
    texts: int
    text_lengths: tuple[int, ...]
    view_lengths: tuple[int, ...]


def read_rows(task: Mapping[str, Any], positions: int, text_length: int | None) -> Rows:
    """Rows of a recipe's task section.

    Args:
        task: the section.
        positions: of the encoder, which cut what is longer.
        text_length: tokens of a text, or of a sentence where texts are several (default: ``tokens_per_sample``).

    Raises:
        UserError: views or lengths that make no sense.
    """
    limit = min(int(task.get("tokens_per_sample", 512)), positions)
    length = min(text_length or limit, limit)
    if length < 1:
        raise UserError(f"task.tokens_per_sample {length}: must be 1 or more")
    kind, step = find_view_source(str(task.get("views", "same")), flag="task.views")
    augment = str(task.get("augment", "none"))
    if step.name == "span":
        return _spans(check_knobs(step, SPAN_KNOBS, flag="task.views"), augment, limit)
    if step.name == "neighbor" and text_length:
        sentences = int(check_knobs(step, kind.knobs, flag="task.views")["sentences"])
        length = min(sentences * max(text_length - FRAME, 0) + FRAME, limit)
    positives = max(len(step.values) - 1, 1)
    return Rows(1, positives, 1, (length,), view_lengths(augment, [length], limit))


def _spans(knobs: Mapping[str, Any], augment: str, limit: int) -> Rows:
    """Of documents long enough for every draw."""
    rng = np.random.default_rng(0)
    low, high = int(knobs["min"]), int(knobs["max"])
    if not low <= high:
        raise UserError(f"task.views span:min={low},max={high}: min must not be above max")
    positives = int(knobs["positives"])

    def drawn(kind: str, count: int) -> Tokens:
        shape = float(knobs[f"alpha_{kind}"]), float(knobs[f"beta_{kind}"])
        return np.minimum(sample_lengths(rng, count, low, high, *shape) + FRAME, limit)

    anchors = drawn("anchor", SPANS)
    texts = [*anchors.tolist(), *drawn("positive", SPANS * positives).tolist()]
    return Rows(
        anchors=int(knobs["anchors"]),
        positives=positives,
        texts=int(knobs["anchors"]),
        text_lengths=tuple(anchors.tolist()),
        view_lengths=view_lengths(augment, texts, limit),
    )


def view_lengths(augment: str, texts: Sequence[int], limit: int | None = None) -> tuple[int, ...]:
    """Tokens of some views of texts of so many tokens, cut to ``limit`` (default: the longest text).

    Every token counts as a word with a synonym of one token, so that substitutes are as long as their words.
    """
    limit = max(texts) if limit is None else limit
    symbols = Symbols(0, 2, 1, delete=5, unk=3, mask=4)
    chain = build_augmentation(augment, symbols, flag="task.augment", allow_missing_synonyms=True)
    steps = "/".join(
        "+".join(step for step in one.split("+") if step.partition(":")[0] != "subs") or "none"
        for one in chain.spec.split("/")
    )
    chain = build_augmentation(steps, symbols, flag="task.augment", allow_missing_synonyms=True)
    if chain.is_identity:
        return tuple(min(length, limit) for length in texts)
    if chain.needs_words:
        symbols = Symbols(0, 2, 1, delete=5, unk=3, mask=4, synonyms=_one_for_each(max(texts)))
        chain = build_augmentation(steps, symbols, flag="task.augment")
    lengths = [texts[number % len(texts)] for number in range(max(SAMPLES, len(texts)))]
    found = []
    for seed, length in enumerate(lengths):
        text = np.array([0, *range(6, 6 + max(length - FRAME, 0)), 2])
        found.append(min(len(chain(text, np.random.default_rng(seed)).tokens), limit))
    return tuple(found)


@lru_cache(maxsize=8)
def _one_for_each(words: int) -> SynonymTable:
    """A table in which each of the words after the symbols has the next as its synonym."""
    first = 6
    rows: dict[tuple[int, ...], list[tuple[int, ...]]] = {
        (word,): [(word + 1,)] for word in range(first, first + words)
    }
    return SynonymTable.build(rows, np.ones(first + words + 1, np.bool_))
