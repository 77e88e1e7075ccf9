"""DeCLUTR's span sampling (Giorgi et al. 2020, arXiv:2006.03659, section 3.1.1), pure: lengths, anchors, positives.

A span is (start, end): the tokens x_start ... x_(end-1) of a document of n tokens.
"""

from dataclasses import dataclass

import numpy as np

from fairseq_clear.augmentations.base import Tokens

__all__ = ["STRATEGIES", "SpanSettings", "kind_of", "place_anchors", "place_positive", "sample_lengths", "sample_spans"]

STRATEGIES = ("any", "adjacent", "subsumed", "overlapping")

Span = tuple[int, int]


@dataclass(frozen=True)
class SpanSettings:
    """What a document is cut into: A ``anchors``, P ``positives`` of each, lengths from ``low`` to ``high``, the parameters of
    their beta distributions, and which kind of positives.
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
        """Tokens of the shortest document in which every draw of lengths has a place: A anchors of ``high`` tokens, ``high``
        apart. One anchor also needs room beside it where positives must lie there; several have it between them.
        """
        if self.anchors > 1:
            return (2 * self.anchors - 1) * self.high
        return {"adjacent": 3 * self.high - 1, "overlapping": self.high + 1}.get(self.strategy, self.high)

    @property
    def least_span(self) -> int:
        """The shortest span that makes sense: one that partly overlaps another has two tokens."""
        return 2 if self.strategy == "overlapping" else 1

    def greatest_high(self, lengths: Tokens) -> Tokens:
        """For documents of these lengths (D,) the greatest ``high`` that they allow: (D,)."""
        if self.anchors > 1:
            return lengths // (2 * self.anchors - 1)
        if self.strategy == "adjacent":
            return (lengths + 1) // 3
        return lengths - 1 if self.strategy == "overlapping" else lengths


def sample_lengths(
    rng: np.random.Generator, size: int | tuple[int, ...], low: int, high: int | Tokens, alpha: float, beta: float
) -> Tokens:
    """floor(p * (high - low + 1) + low) with p ~ Beta(alpha, beta): int64 of shape ``size``.

    The paper has high - low, by which no span would ever be ``high`` tokens long. This way each length has one of
    high - low + 1 equal parts of [0, 1]: P(length <= low + k) is the distribution function at (k + 1) / (high - low + 1).
    """
    p = rng.beta(alpha, beta, size)
    # p rounds to 1.0 now and then
    return np.minimum(np.floor(p * (high - low + 1) + low), high).astype(np.int64)


def place_anchors(n: int, lengths: Tokens, apart: int, rng: np.random.Generator) -> Tokens:
    """Starts (A,), ascending, of spans of these lengths at least ``apart`` tokens apart, every placement equally likely.

    One span starts uniformly in 0 ... n - length, as in the paper. For several, with each span and the gap after it shrunk
    to nothing, a placement is a multiset of A of the positions that are left.
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
    """Start of a positive of this length: uniform in {start_anchor - length ... end_anchor}, within the document, among the
    places of the strategy's kind (``kind_of``).
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
    # left of the anchor's start without touching only, and so far right that the end is beyond the anchor's
    before = max(start - length + 1, 0), min(start, last + 1)
    after = max(start, end - length + 1), min(end, last + 1)
    left = max(before[1] - before[0], 0)
    drawn = int(rng.integers(left + max(after[1] - after[0], 0)))
    return before[0] + drawn if drawn < left else after[0] + drawn - left


def kind_of(anchor: Span, positive: Span) -> str:
    """Figure 1 B: ``adjacent`` (touching), ``subsumed`` (within the anchor) or ``overlapping`` (partly; also one that the
    anchor is within).
    """
    if positive[1] == anchor[0] or positive[0] == anchor[1]:
        return "adjacent"
    return "subsumed" if anchor[0] <= positive[0] and positive[1] <= anchor[1] else "overlapping"


def sample_spans(n: int, low: int, high: int, settings: SpanSettings, rng: np.random.Generator) -> list[list[Span]]:
    """For each anchor in a document of n tokens: the anchor, then its P positives. Lengths are from low to high here, which a
    short document may have scaled.
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
