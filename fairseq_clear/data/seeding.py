"""Random generators that depend on what is drawn, never on who draws it or when."""

import hashlib

import numpy as np
import numpy.typing as npt

__all__ = ["content_hash", "rng_for"]


def rng_for(seed: int, epoch: int, index: int, view: int) -> np.random.Generator:
    """One generator per (seed, epoch, index, view).

    A view therefore does not depend on the number of data workers, on their order or on the process, and a resumed run
    draws what the uninterrupted one would have drawn. SeedSequence mixes the four numbers without folding them together.

    Args:
        seed: the run's ``--seed``.
        epoch: counted from 1, as fairseq does.
        index: of the sample in its dataset.
        view: 0 for what is drawn once per sample, 1, 2, ... for its views.
    """
    return np.random.default_rng(np.random.SeedSequence((seed, epoch, index, view)))


def content_hash(tokens: npt.NDArray[np.int64]) -> int:
    """A 63-bit hash of the token ids, the same in every process: the identity of a text among the candidates.

    Args:
        tokens: (T,) integers.
    """
    digest = hashlib.blake2b(np.ascontiguousarray(tokens, dtype=np.int64).tobytes(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
