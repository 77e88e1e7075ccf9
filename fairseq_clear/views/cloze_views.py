"""``cloze``: a sentence of a document and the context around it (the inverse cloze task).

Lee, Chang and Toutanova 2019 (arXiv:1906.00300), section 4: "given a sentence, predict its context". The sentence is removed
from its context for 90 % of the pairs; it is left in for the others, so that the encoder also learns to match words. They take
the block of text around the sentence; here the context is ``before`` sentences before it and ``after`` after it, as far as the
document goes. An epoch has every sentence of every document once as a query. As for ``neighbor``, the identity of a pair is
that of its document, because contexts of one document overlap: its other pairs are not negatives.
"""

import logging

import numpy as np
import numpy.typing as npt

from fairseq_clear.augmentations.base import Tokens
from fairseq_clear.errors import UserError
from fairseq_clear.spec import Knob
from fairseq_clear.text.documents import CHUNK_DOCUMENTS, Document, Documents
from fairseq_clear.views.neighbor_views import FirstSpans, locate
from fairseq_clear.views.view_source import FRAME, RawInstance, ViewSource

logger = logging.getLogger(__name__)

LONGEST_CONTEXT = 10_000  # sentences on each side

CLOZE_KNOBS = {
    "before": Knob(2, int, 0, LONGEST_CONTEXT, help="number of sentences of the context before the sentence"),
    "after": Knob(4, int, 0, LONGEST_CONTEXT, help="number of sentences of the context after the sentence"),
    "keep": Knob(0.1, float, 0, 1, help="probability that the sentence is left in its context"),
}


class ClozeViews(ViewSource):
    """Pairs of a sentence and its context. An item is a sentence; sentences without context are left out.

    A context with more than ``tokens_per_sample`` tokens, ``<s>`` and ``</s>`` included, loses its outer tokens, on both sides
    in proportion to their lengths. A sentence is left in only if that leaves at least one other token. The span of a context in
    ``RawInstance.spans`` begins with its first token and ends with its last, whether the sentence is left in or not.

    Args:
        documents: documents of the split, with one sentence per line.
        before, after: greatest number of sentences of a context before and after the sentence.
        keep: probability that the sentence is left in the context.
        tokens_per_sample: maximum number of tokens of a context, and of a sentence that the masked language model reads.

    Attributes:
        texts: the sentences, input of the masked language model.

    Raises:
        UserError: a context would always be empty, or no document has two sentences.
    """

    def __init__(self, documents: Documents, *, before: int, after: int, keep: float, tokens_per_sample: int) -> None:
        if not before + after:
            raise UserError("--views cloze:before=0,after=0: a context needs sentences; give before or after 1 or more")
        self.documents, self.before, self.after, self.keep = documents, before, after, keep
        self.room = tokens_per_sample - FRAME
        counts = documents.line_counts  # (D,)
        # the last sentence has no context with before=0, the first none with after=0
        self._skipped = int(after == 0), int(before == 0)
        pairs = np.where(counts > 1, counts - sum(self._skipped), 0)  # (D,)
        self._ends = np.cumsum(pairs)
        lone = int((pairs == 0).sum())
        logger.info(
            "%s: %d pairs of a sentence and its context; %d of %d documents have one sentence, so no pair",
            documents.name, self._ends[-1], lone, len(documents),
        )  # fmt: skip
        if not self._ends[-1]:
            raise UserError(
                f"{documents.name}: no document has 2 sentences, which --views cloze pairs; put one sentence on a line and a "
                "blank line between documents, or pair the text with itself: --views same"
            )
        self.text_lengths = self._lengths(documents.line_span_lengths(1))
        self.texts = FirstSpans(self.text_lengths[:, 0], self.anchor, tokens_per_sample)

    def __call__(self, index: int, rng: np.random.Generator) -> list[RawInstance]:
        """Return the pair of an item."""
        number, line = self._locate(index)
        first, last = max(line - self.before, 0), min(line + self.after + 1, int(self.documents.line_counts[number]))
        lines = self.documents.lines(number, first, last)
        begin, end = (int(lines.line_ends[one]) if one >= 0 else 0 for one in (line - first - 1, line - first))
        is_kept = bool(rng.random() < self.keep) and end - begin < self.room
        low, high = self._trimmed(begin, end, len(lines), is_kept)
        origin = self.documents.position(number, first)
        return [
            RawInstance(
                lines.span(begin, end),
                (lines.span(low, high) if is_kept else without(lines, low, begin, end, high),),
                self.documents.identity(number),
                document=number,
                spans=((origin + begin, origin + end), (origin + low, origin + high)),
            )
        ]

    def anchor(self, index: int) -> Tokens:
        """Return the sentence of an item, in ``<s>`` and ``</s>``."""
        number, line = self._locate(index)
        sentence = self.documents.lines(number, line, line + 1)
        return sentence.span(0, len(sentence))

    def _locate(self, index: int) -> tuple[int, int]:
        """Document and line of an item."""
        number, line = locate(self._ends, index)
        return number, line + self._skipped[0]

    def _trimmed(self, begin: int, end: int, length: int, is_kept: bool) -> tuple[int, int]:
        """Begin and end of the part of a context (0, length) around the sentence (begin, end) that is used."""
        left, right = begin, length - end
        room = self.room - (end - begin if is_kept else 0)
        if left + right > room:
            left = room * left // (left + right)
            right = room - left
        # without tokens on a side, the span touches the sentence on the other
        return (begin - left if left or is_kept else end), (end + right if right or is_kept else begin)

    def _lengths(self, lengths: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Upper bounds of the lengths of sentences and contexts, (items, 2), from the number of tokens of each line (L,)."""
        bounds = np.empty((int(self._ends[-1]), 2), np.int32)
        lines = done = 0
        for chunk in range(0, len(self.documents), CHUNK_DOCUMENTS):  # int64 temporaries cover one chunk
            counts = self.documents.line_counts[chunk : chunk + CHUNK_DOCUMENTS]  # (C,)
            ends, line = np.repeat(np.cumsum(counts), counts), np.arange(int(counts.sum()))  # (lines of the chunk,)
            begins = ends - np.repeat(counts, counts)
            sentences = lengths[lines : lines + len(line)]
            total = np.concatenate([[0], np.cumsum(sentences, dtype=np.int64)])
            contexts = total[np.minimum(line + self.after + 1, ends)] - total[np.maximum(line - self.before, begins)]
            contexts -= 0 if self.keep else sentences
            is_item = (ends - begins > 1) & (line >= begins + self._skipped[0]) & (line < ends - self._skipped[1])
            rows = bounds[done : done + int(is_item.sum())]
            rows[:, 0] = sentences[is_item] + FRAME
            rows[:, 1] = np.minimum(contexts[is_item], self.room) + FRAME
            lines, done = lines + len(line), done + len(rows)
        return bounds


def without(lines: Document, low: int, begin: int, end: int, high: int) -> Tokens:
    """Return the tokens ``low`` to ``high`` without ``begin`` to ``end`` (ends exclusive), in ``<s>`` and ``</s>``."""
    before = lines.span(min(low, begin), begin)
    return np.concatenate([before[:-1], lines.span(end, max(high, end))[1:]])
