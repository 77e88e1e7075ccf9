"""``span``: anchors of a document, and positives near each of them (DeCLUTR: Giorgi et al. 2020, arXiv:2006.03659).

Lengths, anchors and positives are drawn as in section 3.1.1, by functions of numbers. A span is (start, end): the tokens
x_start ... x_(end-1) of a document of n tokens.
"""

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairseq_clear.errors import UserError
from fairseq_clear.spec import Knob
from fairseq_clear.text.documents import Documents, content_hash
from fairseq_clear.tokens import Tokens
from fairseq_clear.views.view_source import FRAME, RawInstance, ViewSource

logger = logging.getLogger(__name__)

Span = tuple[int, int]
STRATEGIES = ("any", "adjacent", "subsumed", "overlapping")
SPAN_KNOBS = {
    "anchors": Knob(2, int, 1, help="A, number of anchors of a document"),
    "positives": Knob(2, int, 1, help="P, number of positives of an anchor"),
    "min": Knob(32, int, 1, help="tokens of the shortest span"),
    "max": Knob(512, int, 1, help="tokens of the longest span"),
    "alpha_anchor": Knob(4.0, float, 0.001, help="parameter of the beta distribution of anchor lengths"),
    "beta_anchor": Knob(2.0, float, 0.001, help="parameter of the beta distribution of anchor lengths"),
    "alpha_positive": Knob(2.0, float, 0.001, help="parameter of the beta distribution of positive lengths"),
    "beta_positive": Knob(4.0, float, 0.001, help="parameter of the beta distribution of positive lengths"),
    "strategy": Knob("any", str, help="kind of the positives", choices=STRATEGIES),
}


@dataclass(frozen=True)
class SpanSettings:
    """Settings of span sampling.

    A document gets A ``anchors``, each with P ``positives``. Lengths are from ``low`` to ``high``, with beta distributions for
    anchors and positives. ``strategy`` is the kind of positives (``kind_of``, or ``any``).
    """

    anchors: int
    positives: int
    low: int
    high: int
    alpha_anchor: float
    beta_anchor: float
    alpha_positive: float
    beta_positive: float
    strategy: str

    @property
    def least_length(self) -> int:
        """Tokens of the shortest document in which anchors and positives of any drawn lengths can be placed.

        That is A anchors of ``high`` tokens, ``high`` apart. A single anchor also needs space next to it if the strategy places
        positives there; several anchors have that space between them.
        """
        if self.anchors > 1:
            return (2 * self.anchors - 1) * self.high
        return {"adjacent": 3 * self.high - 1, "overlapping": self.high + 1}.get(self.strategy, self.high)

    @property
    def least_span(self) -> int:
        """The shortest possible span: one that partly overlaps another has at least two tokens."""
        return 2 if self.strategy == "overlapping" else 1

    def greatest_high(self, lengths: Tokens) -> Tokens:
        """The largest ``high`` for which documents of these lengths (D,) are long enough: (D,)."""
        if self.anchors > 1:
            return lengths // (2 * self.anchors - 1)
        if self.strategy == "adjacent":
            return (lengths + 1) // 3
        return lengths - 1 if self.strategy == "overlapping" else lengths


def sample_lengths(
    rng: np.random.Generator, size: int | tuple[int, ...], low: int, high: int | Tokens, alpha: float, beta: float
) -> Tokens:
    """Draw lengths floor(p * (high - low + 1) + low) with p ~ Beta(alpha, beta): int64 of shape ``size``.

    The paper has high - low as the factor, so no span would ever be ``high`` tokens long. Here each length corresponds to one
    of high - low + 1 equal parts of [0, 1]: P(length <= low + k) is the distribution function at (k + 1) / (high - low + 1).
    """
    p = rng.beta(alpha, beta, size)
    # p may be rounded to 1.0
    return np.minimum(np.floor(p * (high - low + 1) + low), high).astype(np.int64)


