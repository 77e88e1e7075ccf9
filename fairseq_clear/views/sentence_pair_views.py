"""``titles``, ``neighbor`` and ``cloze``: a title and its text, adjacent sentences, or a sentence and its context.

A pair has the identity of its document, so pairs of one document are not negatives of each other. "Negative views are
different document spans within the same batch" (Nguyen, *Investigating Views for Contrastive Learning*); contexts of one
document overlap.
"""

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fairseq_clear.errors import UserError
from fairseq_clear.seeding import Draws
from fairseq_clear.spec import Knob
from fairseq_clear.text.documents import CHUNK_DOCUMENTS, Documents
from fairseq_clear.tokens import Ragged, Tokens, interleave
from fairseq_clear.views.view_source import FRAME, Pairs, ViewSource

logger = logging.getLogger(__name__)

LONGEST_CONTEXT = 10_000  # sentences on each side

NEIGHBOR_KNOBS = {"sentences": Knob(1, int, 1, help="number of sentences in a span")}
CLOZE_KNOBS = {
    "before": Knob(2, int, 0, LONGEST_CONTEXT, help="number of context sentences before the sentence"),
    "after": Knob(4, int, 0, LONGEST_CONTEXT, help="number of context sentences after the sentence"),
    "keep": Knob(0.1, float, 0, 1, help="probability that the sentence is left in its context"),
}
TITLE_KNOBS = {"longest": Knob(40, int, 1, help="maximum number of tokens in a title; a longer first line is no title")}


class SentencePairs(ViewSource):
    """Pairs of texts of the same document, for documents with one sentence per line. An item is a pair.

    Args:
        documents: documents of the split.
        pairs: (D,) number of pairs of each document.
        made_of, too_few: descriptions of a pair and of documents without a pair, for the log.
        least, spec: number of sentences that a pair needs, and name of the view source, for the error.

    Attributes:
        mlm_input: the first text of each pair, input of the masked language model.

    Raises:
        UserError: no document has a pair.
    """

    mlm_reads_anchors = True

    def __init__(
        self, documents: Documents, pairs: npt.NDArray[np.int64], *, made_of: str, too_few: str, least: int, spec: str
    ) -> None:
        self.documents, self._ends = documents, np.cumsum(pairs)
        lone = int((pairs == 0).sum())
        logger.info(
            "%s: %d pairs of %s; %d of %d documents have %s, so no pair",
            documents.name, self._ends[-1], made_of, lone, len(documents), too_few,
        )  # fmt: skip
        if not self._ends[-1]:
            raise UserError(
                f"{documents.name}: no document has {least} sentences, which --views {spec} needs; put one sentence on a line "
                "and a blank line between documents, or pair each text with itself: --views same"
            )

    def _locate(self, indices: Tokens) -> tuple[Tokens, Tokens]:
        """Return the documents of items (I,), and the number of each item within its document."""
        numbers = np.searchsorted(self._ends, indices, side="right")
        return numbers, indices - np.where(numbers > 0, self._ends[numbers - 1], 0)

    def _pairs(self, texts: Ragged, numbers: Tokens, spans: list[Tokens]) -> Pairs:
        """Frame the texts of pairs; ``spans`` are begin and end of the first text, then of the second, each (I,)."""
        documents = self.documents
        both = np.stack(spans, axis=1).reshape(-1, 2, 2)
        identity, framed = documents.identities(numbers), texts.framed(documents.bos, documents.eos)
        return Pairs(framed, identity, np.zeros(0, np.int64), document=numbers, spans=both)


