"""``span``: anchors of a document, and positives near each of them (DeCLUTR: Giorgi et al. 2020, arXiv:2006.03659).

Lengths, anchors and positives are drawn as in section 3.1.1, for a batch of documents at once, by functions of numbers. A span
is (start, end): the tokens x_start ... x_(end-1) of a document of n tokens.
"""

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairseq_clear.errors import UserError
from fairseq_clear.seeding import Draws, Floats, floor_of, rng_for
from fairseq_clear.spec import Knob
from fairseq_clear.text.documents import Documents, content_hashes
from fairseq_clear.tokens import Tokens, cells
from fairseq_clear.views.view_source import FRAME, Pairs, ViewSource

logger = logging.getLogger(__name__)

Span = tuple[int, int]
ANCHOR_LENGTHS, PLACE, POSITIVE_LENGTHS, POSITIVE_PLACES = range(4)  # purposes of the draws
MOST_UNIFORMS = 16  # maximum number of uniform numbers per beta variate
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


def draw_beta(draws: Draws, purpose: int, count: int, alpha: float, beta: float) -> Floats:
    """Draw ``count`` numbers with a Beta(alpha, beta) distribution for each row: (R, count).

    For whole parameters this is the alpha-th smallest of alpha + beta - 1 uniform numbers, exactly. For others, numpy draws.
    """
    size, uniforms = len(draws.key), alpha + beta - 1
    if alpha != int(alpha) or beta != int(beta) or uniforms > MOST_UNIFORMS:
        keys = draws.fold(purpose).key.tolist()
        return np.array([rng_for(key).beta(alpha, beta, count) for key in keys]).reshape(size, count)
    u = draws.uniform(purpose, *cells(size, count * int(uniforms))).reshape(size, count, int(uniforms))
    return np.sort(u, axis=2)[:, :, int(alpha) - 1]


def scale_lengths(p: Floats, low: Any, high: Any) -> Tokens:
    """Lengths floor(p * (high - low + 1) + low), with p ~ Beta.

    The paper has high - low as the factor, so no span would ever be ``high`` tokens long. Here each length corresponds to one
    of high - low + 1 equal parts of [0, 1]: P(length <= low + k) is the distribution function at (k + 1) / (high - low + 1).
    """
    # p may be rounded to 1.0
    return np.minimum(np.floor(p * (high - low + 1) + low), high).astype(np.int64)


def place_anchors(n: Tokens, lengths: Tokens, apart: Tokens, draws: Draws) -> Tokens:
    """Draw starts (R, A), ascending, of A spans of these lengths (R, A) in documents of ``n`` (R,) tokens.

    They are at least ``apart`` (R,) tokens apart, and all placements are equally likely. A single span starts uniformly in
    0 ... n - length, as in the paper. With several, if each span and the gap after it are shrunk to nothing, a placement is a
    multiset of A of the remaining positions: A of slack + A slots, drawn by Floyd's method.
    """
    size, spans = lengths.shape
    slack = n - lengths.sum(axis=1) - (spans - 1) * apart
    assert (slack >= 0).all(), "the anchors do not fit into their document"
    chosen, rows = np.empty((size, spans), np.int64), np.arange(size)
    for number in range(spans):
        last = slack + number  # slots 0 ... last; the spans before are in 0 ... last - 1
        drawn = floor_of(draws.uniform(PLACE, rows, np.full(size, number)), last + 1)
        is_taken = (chosen[:, :number] == drawn[:, None]).any(axis=1)
        chosen[:, number] = np.where(is_taken, last, drawn)
    chosen.sort(axis=1)
    before = np.cumsum(lengths + apart[:, None], axis=1) - (lengths + apart[:, None])
    return chosen - np.arange(spans) + before


