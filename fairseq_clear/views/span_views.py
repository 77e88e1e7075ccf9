"""``span``: anchors of a document, and positives near each of them (DeCLUTR, section 3.1)."""

import logging

import numpy as np

from fairseq_clear.errors import UserError
from fairseq_clear.spec import Knob
from fairseq_clear.text.documents import Documents, content_hash
from fairseq_clear.views.span_sampling import STRATEGIES, SpanSettings, sample_spans
from fairseq_clear.views.view_source import RawInstance, ViewSource

__all__ = ["SPAN_KNOBS", "SpanViews", "build_span_views"]

logger = logging.getLogger(__name__)

FRAME = 2  # <s> and </s>

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


class SpanViews(ViewSource):
    """Spans of documents. An item is a document, with A pairs of one anchor and P positives, each in ``<s>`` and ``</s>``.

    A document is short if spans of some lengths may not fit into it (``SpanSettings.least_length``). ``short="clip"`` scales
    the maximum length of its spans down until they fit, and the minimum in proportion; ``skip`` leaves it out; ``error`` raises
    a UserError.

    Args:
        documents: documents of the split.
        settings: settings of the sampling.
        short: treatment of short documents.
        contrast_documents: if True, the identity of a pair is that of its document, so spans of one document are not negatives
            of each other. If False, it is the hash of the anchor, and they are (the paper's hard negatives).

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
    **knobs: int | float | str,
) -> SpanViews:
    """Build the view source from the spec's knobs and the task's settings.

    Raises:
        UserError: knobs contradict each other or the task's settings.
    """
    low, high, strategy = int(knobs["min"]), int(knobs["max"]), str(knobs["strategy"])
    if low > high:
        raise UserError(f"--views span:min={low},max={high}: min must not be above max")
    if high > tokens_per_sample:
        raise UserError(
            f"--views span:max={high}: --tokens-per-sample {tokens_per_sample} would cut such spans; give it {high + FRAME} to "
            f"hold them with <s> and </s>, or span:max={tokens_per_sample - FRAME}"
        )
    settings = SpanSettings(
        anchors=int(knobs["anchors"]),
        positives=int(knobs["positives"]),
        low=low,
        high=high,
        alpha_anchor=float(knobs["alpha_anchor"]),
        beta_anchor=float(knobs["beta_anchor"]),
        alpha_positive=float(knobs["alpha_positive"]),
        beta_positive=float(knobs["beta_positive"]),
        strategy=strategy,
    )
    if low < settings.least_span:
        raise UserError(f"--views span:min={low},strategy={strategy}: spans that partly overlap have 2 tokens or more")
    exclude = str(same_document_negatives) == "exclude"
    return SpanViews(documents, settings, short=str(short_documents), contrast_documents=exclude)
