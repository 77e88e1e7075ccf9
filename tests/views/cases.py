"""What a view source makes of one item."""

from typing import NamedTuple

import numpy as np

from fairseq_clear.seeding import Draws
from fairseq_clear.text.documents import content_hashes
from fairseq_clear.tokens import Ragged, Tokens
from fairseq_clear.views.view_source import ViewSource


def content_hash(tokens: Tokens) -> int:
    return int(content_hashes(Ragged.of([tokens]))[0])


class Pair(NamedTuple):
    anchor: Tokens
    positives: list[Tokens]
    identity: int | list[int]  # a list of several hashes
    negatives: list[Tokens]
    fell_back: int
    document: int
    spans: list[tuple[int, int]]


def pairs_of(source: ViewSource, index: int, key: int = 0) -> list[Pair]:
    """The pairs of an item, which is between two others in its batch, by the draws of ``key``."""
    items = len(source.text_lengths)
    batch = np.array([items - 1, index, 0])
    pairs = source.pairs(batch, Draws(np.array([1, key, 2], np.uint64)))
    first, last, each = source.anchors, 2 * source.anchors, 1 + source.positives + source.negatives
    assert len(pairs.texts) == 3 * source.anchors * each
    alone = source.pairs(batch[1:2], Draws(np.array([key], np.uint64)))
    found = []
    for number in range(first, last):
        rows = [pairs.texts[number * each + role] for role in range(each)]
        own = [alone.texts[(number - first) * each + role] for role in range(each)]
        assert [row.tolist() for row in rows] == [row.tolist() for row in own], "an item depends on its batch"
        positives, negatives = rows[1 : 1 + source.positives], rows[1 + source.positives :]
        document = -1 if pairs.document is None else int(pairs.document[number])
        spans = [] if pairs.spans is None else [tuple(span) for span in pairs.spans[number].tolist()]
        identity = pairs.identity[number].tolist()
        assert identity == alone.identity[number - first].tolist()
        found.append(Pair(rows[0], positives, identity, negatives, alone.fell_back, document, spans))
    return found
