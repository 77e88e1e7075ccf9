"""Word and span deletion (CLEAR, section 3.3): tokens become ``<del>``.

Texts keep their length in this step: each deleted token becomes a ``<del>``, and only the end of the chain collapses runs of
them. A reorder step that follows therefore still measures its spans as shares of the original length.
"""

import numpy as np

from fairseq_clear.augmentations.base import Symbols, Tokens, round_randomly
from fairseq_clear.augmentations.spans import place_spans, span_positions, span_shape


def delete_words(
    tokens: Tokens, rng: np.random.Generator, *, symbols: Symbols, ratio: float = 0.7
) -> tuple[Tokens, Tokens]:
    """Replace a share ``ratio`` of the tokens, drawn without replacement, by ``<del>``. (n,) to (n,) and (n,).

    CLEAR deletes tokens, not whole words, under this name.
    """
    count = min(len(tokens), round_randomly(ratio * len(tokens), rng))
    return _delete(tokens, rng.choice(len(tokens), count, replace=False, shuffle=False), symbols)


def delete_spans(
    tokens: Tokens, rng: np.random.Generator, *, symbols: Symbols, spans: int = 5, ratio: float = 0.05
) -> tuple[Tokens, Tokens]:
    """Replace ``spans`` disjoint spans, each a share ``ratio`` of the text, by ``<del>``. (n,) to (n,) and (n,).

    Texts too short for all spans get fewer (see ``span_shape``).
    """
    count, span_length = span_shape(len(tokens), spans, ratio, 1, rng)
    starts = place_spans(len(tokens), count, span_length, rng)
    return _delete(tokens, span_positions(starts, span_length).ravel(), symbols)


def _delete(tokens: Tokens, positions: Tokens, symbols: Symbols) -> tuple[Tokens, Tokens]:
    deleted, source = tokens.copy(), np.arange(len(tokens))
    deleted[positions] = symbols.delete
    source[positions] = -1
    return deleted, source