def place_positives(n: Tokens, starts: Tokens, ends: Tokens, lengths: Tokens, strategy: str, u: Floats) -> Tokens:
    """Draw the starts of positives of these lengths, near anchors (start, end) in documents of n tokens; all (K,).

    They are uniform in {start_anchor - length ... end_anchor}, restricted to the document and to positives of the strategy's
    kind (``kind_of``). ``u`` is uniform in [0, 1).
    """
    first, last = np.maximum(starts - lengths, 0), np.minimum(ends, n - lengths)
    if strategy == "any":
        return first + floor_of(u, last - first + 1)
    if strategy == "subsumed":
        return starts + floor_of(u, ends - lengths - starts + 1)
    if strategy == "adjacent":
        before, after = starts - lengths, ends
        has_before, has_after = before >= first, after <= last
        return np.where(has_before & (~has_after | (u < 0.5)), before, after)
    # starts before the anchor that overlap it, and starts from which the end is beyond the anchor's end
    low, high = np.maximum(starts - lengths + 1, 0), np.minimum(starts, last + 1)
    after, beyond = np.maximum(starts, ends - lengths + 1), np.minimum(ends, last + 1)
    left = np.maximum(high - low, 0)
    drawn = floor_of(u, left + np.maximum(beyond - after, 0))
    return np.where(drawn < left, low + drawn, after + drawn - left)


def kind_of(anchor: Span, positive: Span) -> str:
    """Return the kind of a positive, as in the paper's figure 1 B.

    ``adjacent`` touches the anchor, ``subsumed`` lies within it, ``overlapping`` overlaps it partly or contains it.
    """
    if positive[1] == anchor[0] or positive[0] == anchor[1]:
        return "adjacent"
    return "subsumed" if anchor[0] <= positive[0] and positive[1] <= anchor[1] else "overlapping"


def sample_spans(n: Tokens, low: Tokens, high: Tokens, settings: SpanSettings, draws: Draws) -> Tokens:
    """Draw spans of documents of ``n`` (R,) tokens: (R, A, 1 + P, 2), begin and end of each anchor and of its positives.

    ``low`` and ``high`` (R,) override the settings, because they may be scaled down for a short document.
    """
    s, size = settings, len(n)
    p = draw_beta(draws, ANCHOR_LENGTHS, s.anchors, s.alpha_anchor, s.beta_anchor)
    lengths = scale_lengths(p, low[:, None], high[:, None])  # (R, A)
    starts = place_anchors(n, lengths, high, draws)
    p = draw_beta(draws, POSITIVE_LENGTHS, s.anchors * s.positives, s.alpha_positive, s.beta_positive)
    limit = lengths[:, :, None] if s.strategy == "subsumed" else high[:, None, None]
    others = scale_lengths(p.reshape(size, s.anchors, s.positives), low[:, None, None], limit)  # (R, A, P)
    rows, numbers = cells(size, s.anchors * s.positives)
    u = draws.uniform(POSITIVE_PLACES, rows, numbers)
    begins, ends = (np.repeat(part.reshape(-1), s.positives) for part in (starts, starts + lengths))
    places = place_positives(n[rows], begins, ends, others.reshape(-1), s.strategy, u).reshape(others.shape)
    begins = np.concatenate([starts[:, :, None], places], axis=2)
    ends = np.concatenate([(starts + lengths)[:, :, None], places + others], axis=2)
    return np.stack([begins, ends], axis=3)