class NeighborViews(SentencePairs):
    """Pairs of neighbouring spans (Nguyen). Nothing is random. Documents with only one span are left out.

    The poster gives one example of a pair: "I went to the bakery to buy a loaf of bread." and "It was very crispy and tasty.",
    without the third sentence of the document. We read it as follows. A pair is a sentence and the next sentence. An epoch has
    every such pair of every document once, so an inner sentence occurs twice, as the first and as the second text. With
    ``sentences=n``, a pair consists of two adjacent spans. The spans of n sentences are cut from the beginning of the document;
    sentences left over at the end are not used.

    Args:
        documents: documents of the split, with one sentence per line.
        sentences: n, the number of sentences in a span.
        tokens_per_sample: maximum number of tokens of a span that the masked language model reads.

    Raises:
        UserError: no document has two spans.
    """

    def __init__(self, documents: Documents, *, sentences: int, tokens_per_sample: int) -> None:
        self.sentences = sentences
        spans = documents.line_counts // sentences  # (D,)
        few, spec = f"fewer than {2 * sentences} sentences", f"neighbor:sentences={sentences}"
        super().__init__(
            documents, np.maximum(spans - 1, 0), made_of="neighbours", too_few=few, least=2 * sentences, spec=spec
        )
        lengths = documents.line_span_lengths(sentences) + FRAME  # (all spans,)
        ends = np.cumsum(spans)[spans > 0]
        self.text_lengths = np.empty((int(self._ends[-1]), 2), np.int32)
        # a first text is never the last span of a document, a second text never the first span
        for column, left_out in enumerate((ends - 1, ends - spans[spans > 0])):
            in_pair = np.ones(len(lengths), np.bool_)
            in_pair[left_out] = False
            self.text_lengths[:, column] = lengths[in_pair]
        self.mlm_input = FirstTexts(self.text_lengths[:, 0], self.first_texts, tokens_per_sample)
        long = int((self.text_lengths > tokens_per_sample).sum())
        if long:
            logger.info(
                "%s: %d of the %d spans are longer than --tokens-per-sample %d and are cut off",
                documents.name, long, self.text_lengths.size, tokens_per_sample,
            )  # fmt: skip

    def pairs(self, indices: Tokens, draws: Draws | None = None) -> Pairs:
        """Return the pairs of items."""
        numbers, span = self._locate(indices)
        begin, middle, end = (self.documents.positions(numbers, (span + n) * self.sentences) for n in range(3))
        twice = np.repeat(numbers, 2)
        begins, ends = (np.stack(two, axis=1).reshape(-1) for two in ((begin, middle), (middle, end)))
        return self._pairs(self.documents.read(twice, begins, ends), numbers, [begin, middle, middle, end])

    def first_texts(self, indices: Tokens) -> Ragged:
        """Return the first spans of items."""
        return self.pairs(indices).anchors()


