"""The table of view sources, and the function that builds a view source from a spec."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairseq_clear.errors import UserError
from fairseq_clear.seeding import Draws
from fairseq_clear.spec import Knob, Step, check_knobs, check_name, parse_spec
from fairseq_clear.text.documents import content_hashes
from fairseq_clear.tokens import Tokens
from fairseq_clear.views.paraphrase_views import ORIGINAL, Paraphrases
from fairseq_clear.views.sentence_pair_views import ClozeViews, NeighborViews, TitleViews
from fairseq_clear.views.span_views import SPAN_KNOBS, SpanViews
from fairseq_clear.views.view_source import Pairs, TokenSource, ViewSource


class SameText(ViewSource):
    """``same``: the sequence itself, twice (CLEAR section 3.1, SimCSE)."""

    def __init__(self, sentences: TokenSource) -> None:
        self.sentences = sentences
        sizes = np.asarray(sentences.sizes)
        self.text_lengths = np.broadcast_to(sizes[:, None], (len(sizes), 2))  # not a copy, to save memory

    def pairs(self, indices: Tokens, draws: Draws) -> Pairs:
        """Return each text twice; nothing is random."""
        texts = self.sentences.rows(indices)
        twice = texts.select(np.repeat(np.arange(len(texts)), 2))
        return Pairs(twice, content_hashes(texts))


@dataclass(frozen=True)
class ViewSourceKind:
    """An entry of VIEWS.

    Attributes:
        build: makes the view source.
        knobs: settings that a spec may give.
        summary: one-line description.
        values: example of positional values, which are names of aligned texts; empty if the source takes none.
        needs_documents: whether items are documents instead of texts.
        settings: names of the task's settings that ``build`` takes.
        hashes: number of hashes in an identity, see ``Pairs``; with values, one for each text and one for the original.
    """

    build: Callable[..., ViewSource]
    knobs: Mapping[str, Knob]
    summary: str
    values: str = ""
    needs_documents: bool = False
    settings: tuple[str, ...] = ()
    hashes: int = 1

    def read_knobs(self, step: Step) -> dict[str, Any]:
        """Return the value of every knob, see ``spec.check_knobs``."""
        return check_knobs(step, self.knobs, flag="--views", allow_values=bool(self.values))


VIEWS: dict[str, ViewSourceKind] = {
    "same": ViewSourceKind(SameText, {}, "the text itself, twice (CLEAR, SimCSE)"),
    "paraphrase": ViewSourceKind(
        Paraphrases,
        {},
        "texts with the same meaning, such as back-translations (CERT; Self-Guided Table 7)",
        "original,de",
    ),
    "titles": ViewSourceKind(
        TitleViews,
        {"longest": Knob(40, int, 1, help="maximum number of tokens in a title; a longer first line is no title")},
        "the title (first line) of a document and the text below it",
        needs_documents=True,
        settings=("tokens_per_sample",),
        hashes=3,
    ),
    "neighbor": ViewSourceKind(
        NeighborViews,
        {"sentences": Knob(1, int, 1, help="number of sentences in a span")},
        "adjacent sentences of a document, or adjacent spans of n sentences (Investigating Views)",
        needs_documents=True,
        settings=("tokens_per_sample",),
        hashes=3,
    ),
    "cloze": ViewSourceKind(
        ClozeViews,
        {
            "before": Knob(2, int, 0, 10_000, help="number of context sentences before the sentence"),
            "after": Knob(4, int, 0, 10_000, help="number of context sentences after the sentence"),
            "keep": Knob(0.1, float, 0, 1, help="probability that the sentence is left in its context"),
        },
        "a sentence of a document and the context around it (inverse cloze task, Lee et al. 2019)",
        needs_documents=True,
        settings=("tokens_per_sample",),
        hashes=3,
    ),
    "span": ViewSourceKind(
        SpanViews,
        SPAN_KNOBS,
        "anchor spans of a document, each with positive spans near it (DeCLUTR section 3.1)",
        needs_documents=True,
        settings=("short_documents", "same_document_negatives", "tokens_per_sample"),
    ),
}


def find_view_source(spec: str) -> tuple[ViewSourceKind, Step]:
    """Return the entry that a spec names, and the parsed spec.

    Raises:
        UserError: there is no such source, or the spec is a chain.
    """
    chains = parse_spec(spec, flag="--views")
    if len(chains) != 1 or len(chains[0]) != 1:
        raise UserError(f"--views {spec}: give one view source; valid are {', '.join(VIEWS)}")
    step = chains[0][0]
    check_name(step, VIEWS, flag="--views")
    return VIEWS[step.name], step


def count_hashes(spec: str) -> int:
    """Number of hashes in the identities of the view source that a spec names."""
    kind, step = find_view_source(spec)
    return len({ORIGINAL, *step.values}) if kind.values else kind.hashes


def build_view_source(
    spec: str, sentences: Any, *, settings: Mapping[str, Any], aligned: Callable[[str], TokenSource] | None = None
) -> ViewSource:
    """Build the view source that a spec names.

    Args:
        sentences: a TokenSource, or Documents if the source needs documents.
        settings: settings of the task.
        aligned: function that returns the aligned texts with a given name, for a source with positional values.

    Raises:
        UserError: there is no such source or knob, or the spec is a chain.
    """
    kind, step = find_view_source(spec)
    knobs = kind.read_knobs(step)
    if kind.values:
        return kind.build(sentences, aligned=aligned, names=step.values, **knobs)
    return kind.build(sentences, **{name: settings[name] for name in kind.settings}, **knobs)
