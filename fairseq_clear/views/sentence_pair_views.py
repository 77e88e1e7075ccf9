"""``titles``, ``neighbor`` and ``cloze``: a title and its text, adjacent sentences, or a sentence and its context.

Pairs of one document are not negatives of each other, and neither are pairs that share a text. "Negative views are different
document spans within the same batch" (Nguyen, *Investigating Views for Contrastive Learning*), and contexts of one document
overlap.
"""

import logging
from collections.abc import Sequence

import numpy as np

from fairseq_clear.errors import UserError
from fairseq_clear.seeding import Draws
from fairseq_clear.text.documents import Documents, content_hashes
from fairseq_clear.tokens import Bools, Ragged, Tokens, interleave
from fairseq_clear.views.view_source import FRAME, Pairs, ViewSource

logger = logging.getLogger(__name__)

CHUNK_ITEMS = 1 << 16


class SentencePairs(ViewSource):
    """Pairs of texts of the same document, for documents with one sentence per line. An item is a pair.

    Args:
        pairs: (D,) number of pairs of each document.
        made_of, spec, least: for messages, what a pair consists of, the view source, and the number of sentences it needs.

    Raises:
        UserError: no document has a pair.
    """

    def __init__(self, documents: Documents, pairs: Tokens, *, made_of: str, least: int, spec: str) -> None:
        self.documents, self._ends = documents, np.cumsum(pairs)
        lone = int((pairs == 0).sum())
        logger.info(
            "%s: %d pairs of %s; %d of %d documents have fewer than %d sentences, so no pair",
            documents.name, self._ends[-1], made_of, lone, len(documents), least,
        )  # fmt: skip
        if not self._ends[-1]:
            raise UserError(
                f"{documents.name}: no document has {least} sentences, which --views {spec} needs; put one sentence on a line "
                "and a blank line between documents, or pair each text with itself: --views same"
            )

        self.text_lengths = np.empty((int(self._ends[-1]), 2), np.int32)
        for first in range(0, len(self.text_lengths), CHUNK_ITEMS):  # int64 temporaries cover one chunk
            rows = self.text_lengths[first : first + CHUNK_ITEMS]
            rows[:] = np.stack(self._lengths(np.arange(first, first + len(rows))), axis=1) + FRAME

    def _lengths(self, indices: Tokens) -> tuple[Tokens, Tokens]:
        """Return upper bounds of the lengths of both texts of items, without ``<s>`` and ``</s>``."""
        raise NotImplementedError

    def _locate(self, indices: Tokens) -> tuple[Tokens, Tokens]:
        """Return the documents of items (I,), and the number of each item within its document."""
        numbers = np.searchsorted(self._ends, indices, side="right")
        return numbers, indices - np.where(numbers > 0, self._ends[numbers - 1], 0)

    def _positions(self, numbers: Tokens, lines: Sequence[Tokens]) -> Tokens:
        """Return the positions of several lines of each document: a row for each entry of ``lines``, all (I,)."""
        found = self.documents.positions(np.tile(numbers, len(lines)), np.concatenate(lines))
        return found.reshape(len(lines), -1)

    def _pairs(self, texts: Ragged, numbers: Tokens, spans: list[Tokens]) -> Pairs:
        """Frame the texts of pairs; ``spans`` are begin and end of the first text, then of the second, each (I,)."""
        documents = self.documents
        both = np.stack(spans, axis=1).reshape(-1, 2, 2)
        identity, framed = documents.identities(numbers), texts.framed(documents.bos, documents.eos)
        return Pairs.of_documents(framed, identity, numbers, both)


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
        spec = f"neighbor:sentences={sentences}"
        super().__init__(documents, np.maximum(spans - 1, 0), made_of="neighbours", least=2 * sentences, spec=spec)
        long = int((self.text_lengths > tokens_per_sample).sum())
        if long:
            logger.info(
                "%s: %d of the %d spans are longer than --tokens-per-sample %d and are cut off",
                documents.name, long, self.text_lengths.size, tokens_per_sample,
            )  # fmt: skip

    def pairs(self, indices: Tokens, draws: Draws | None = None) -> Pairs:
        """Return the pairs of items."""
        numbers, begin, middle, end = self._window(indices)
        twice = np.repeat(numbers, 2)
        begins, ends = (np.stack(two, axis=1).reshape(-1) for two in ((begin, middle), (middle, end)))
        return self._pairs(self.documents.read(twice, begins, ends), numbers, [begin, middle, middle, end])

    def _window(self, indices: Tokens) -> tuple[Tokens, ...]:
        """Return the documents of items, and in each: begin of the first span, end of the first, end of the second."""
        numbers, span = self._locate(indices)
        return numbers, *self._positions(numbers, [(span + n) * self.sentences for n in range(3)])

    def _lengths(self, indices: Tokens) -> tuple[Tokens, Tokens]:
        _, begin, middle, end = self._window(indices)
        return middle - begin, end - middle