def place_anchors(n: int, lengths: Tokens, apart: int, rng: np.random.Generator) -> Tokens:
    """Draw starts (A,), ascending, of spans of these lengths, at least ``apart`` tokens apart; placements are equally likely.

    A single span starts uniformly in 0 ... n - length, as in the paper. With several, if each span and the gap after it are
    shrunk to nothing, a placement is a multiset of A of the remaining positions.
    """
    spans = len(lengths)
    slack = n - int(lengths.sum()) - (spans - 1) * apart
    if slack < 0:
        raise ValueError(f"anchors of {lengths.tolist()} tokens, {apart} apart, do not fit into {n}")
    if spans == 1:
        return rng.integers(slack + 1, size=1)
    chosen = np.sort(rng.choice(slack + spans, spans, replace=False, shuffle=False)) - np.arange(spans)
    before = np.cumsum(lengths + apart) - (lengths + apart)
    starts: Tokens = chosen + before
    return starts


def place_positive(n: int, anchor: Span, length: int, strategy: str, rng: np.random.Generator) -> int:
    """Draw the start of a positive of this length.

    It is uniform in {start_anchor - length ... end_anchor}, restricted to the document and to positives of the strategy's kind
    (``kind_of``).
    """
    start, end = anchor
    first, last = max(start - length, 0), min(end, n - length)
    if strategy == "any":
        return int(rng.integers(first, last + 1))
    if strategy == "subsumed":
        return int(rng.integers(start, end - length + 1))
    if strategy == "adjacent":
        sides = [side for side in (start - length, end) if first <= side <= last]
        return sides[int(rng.integers(len(sides)))]
    # starts before the anchor that overlap it, and starts from which the end is beyond the anchor's end
    before = max(start - length + 1, 0), min(start, last + 1)
    after = max(start, end - length + 1), min(end, last + 1)
    left = max(before[1] - before[0], 0)
    drawn = int(rng.integers(left + max(after[1] - after[0], 0)))
    return before[0] + drawn if drawn < left else after[0] + drawn - left


def kind_of(anchor: Span, positive: Span) -> str:
    """Return the kind of a positive, as in the paper's figure 1 B.

    ``adjacent`` touches the anchor, ``subsumed`` lies within it, ``overlapping`` overlaps it partly or contains it.
    """
    if positive[1] == anchor[0] or positive[0] == anchor[1]:
        return "adjacent"
    return "subsumed" if anchor[0] <= positive[0] and positive[1] <= anchor[1] else "overlapping"


def sample_spans(n: int, low: int, high: int, settings: SpanSettings, rng: np.random.Generator) -> list[list[Span]]:
    """Draw the spans of a document of n tokens: for each anchor, the anchor and then its P positives.

    ``low`` and ``high`` replace those of the settings, because they may be scaled down for a short document.
    """
    s = settings
    lengths = sample_lengths(rng, s.anchors, low, high, s.alpha_anchor, s.beta_anchor)
    starts = place_anchors(n, lengths, high, rng)
    limit = lengths[:, None] if s.strategy == "subsumed" else high
    shape = (s.anchors, s.positives)
    positive_lengths = sample_lengths(rng, shape, low, limit, s.alpha_positive, s.beta_positive)
    spans = []
    for start, length, others in zip(starts.tolist(), lengths.tolist(), positive_lengths.tolist(), strict=True):
        anchor = (start, start + length)
        places = [place_positive(n, anchor, other, s.strategy, rng) for other in others]
        spans.append([anchor, *((place, place + other) for place, other in zip(places, others, strict=True))])
    return spans