class SpanViews(ViewSource):
    """Spans of documents (section 3.1). An item is a document, with A pairs of one anchor and P positives.

    A document is short if spans of some lengths may not fit into it (``SpanSettings.least_length``).

    Args:
        short_documents: ``clip`` scales the maximum length of the spans of a short document down until they fit, and the
            minimum in proportion; ``skip`` leaves it out; ``error`` raises a UserError.
        same_document_negatives: with ``exclude``, or one anchor, a pair has the identity of its document, so spans of one
            document are not negatives of each other. Else it is the hash of the anchor, and they are (the paper's hard
            negatives, which are spans of the anchor's own document).

    Attributes:
        items: (items,) int64 indices of the documents that are used.

    Raises:
        UserError: knobs contradict each other or the task's settings, a document is short and may not be, or none is left.
    """

    def __init__(
        self,
        documents: Documents,
        *,
        short_documents: str,
        same_document_negatives: str,
        tokens_per_sample: int,
        **knobs: Any,
    ) -> None:
        low, high = knobs.pop("min"), knobs.pop("max")
        s = SpanSettings(low=low, high=high, **knobs)
        if low > high:
            raise UserError(f"--views span:min={low},max={high}: min must not be above max")
        if high > tokens_per_sample:
            raise UserError(
                f"--views span:max={high}: --tokens-per-sample {tokens_per_sample} would cut such spans; give it "
                f"{high + FRAME} to hold them with <s> and </s>, or span:max={tokens_per_sample - FRAME}"
            )
        if low < s.least_span:
            raise UserError(
                f"--views span:min={low},strategy={s.strategy}: spans that partly overlap have 2 tokens or more"
            )
        self.documents, self.settings, self.anchors, self.positives = documents, s, s.anchors, s.positives
        self.contrast_documents, short = str(same_document_negatives) == "exclude", str(short_documents)
        highs = np.minimum(s.greatest_high(documents.lengths), high)  # (D,)
        self.items = np.flatnonzero(highs >= (s.least_span if short == "clip" else high))
        self._check_short(np.flatnonzero(highs < high), short)
        self._highs = highs[self.items].astype(np.int32)
        self.text_lengths = np.broadcast_to(
            self._highs[:, None] + FRAME, (len(self.items), self.anchors * (1 + self.positives))
        )

    def _check_short(self, numbers: Tokens, short: str) -> None:
        """Log how many documents are short (``numbers``); UserError if none may be, or no document is left."""
        s, documents, name, size = self.settings, self.documents, self.documents.name, len(self.documents)
        what = f"{s.anchors} anchors" if s.anchors > 1 else "an anchor"
        needs = f"{s.least_length} tokens that --views span with {what} of up to {s.high} needs"
        if short == "error" and len(numbers):
            number = int(numbers[0])
            raise UserError(
                f"{name}: document {number + 1} (line {documents.first_line(number)}) has {documents.lengths[number]} tokens, "
                f"fewer than the {needs}; give a smaller max or fewer anchors, or --short-documents clip or skip"
            )
        if len(numbers):
            dropped = size - len(self.items)
            logger.info(
                "%s: %d of %d documents have fewer than the %s: %d clipped, %d left out",
                name, len(numbers), size, needs, len(numbers) - dropped, dropped,
            )  # fmt: skip
        if not len(self.items):
            raise UserError(
                f"{name}: all {size} documents are too short: the longest has {documents.lengths.max()} tokens of the {needs}; "
                "give a smaller max or fewer anchors"
                + (", or --short-documents clip" if short == "skip" else "")
                + "; if each line is a document, --document-boundary line; else separate the documents by blank lines"
            )

    def pairs(self, indices: Tokens, draws: Draws) -> Pairs:
        """Return the A pairs of each item."""
        s, documents, numbers = self.settings, self.documents, self.items[indices]
        high = self._highs[indices].astype(np.int64)
        low = np.where(high == s.high, s.low, np.maximum(s.low * high // s.high, s.least_span))
        spans = sample_spans(documents.lengths[numbers], low, high, s, draws).reshape(-1, 1 + s.positives, 2)
        owners, each = np.repeat(numbers, s.anchors), 1 + s.positives
        texts = documents.read(np.repeat(owners, each), *spans.reshape(-1, 2).T).framed(documents.bos, documents.eos)
        if self.contrast_documents or s.anchors == 1:  # then two spans of a document are those of its copies
            identity = np.repeat(documents.identities(numbers), s.anchors)
        else:
            identity = content_hashes(texts.select(np.arange(0, len(texts), each)))
        return Pairs(texts, identity, document=owners, spans=spans)
