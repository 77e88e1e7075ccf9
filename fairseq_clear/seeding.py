"""Random numbers that depend only on seed, epoch, item and view, not on the process, the batch or the order of items.

``Draws`` computes them for all positions of a batch at once. Each number is a hash of seed, epoch, item and so on, by nested
SplitMix64 (Steele, Lea and Flood 2014, *Fast splittable pseudorandom number generators*). ``rng_for`` makes a generator.
"""

import functools
import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.random.bit_generator import ISeedSequence

from fairseq_clear.tokens import Tokens, cells

Keys = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.floating[Any]]

_STEP = 0x9E3779B97F4A7C15
_GAMMA = np.uint64(_STEP)
_SHIFT = np.uint64(11)
# of SplitMix64's finalizer; to make such a number takes half as long as to shift a short array by it
_30, _27, _31 = map(np.uint64, (30, 27, 31))
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
# ``choose`` sorts integers of 16 bits of the row, 32 random bits, and 16 bits of the slot.
_NARROW = 1 << 16


def mix_bits(x: Keys) -> Keys:
    """SplitMix64's finalizer, a bijection of 64-bit integers; ``x`` is overwritten."""
    x ^= x >> _30
    x *= _FIRST
    x ^= x >> _27
    x *= _SECOND
    x ^= x >> _31
    return x


def _fold(key: Keys, name: Any) -> Keys:
    """Hash a name, or a name for each row, into the keys (R,).

    Keys are hashed after each name. A sum that is linear in index and position would give row i + 1 the numbers of row i,
    shifted by one.
    """
    if isinstance(name, int):  # Python integers, because numpy warns when a scalar overflows
        return mix_bits(key + np.uint64((name + 1) * _STEP % 2**64))
    names = np.atleast_1d(name).astype(np.uint64)
    return mix_bits(key + (names + np.uint64(1)) * _GAMMA)


@functools.lru_cache(maxsize=8)
def _run_key(seed: int, epoch: int) -> Keys:
    return _fold(np.full(1, seed % 2**64, np.uint64), epoch)


@dataclass(frozen=True)
class Draws:
    """The random numbers of a batch of R texts. Each is a function of a text's key, a purpose and a position.

    Attributes:
        key: (R,) uint64.
    """

    key: Keys

    @classmethod
    def of(cls, seed: int, epoch: Any, index: Tokens, view: Any) -> "Draws":
        """The draws of views of items.

        Args:
            seed: the run's ``--seed``.
            epoch: counted from 1; one number, or one for each row (R,).
            index: (R,) index of each row's item in its data set.
            view: 0 for draws made once per item; 1, 2, ... for its views; one number, or one for each row (R,).
        """
        key = _run_key(seed, epoch) if isinstance(epoch, int) else _fold(np.full(1, seed % 2**64, np.uint64), epoch)
        return cls(_fold(_fold(key, index), view))

    def fold(self, name: Any) -> "Draws":
        """Independent draws for a part of the work, named by an integer, or by one integer for each row."""
        return Draws(_fold(self.key, name))

    def select(self, rows: Tokens) -> "Draws":
        """The draws of these rows."""
        return Draws(self.key[rows])

    def bits(self, purpose: int, rows: Tokens, positions: Tokens) -> Keys:
        """64 random bits for each pair of a row and a position, both (K,): (K,) uint64."""
        key = _fold(self.key, purpose)[rows]
        key += (positions.astype(np.uint64) + np.uint64(1)) * _GAMMA
        return mix_bits(key)

    def uniform(self, purpose: int, rows: Tokens, positions: Tokens) -> Floats:
        """A number in [0, 1) for each pair of a row and a position, both (K,)."""
        return (self.bits(purpose, rows, positions) >> _SHIFT) * 2.0**-53

    def per_row(self, purpose: int) -> Floats:
        """A number in [0, 1) for each row: (R,)."""
        return (mix_bits(_fold(self.key, purpose)) >> _SHIFT) * 2.0**-53

    def choose(self, purpose: int, counts: Tokens, sizes: Tokens) -> tuple[Tokens, Tokens, Tokens]:
        """Draw ``counts[r]`` of the slots 0 ... ``sizes[r]`` - 1 of each row, without replacement.

        Returns:
            The row, the slot, and the rank in random order of each chosen slot, all (K,); by row, then by rank.
        """
        ends = sizes.cumsum()
        rows = np.repeat(np.arange(len(sizes)), sizes)
        slots = np.arange(len(rows)) - np.repeat(ends - sizes, sizes)
        random = self.bits(purpose, rows, slots) >> np.uint64(32)
        if len(sizes) <= _NARROW and sizes.max(initial=0) <= _NARROW:
            # One sort of unique integers: lexsort takes 18 times as long. The widths do not depend on the batch.
            order = rows.astype(np.uint64) << np.uint64(48)
            order |= random << np.uint64(16)
            order |= slots.astype(np.uint64)
            order.sort()
            chosen = (order & np.uint64(_NARROW - 1)).astype(np.int64)
        else:
            chosen = slots[np.lexsort((slots, random, rows))]
        taken = slots < counts[rows]  # rows are sorted, so slots are ranks here
        return rows[taken], chosen[taken], slots[taken]

    def choose_few(self, purpose: int, counts: Tokens, sizes: Tokens, most: int) -> tuple[Tokens, Tokens, Tokens]:
        """As ``choose``, for counts of at most ``most``, slot after slot; the time does not depend on the sizes."""
        rows, drawn = np.arange(len(counts)), np.zeros((most, len(counts)), np.int64)
        for number in range(most):
            slot = floor_of(self.uniform(purpose, rows, np.full_like(rows, number)), sizes - number)
            for taken in np.sort(drawn[:number], axis=0):
                slot += slot >= taken
            drawn[number] = slot
        owners, ranks = cells(len(counts), most)
        chosen = ranks < counts[owners]
        return owners[chosen], drawn.T.ravel()[chosen], ranks[chosen]


def floor_of(u: Floats, bounds: Any) -> Tokens:
    """Integers from 0 to ``bounds`` - 1, from uniform numbers."""
    return np.floor(u * bounds).astype(np.int64)


class _Seed(ISeedSequence):
    """The seed of a bit generator, hashed from several integers; three times as fast as numpy's SeedSequence."""

    def __init__(self, *names: int) -> None:
        self._text = repr(names).encode()

    def generate_state(self, n_words: int, dtype: npt.DTypeLike = np.uint32) -> npt.NDArray[Any]:
        """Return ``n_words`` integers of type ``dtype``."""
        kind = np.dtype(dtype)
        return np.frombuffer(hashlib.shake_128(self._text).digest(n_words * kind.itemsize), kind)


def rng_for(*names: int) -> np.random.Generator:
    """Return a random generator seeded with these integers, such as seed, epoch, index of the item and view.

    It depends on nothing else. It is for draws that concern a whole data set, and for functions that draw for one text.
    """
    return np.random.Generator(np.random.PCG64(_Seed(*map(int, names))))  # type: ignore[arg-type]