class ClozeViews(SentencePairs):
    """Pairs of a sentence and the context around it (inverse cloze task). Sentences without context are left out.

    Lee, Chang and Toutanova 2019 (arXiv:1906.00300), section 4: "given a sentence, predict its context". The paper
    removes the sentence from its context in 90 % of the pairs. The other pairs keep the sentence, so that the encoder also
    learns to match words. The paper's context is the block of text around the sentence. Here it is up to ``before`` sentences
    before and ``after`` sentences after the sentence. An epoch has every sentence of every document once as a query.

    A context of more than ``tokens_per_sample`` tokens, including ``<s>`` and ``</s>``, loses outer tokens on both sides, in
    proportion to the lengths of the sides. It keeps the sentence only if at least one other token fits. The span of a context
    in ``RawInstance.spans`` runs from its first to its last token, with or without the sentence.

    Args:
        documents: documents of the split, with one sentence per line.
        before, after: maximum number of context sentences before and after the sentence.
        keep: probability that the sentence is left in the context.
        tokens_per_sample: maximum number of tokens of a context, and of a sentence that the masked language model reads.

    Raises:
        UserError: a context would always be empty, or no document has two sentences.
    """

    def __init__(self, documents: Documents, *, before: int, after: int, keep: float, tokens_per_sample: int) -> None:
        if not before + after:
            raise UserError("--views cloze:before=0,after=0: the context is empty; set before or after to 1 or more")
        self.before, self.after, self.keep = before, after, keep
        self.room = tokens_per_sample - FRAME
        counts = documents.line_counts  # (D,)
        # before=0 leaves the last sentence without context, after=0 the first one
        self._skipped = int(after == 0), int(before == 0)
        pairs = np.where(counts > 1, counts - sum(self._skipped), 0)  # (D,)
        words = {"made_of": "a sentence and its context", "too_few": "one sentence", "spec": "cloze"}
        super().__init__(documents, pairs, least=2, **words)
        self.text_lengths = self._lengths(documents.line_span_lengths(1))
        self.mlm_input = FirstTexts(self.text_lengths[:, 0], self.first_texts, tokens_per_sample)

    def pairs(self, indices: Tokens, draws: Draws) -> Pairs:
        """Return the pairs of items."""
        numbers, lines = self._locate(indices)
        counts = self.documents.line_counts[numbers]
        window = np.maximum(lines - self.before, 0), lines, lines + 1, np.minimum(lines + self.after + 1, counts)
        first, begin, end, last = (self.documents.positions(numbers, line) for line in window)
        is_kept = (draws.per_row(0) < self.keep) & (end - begin < self.room)
        low, high = self._trimmed(begin - first, end - first, last - first, is_kept)
        low, high = low + first, high + first
        # three parts of each document: the sentence, the context before it and after it; a kept sentence is in the latter
        begins = [begin, np.minimum(low, begin), np.where(is_kept, begin, end)]
        ends = [end, begin, np.where(is_kept, high, np.maximum(high, end))]
        bounds = (np.stack(three, axis=1).reshape(-1) for three in (begins, ends))
        parts = self.documents.read(np.repeat(numbers, 3), *bounds)
        lengths = parts.lengths.reshape(-1, 3)
        joined = np.stack([lengths[:, 0], lengths[:, 1] + lengths[:, 2]], axis=1).reshape(-1)
        return self._pairs(Ragged.of_lengths(parts.tokens, joined), numbers, [begin, end, low, high])

    def first_texts(self, indices: Tokens) -> Ragged:
        """Return the sentences of items, between ``<s>`` and ``</s>``."""
        numbers, lines = self._locate(indices)
        bounds = (self.documents.positions(numbers, line) for line in (lines, lines + 1))
        return self.documents.read(numbers, *bounds).framed(self.documents.bos, self.documents.eos)

    def _locate(self, indices: Tokens) -> tuple[Tokens, Tokens]:
        """Return the documents and the lines of items."""
        numbers, lines = super()._locate(indices)
        return numbers, lines + self._skipped[0]

    def _trimmed(
        self, begin: Tokens, end: Tokens, length: Tokens, is_kept: npt.NDArray[np.bool_]
    ) -> tuple[Tokens, Tokens]:
        """Return begin and end of the used part of each context (0, length) around the sentence (begin, end)."""
        left, right = begin, length - end
        room = self.room - np.where(is_kept, end - begin, 0)
        is_long = left + right > room
        shorter = room * left // np.maximum(left + right, 1)
        left, right = np.where(is_long, shorter, left), np.where(is_long, room - shorter, right)
        # with no tokens on one side of a removed sentence, the span lies on its other side
        low = np.where((left > 0) | is_kept, begin - left, end)
        return low, np.where((right > 0) | is_kept, end + right, begin)

    def _lengths(self, lengths: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Return upper bounds of the lengths of sentences and contexts (items, 2), given the tokens per line (L,)."""
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


class TitleViews(ViewSource):
    """Pairs of a document's title, which is the first line, and the text below the title. Nothing is random.

    A text that repeats the title at its beginning loses the repetition. A text of more than ``tokens_per_sample`` tokens,
    including ``<s>`` and ``</s>``, is cut off. The first line is no title if it is the only line, has more than ``longest``
    tokens, or begins several documents, as a heading does. Documents without a title are left out and counted.

    Args:
        documents: documents of the split, the title on the first line.
        longest: maximum number of tokens in a title.
        tokens_per_sample: maximum number of tokens of a text.

    Attributes:
        items: (items,) int64 indices of the documents that are used.

    Raises:
        UserError: no document has a title.
    """

    mlm_reads_anchors = True

    def __init__(self, documents: Documents, *, longest: int, tokens_per_sample: int) -> None:
        self.documents, self.room = documents, tokens_per_sample - FRAME
        counts = documents.line_counts  # (D,)
        lengths = documents.line_span_lengths(1)[np.cumsum(counts) - counts]  # (D,) of the first lines
        is_lone, is_long = counts == 1, lengths > min(longest, self.room)
        is_repeated = repeated_first_lines(documents, ~is_lone & ~is_long, lengths)
        self.items = np.flatnonzero(~(is_lone | is_long | is_repeated))
        why = f"{is_lone.sum()} have one line, {(is_long & ~is_lone).sum()} begin with more than {longest} tokens, and "
        why += f"{is_repeated.sum()} share their first line with another"
        logger.info("%s: %d of %d documents have a title; %s", documents.name, len(self.items), len(counts), why)
        if not len(self.items):
            raise UserError(
                f"{documents.name}: no document has a title for --views titles: {why}; put the title on the first line of its "
                "document, or choose another view"
            )
        self._titles = lengths[self.items]
        rest = np.minimum(documents.lengths[self.items] - self._titles, self.room)
        self.text_lengths = np.stack([self._titles, rest], axis=1).astype(np.int32) + FRAME
        self.mlm_input = FirstTexts(self.text_lengths[:, 0], self.first_texts, tokens_per_sample)

    def pairs(self, indices: Tokens, draws: Draws | None = None) -> Pairs:
        """Return the pairs of items."""
        documents, numbers, begin = self.documents, self.items[indices], self._titles[indices].astype(np.int64)
        lengths, first = documents.lengths[numbers], begin.copy()
        titles = documents.read(numbers, np.zeros_like(begin), begin)
        twice = np.flatnonzero(lengths > 2 * begin)  # long enough to repeat the title
        again = documents.read(numbers[twice], begin[twice], 2 * begin[twice])
        for row, number in enumerate(twice.tolist()):
            if np.array_equal(again[row], titles[number]):
                first[number] = 2 * begin[number]
        last = np.minimum(lengths, first + self.room)
        texts = interleave([titles, documents.read(numbers, first, last)]).framed(documents.bos, documents.eos)
        spans = np.stack([np.zeros_like(begin), begin, first, last], axis=1).reshape(-1, 2, 2)
        identity = documents.identities(numbers)
        return Pairs(texts, identity, np.zeros(0, np.int64), document=numbers, spans=spans)

    def first_texts(self, indices: Tokens) -> Ragged:
        """Return the titles of items, between ``<s>`` and ``</s>``."""
        begin = self._titles[indices].astype(np.int64)
        titles = self.documents.read(self.items[indices], np.zeros_like(begin), begin)
        return titles.framed(self.documents.bos, self.documents.eos)


def repeated_first_lines(
    documents: Documents, among: npt.NDArray[np.bool_], lengths: npt.NDArray[np.int32]
) -> npt.NDArray[np.bool_]:
    """Return which documents ``among`` (D,) share their first line, of ``lengths`` (D,), with another one: (D,) bool."""
    repeated = np.zeros(len(among), np.bool_)
    begins = [part.starts(bounds[:, 0]) for part, bounds in zip(documents.parts, documents.bounds, strict=True)]
    owners = np.repeat(np.arange(len(begins)), list(map(len, begins)))
    starts = np.concatenate(begins)
    for length in np.unique(lengths[among]).tolist():
        rows = np.flatnonzero(among & (lengths == length))
        lines = np.empty((len(rows), length), np.int64)
        for number, part in enumerate(documents.parts):
            mine = owners[rows] == number
            lines[mine] = part.tokens[starts[rows[mine], None] + np.arange(length)]
        _, which, counts = np.unique(lines, axis=0, return_inverse=True, return_counts=True)
        repeated[rows] = counts[which.reshape(-1)] > 1
    return repeated


class FirstTexts:
    """A data set of the first text of each pair, by ``first_texts`` of a source, cut to ``max_tokens``, keeping ``</s>``."""

    def __init__(
        self, lengths: npt.NDArray[np.integer[Any]], first_texts: Callable[[Tokens], Ragged], max_tokens: int
    ) -> None:
        self.first_texts, self.max_tokens = first_texts, max_tokens
        self.sizes: Tokens = np.minimum(lengths, max_tokens)

    def __len__(self) -> int:
        return len(self.sizes)

    def rows(self, indices: Tokens) -> Ragged:
        """Return several texts."""
        return self.first_texts(indices).cut(self.max_tokens)

    def __getitem__(self, index: int) -> Any:
        return torch.from_numpy(self.rows(np.array([index]))[0])
