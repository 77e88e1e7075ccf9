"""DeCLUTR's span sampling (Giorgi et al. 2020, arXiv:2006.03659, section 3.1.1) as pure functions: lengths, anchors, positives.

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