class ClozeViews(SentencePairs):
    """Pairs of a sentence and the context around it (inverse cloze task). Sentences without context are left out.

    Lee, Chang and Toutanova 2019 (arXiv:1906.00300), section 4: "given a sentence, predict its context". The paper
    removes the sentence from its context in 90 % of the pairs. The other pairs keep the sentence, so that the encoder also
    learns to match words. The paper's context is the block of text around the sentence. Here it is up to ``before`` sentences
    before and ``after`` sentences after the sentence. An epoch has every sentence of every document once as a query.

    A context of more than ``tokens_per_sample`` tokens, including ``<s>`` and ``</s>``, loses outer tokens on both sides, in
    proportion to the lengths of the sides. It keeps the sentence only if at least one other token fits. The span of a context
    in ``Pairs.spans`` runs from its first to its last token, with or without the sentence.

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
        pairs = np.where(counts > 1, counts - (after == 0) - (before == 0), 0)  # (D,)
        super().__init__(documents, pairs, made_of="a sentence and its context", least=2, spec="cloze")

    def pairs(self, indices: Tokens, draws: Draws) -> Pairs:
        """Return the pairs of items."""
        numbers, first, begin, end, last = self._window(indices)
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

    def _window(self, indices: Tokens) -> tuple[Tokens, ...]:
        """Return the documents of items, and in each: begin of context and sentence, end of sentence and context."""
        numbers, lines = self._locate(indices)
        lines, counts = lines + (self.after == 0), self.documents.line_counts[numbers]
        window = np.maximum(lines - self.before, 0), lines, lines + 1, np.minimum(lines + self.after + 1, counts)
        return numbers, *self._positions(numbers, window)

    def _lengths(self, indices: Tokens) -> tuple[Tokens, Tokens]:
        _, first, begin, end, last = self._window(indices)
        contexts = last - first - (0 if self.keep else end - begin)
        return end - begin, np.minimum(contexts, self.room)

    def _trimmed(self, begin: Tokens, end: Tokens, length: Tokens, is_kept: Bools) -> tuple[Tokens, Tokens]:
        """Return begin and end of the used part of each context (0, length) around the sentence (begin, end)."""
        left, right = begin, length - end
        room = self.room - np.where(is_kept, end - begin, 0)
        is_long = left + right > room
        shorter = room * left // np.maximum(left + right, 1)
        left, right = np.where(is_long, shorter, left), np.where(is_long, room - shorter, right)
        # with no tokens on one side of a removed sentence, the span lies on its other side
        low = np.where((left > 0) | is_kept, begin - left, end)
        return low, np.where((right > 0) | is_kept, end + right, begin)


class TitleViews(ViewSource):
    """Pairs of a document's title, which is the first line, and the text below the title. Nothing is random.

    A text that repeats the title at its beginning loses the repetition. A text of more than ``tokens_per_sample`` tokens,
    including ``<s>`` and ``</s>``, is cut off. The first line is no title if it is the only line, has more than ``longest``
    tokens, or begins several documents, as a heading does. Documents without a title are left out and counted.

    Attributes:
        items: (items,) int64 indices of the documents that are used.

    Raises:
        UserError: no document has a title.
    """

    def __init__(self, documents: Documents, *, longest: int, tokens_per_sample: int) -> None:
        self.documents, self.room = documents, tokens_per_sample - FRAME
        counts = documents.line_counts  # (D,)
        lengths = documents.positions(np.arange(len(counts)), np.ones_like(counts))  # (D,) of the first lines
        is_lone, is_long = counts == 1, lengths > min(longest, self.room)
        is_repeated = repeated_first_lines(documents, ~is_lone & ~is_long, lengths)
        self.items = np.flatnonzero(~(is_lone | is_long | is_repeated))
        why = f"{is_lone.sum()} have one line, {(is_long & ~is_lone).sum()} begin with more than "
        why += f"{min(longest, self.room)} tokens, and {is_repeated.sum()} share their first line with another"
        logger.info("%s: %d of %d documents have a title; %s", documents.name, len(self.items), len(counts), why)
        if not len(self.items):
            raise UserError(
                f"{documents.name}: no document has a title for --views titles: {why}; put the title on the first line of its "
                "document, or choose another view"
            )
        self._titles = lengths[self.items]
        rest = np.minimum(documents.lengths[self.items] - self._titles, self.room)
        self.text_lengths = np.stack([self._titles, rest], axis=1).astype(np.int32) + FRAME

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
        return Pairs.of_documents(texts, documents.identities(numbers), numbers, spans)


def repeated_first_lines(documents: Documents, among: Bools, lengths: Tokens) -> Bools:
    """Return which documents ``among`` (D,) share their first line, of ``lengths`` (D,), with another one: (D,) bool."""
    numbers, hashes = np.flatnonzero(among), [np.zeros(0, np.int64)]
    for begin in range(0, len(numbers), CHUNK_ITEMS):
        rows = numbers[begin : begin + CHUNK_ITEMS]
        hashes.append(content_hashes(documents.read(rows, np.zeros_like(rows), lengths[rows])))
    _, which, counts = np.unique(np.concatenate(hashes), return_inverse=True, return_counts=True)
    repeated = np.zeros(len(among), np.bool_)
    repeated[numbers] = counts[which] > 1
    return repeated
