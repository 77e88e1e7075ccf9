"""Arrays of token ids."""

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int64]
"""Token ids, or positions of tokens: (n,) int64."""


def cut_text(tokens: Tokens, most: int) -> Tokens:
    """Cut a text to ``most`` tokens, keeping its last one."""
    return tokens if len(tokens) <= most else np.append(tokens[: most - 1], tokens[-1])
