"""Random span masking (Mirror-BERT, Liu et al. 2021, arXiv:2104.08027, section 2.1): one span becomes ``<mask>``.

The paper replaces a random span of k = 5 characters in one of the two copies of a text; its public code
(cambridgeltl/mirror-bert) leaves texts of fewer than 30 characters as they are. Training data are tokens here, so the span
consists of whole tokens: an English word piece has about as many characters. ``--augment-texts positives`` leaves the other
copy as it is.
"""

import numpy as np

from fairseq_clear.augmentations.base import Symbols, Tokens


def mask_span(tokens: Tokens, rng: np.random.Generator, *, symbols: Symbols, length: int = 1) -> tuple[Tokens, Tokens]:
    """Replace ``length`` tokens in a row by one ``<mask>``; each place has the same probability. (n,) to (m,) and (m,).

    A text of at most ``length`` tokens stays as it is.
    """
    source = np.arange(len(tokens))
    if length < 1 or len(tokens) <= length:
        return tokens.copy(), source
    start = int(rng.integers(len(tokens) - length + 1))
    kept = np.concatenate([source[: start + 1], source[start + length :]])  # the span's first token gives its place
    masked, origin = tokens[kept], kept
    masked[start], origin[start] = symbols.mask, -1
    return masked, origin
