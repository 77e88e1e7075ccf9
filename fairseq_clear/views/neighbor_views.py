"""``neighbor``: adjacent sentences of a document (Nguyen, *Investigating Views for Contrastive Learning*).

The poster shows the view by one example: "I went to the bakery to buy a loaf of bread." and "It was very crispy and tasty.",
from a document whose third sentence is in neither. We read it as follows. A pair is a sentence and the one that follows it. An
epoch has every such pair of every document once, so an inner sentence occurs twice, as the first and as the second. With
``sentences=n``, pairs consist of spans of n sentences, into which a document is cut from its beginning; sentences left over at
its end are not used. "Negative views are different document spans within the same batch": the identity of a pair is that of
its document, so that other pairs of the document are not negatives.
"""

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fairseq_clear.augmentations.base import Tokens
from fairseq_clear.errors import UserError
from fairseq_clear.text.documents import Documents
from fairseq_clear.views.view_source import FRAME, RawInstance, ViewSource, cut_text

logger = logging.getLogger(__name__)

UNUSED = np.random.default_rng(0)  # never drawn from


class NeighborViews(ViewSource):
    """Pairs of neighbouring spans. An item is a pair, and nothing is random. Documents with only one span are left out.

    Args:
        documents: documents of the split, with one sentence per line.
        sentences: n, the number of sentences of a span.
        tokens_per_sample: maximum number of tokens of a span that the masked language model reads.

    Attributes:
        texts: the first span of each pair, the input of the masked language model.

    Raises:
        UserError: no document has two spans.
    """

    def __init__(self, documents: Documents, *, sentences: int, tokens_per_sample: int) -> None:
        self.documents, self.sentences = documents, sentences
        spans = documents.line_counts // sentences  # (D,)
        pairs = np.maximum(spans - 1, 0)  # (D,)
        self._ends = np.cumsum(pairs)
        lone = int((pairs == 0).sum())
        logger.info(
            "%s: %d pairs of neighbours; %d of %d documents have fewer than %d sentences, so no pair",
            documents.name, self._ends[-1], lone, len(documents), 2 * sentences,
        )  # fmt: skip
        if not self._ends[-1]:
            raise UserError(
                f"{documents.name}: no document has {2 * sentences} sentences, which --views neighbor:sentences={sentences} "
                "pairs; put one sentence on a line and a blank line between documents, or pair the text with itself: "
                "--views same"
            )
        lengths = documents.line_span_lengths(sentences) + FRAME  # (all spans,)
        ends = np.cumsum(spans)[spans > 0]
        self.text_lengths = np.empty((int(self._ends[-1]), 2), np.int32)
        # a first text is never the last span of a document, a second text never the first span
        for column, left_out in enumerate((ends - 1, ends - spans[spans > 0])):
            in_pair = np.ones(len(lengths), np.bool_)
            in_pair[left_out] = False
            self.text_lengths[:, column] = lengths[in_pair]
        self.texts = FirstSpans(self.text_lengths[:, 0], self.anchor, tokens_per_sample)
        long = int((self.text_lengths > tokens_per_sample).sum())
        if long:
            logger.info(
                "%s: %d of their %d spans are longer than --tokens-per-sample %d and are cut off",
                documents.name, long, self.text_lengths.size, tokens_per_sample,
            )  # fmt: skip

    def __call__(self, index: int, rng: np.random.Generator) -> list[RawInstance]:
        """Return the pair of an item."""
        number, span = locate(self._ends, index)
        n = self.sentences
        lines = self.documents.lines(number, span * n, (span + 2) * n)
        middle, end = int(lines.line_ends[n - 1]), len(lines)
        begin = self.documents.position(number, span * n)
        return [
            RawInstance(
                lines.span(0, middle),
                (lines.span(middle, end),),
                self.documents.identity(number),
                document=number,
                spans=((begin, begin + middle), (begin + middle, begin + end)),
            )
        ]

    def anchor(self, index: int) -> Tokens:
        """Return the first span of an item."""
        return self(index, UNUSED)[0].anchor


class FirstSpans:
    """A data set of the first text of each pair, cut to ``max_tokens`` but keeping ``</s>``.

    Args:
        lengths: (items,) lengths of the texts.
        anchor: returns the text of an item.
        max_tokens: maximum number of tokens, ``<s>`` and ``</s>`` included.
    """

    def __init__(self, lengths: npt.NDArray[np.integer[Any]], anchor: Callable[[int], Tokens], max_tokens: int) -> None:
        self.anchor, self.max_tokens = anchor, max_tokens
        self.sizes: Tokens = np.minimum(lengths, max_tokens)

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> Any:
        return torch.from_numpy(cut_text(self.anchor(index), self.max_tokens))


def locate(ends: npt.NDArray[np.int64], index: int) -> tuple[int, int]:
    """Document of an item, and the item's number in it. ``ends`` are the cumulative numbers of items of the documents."""
    number = int(np.searchsorted(ends, index, side="right"))
    return number, index - (int(ends[number - 1]) if number else 0)