class SpanViews(ViewSource):
    """Spans of documents (section 3.1). An item is a document, with A pairs of one anchor and P positives.

    A document is short if spans of some lengths may not fit into it (``SpanSettings.least_length``). ``short="clip"`` scales
    the maximum length of its spans down until they fit, and the minimum in proportion; ``skip`` leaves it out; ``error`` raises
    a UserError. With ``contrast_documents``, the identity of a pair is that of its document, so spans of one document are not
    negatives of each other. Without, it is the hash of the anchor, and they are (the paper's hard negatives).

    Attributes:
        items: (items,) int64 indices of the documents that are used.

    Raises:
        UserError: a document is short and ``short`` is ``error``, or no document is left.
    """

    def __init__(
        self, documents: Documents, settings: SpanSettings, *, short: str = "clip", contrast_documents: bool = False
    ) -> None:
        self.documents, self.settings = documents, settings
        self.contrast_documents = contrast_documents
        self.anchors, self.positives = settings.anchors, settings.positives
        highs = np.minimum(settings.greatest_high(documents.lengths), settings.high)  # (D,)
        is_short = highs < settings.high
        if short == "error" and is_short.any():
            self._raise_short(int(np.flatnonzero(is_short)[0]))
        usable = highs >= settings.least_span if short == "clip" else ~is_short
        self.items = np.flatnonzero(usable)
        self._log(short, int(is_short.sum()))
        if not len(self.items):
            self._raise_all_short(short)
        self._highs = highs[self.items].astype(np.int32)
        self.text_lengths = np.broadcast_to(
            self._highs[:, None] + FRAME, (len(self.items), self.anchors * (1 + self.positives))
        )

    def __call__(self, index: int, rng: np.random.Generator) -> list[RawInstance]:
        """Return the A pairs of an item."""
        number = int(self.items[index])
        document = self.documents[number]
        s, high = self.settings, int(self._highs[index])
        low = s.low if high == s.high else max(s.low * high // s.high, s.least_span)
        pairs = []
        for spans in sample_spans(len(document), low, high, s, rng):
            texts = [document.span(begin, end) for begin, end in spans]
            identity = self.documents.identity(number) if self.contrast_documents else content_hash(texts[0])
            pairs.append(RawInstance(texts[0], texts[1:], identity, document=number, spans=spans))
        return pairs

    def _needs(self) -> str:
        s = self.settings
        what = f"{s.anchors} anchors" if s.anchors > 1 else "an anchor"
        return f"{s.least_length} tokens that --views span with {what} of up to {s.high} needs"

    def _raise_short(self, number: int) -> None:
        documents = self.documents
        raise UserError(
            f"{documents.name}: document {number + 1} (line {documents.first_line(number)}) has {documents.lengths[number]} "
            f"tokens, fewer than the {self._needs()}; give a smaller max or fewer anchors, or --short-documents clip or skip"
        )

    def _raise_all_short(self, short: str) -> None:
        documents = self.documents
        raise UserError(
            f"{documents.name}: all {len(documents)} documents are too short: the longest has {documents.lengths.max()} tokens "
            f"of the {self._needs()}; give a smaller max or fewer anchors"
            + (", or --short-documents clip" if short == "skip" else "")
            + "; if each line is a document, --document-boundary line; else separate the documents by blank lines"
        )

    def _log(self, short: str, count: int) -> None:
        if not count:
            return
        dropped = len(self.documents) - len(self.items)
        logger.info(
            "%s: %d of %d documents have fewer than the %s: %d clipped, %d left out",
            self.documents.name, count, len(self.documents), self._needs(), count - dropped, dropped,
        )  # fmt: skip


def build_span_views(
    documents: Documents,
    *,
    short_documents: str,
    same_document_negatives: str,
    tokens_per_sample: int,
    **knobs: Any,
) -> SpanViews:
    """Build the view source from the spec's knobs and the task's settings.

    Raises:
        UserError: knobs contradict each other or the task's settings.
    """
    low, high = knobs.pop("min"), knobs.pop("max")
    if low > high:
        raise UserError(f"--views span:min={low},max={high}: min must not be above max")
    if high > tokens_per_sample:
        raise UserError(
            f"--views span:max={high}: --tokens-per-sample {tokens_per_sample} would cut such spans; give it {high + FRAME} to "
            f"hold them with <s> and </s>, or span:max={tokens_per_sample - FRAME}"
        )
    settings = SpanSettings(low=low, high=high, **knobs)
    if low < settings.least_span:
        raise UserError(
            f"--views span:min={low},strategy={settings.strategy}: spans that partly overlap have 2 tokens or more"
        )
    exclude = str(same_document_negatives) == "exclude"
    return SpanViews(documents, settings, short=str(short_documents), contrast_documents=exclude)
