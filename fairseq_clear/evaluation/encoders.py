"""The interface of encoders in evaluations, a cache of their vectors, and whitening and truncation of the vectors."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from fairseq_clear.errors import UserError

__all__ = ["CachedEncoder", "Encoder", "Whitening", "describe_encoder", "first_dimensions", "to_vectors"]

Floats = npt.NDArray[np.float32]
# Encoders sort and batch the sentences of a block by themselves; the progress bar moves once per block.
BATCHES_PER_BLOCK = 64
SHORTEST = 1e-8  # norm below which a vector counts as zero


class Encoder(Protocol):
    """Anything that encodes texts as vectors: a SentenceEncoder, a SentenceTransformer, or your own class."""

    def encode(self, sentences: list[str], batch_size: int = 32) -> Any:
        """Return vectors (N, D) of N texts in their order, as an array, a tensor or nested lists."""


class CachedEncoder:
    """Encodes each distinct sentence once, for all tasks, and keeps the vectors in memory.

    New sentences go to the encoder in blocks, longest first, so an encoder that does not sort them still needs little
    padding. A CachedEncoder can be wrapped again.

    Args:
        encoder: see Encoder.
        batch_size: passed to the encoder.
        name: of the encoder, in messages and on the progress bar.
        progress: show a progress bar on stderr.

    Attributes:
        transform: if set, applied to the vectors that ``encode`` returns, not to the cached ones: (N, D) -> (N, D').
        seconds: time spent in the encoder.
        sentences: number of distinct sentences that were encoded.
        tokens, cells: counts of a SentenceEncoder, 0 for other encoders; see ``padding_share``.
        notes: added to the encoder's description in reports, such as the file that ``transform`` was fitted on.
    """

    def __init__(self, encoder: Encoder, *, batch_size: int = 32, name: str = "", progress: bool = False) -> None:
        if batch_size < 1:
            raise UserError(f"batch size {batch_size}: must be 1 or more")
        if not callable(getattr(encoder, "encode", None)):
            raise UserError(
                f"encoder {name or type(encoder).__name__}: has no method encode(sentences, batch_size=...)"
            )
        self.encoder, self.batch_size, self.progress = encoder, batch_size, progress
        self.transform: Callable[[Floats], Floats] | None = None
        self.name = name or type(encoder).__name__
        self.seconds, self.sentences, self.tokens, self.cells = 0.0, 0, 0, 0
        self.notes: dict[str, Any] = {}
        self._vectors: dict[str, Floats] = {}

    @classmethod
    def of(cls, encoder: Encoder) -> "CachedEncoder":
        """The encoder itself if it is a CachedEncoder, else a new one around it."""
        return encoder if isinstance(encoder, cls) else cls(encoder)

    def encode(self, sentences: Sequence[str], batch_size: int | None = None) -> Floats:
        """Vectors (N, D) float32; ``batch_size`` replaces the encoder's for this call.

        Raises:
            UserError: the encoder does not return N finite vectors of the same dimension as before.
        """
        self.embed(sentences, batch_size)
        if not sentences:
            raise UserError(f"encoder {self.name}: the list of sentences is empty")
        vectors = np.stack([self._vectors[text] for text in sentences])  # (N, D)
        return vectors if self.transform is None else self.transform(vectors)

    def embed(self, sentences: Sequence[str], batch_size: int | None = None) -> None:
        """Fill the cache, with one progress bar for the sentences of all tasks."""
        missing = sorted({text for text in sentences if text not in self._vectors}, key=lambda text: (-len(text), text))
        size = (batch_size or self.batch_size) * BATCHES_PER_BLOCK
        with tqdm(
            total=len(missing), unit="sentence", desc=self.name, disable=None if self.progress else True, leave=False
        ) as bar:
            for begin in range(0, len(missing), size):
                block = missing[begin : begin + size]
                started = time.perf_counter()
                returned = self.encoder.encode(block, batch_size=batch_size or self.batch_size)
                self.seconds += time.perf_counter() - started
                self._store(block, to_vectors(returned, len(block), self.name))
                bar.update(len(block))

    def forget(self) -> None:
        """Drop all cached vectors, to free their memory."""
        self._vectors.clear()

    @property
    def padding_share(self) -> float | None:
        """Share of padding among the tokens that a SentenceEncoder computed; None for other encoders."""
        return 1 - self.tokens / self.cells if self.cells else None

    def describe(self) -> dict[str, Any]:
        """Description of the encoder for a report."""
        return {**describe_encoder(self.encoder), **self.notes}

    def _store(self, texts: list[str], vectors: Floats) -> None:
        known = next(iter(self._vectors.values()), vectors[0])
        if known.shape != vectors[0].shape:
            raise UserError(f"encoder {self.name}: vectors have dimension {len(vectors[0])}, earlier ones {len(known)}")
        self._vectors.update(zip(texts, vectors, strict=True))
        self.sentences += len(texts)
        counts = getattr(self.encoder, "last", None)
        self.tokens += int(getattr(counts, "tokens", 0))
        self.cells += int(getattr(counts, "cells", 0))


def to_vectors(returned: Any, rows: int, name: str) -> Floats:
    """Convert an encoder's output to (rows, D) float32.

    Raises:
        UserError: the output has another shape, NaN or infinity.
    """
    if hasattr(returned, "detach"):
        returned = returned.detach().cpu().float().numpy()  # a tensor on any device
    elif isinstance(returned, list) and returned and hasattr(returned[0], "detach"):
        returned = [row.detach().cpu().float().numpy() for row in returned]
    try:
        vectors: Floats = np.asarray(returned, dtype=np.float32)
    except (TypeError, ValueError):
        raise UserError(f"encoder {name}: returned {type(returned).__name__}, not vectors of equal length") from None
    if vectors.ndim != 2 or len(vectors) != rows or not vectors.shape[1]:
        raise UserError(f"encoder {name}: returned an array of shape {vectors.shape} for {rows} sentences, not (N, D)")
    if not np.isfinite(vectors).all():
        bad = int((~np.isfinite(vectors).all(axis=1)).sum())
        raise UserError(f"encoder {name}: {bad} of {rows} vectors contain NaN or infinity")
    return vectors


def describe_encoder(encoder: object) -> dict[str, Any]:
    """Describe an encoder for a report: the result of its ``describe()``, or its class if it has no such method."""
    own = getattr(encoder, "describe", None)
    if callable(own):
        described = own()
        if isinstance(described, dict):
            return described
    return {"class": f"{type(encoder).__module__}.{type(encoder).__qualname__}"}


def first_dimensions(vectors: Floats, dimension: int, name: str) -> Floats:
    """Return the first dimensions of vectors (N, D), scaled to length 1: (N, dimension).

    A vector with a norm below 1e-8 becomes the zero vector, as in training with ``--matryoshka``.

    Args:
        vectors: (N, D).
        dimension: number of dimensions.
        name: of the encoder, for the message.

    Raises:
        UserError: ``dimension`` is not from 1 to D.
    """
    width = vectors.shape[1]
    if not 1 <= dimension <= width:
        raise UserError(f"--dimension {dimension}: the vectors of {name} have {width} dimensions; give 1 to {width}")
    kept = vectors[:, :dimension]
    lengths = np.linalg.norm(kept, axis=1, keepdims=True)  # (N, 1)
    return np.divide(kept, lengths, out=np.zeros_like(kept), where=lengths >= SHORTEST)


@dataclass(frozen=True)
class Whitening:
    """Whitening x -> (x - mu) W (Su et al. 2021, arXiv:2103.15316): the fitted vectors get mean 0, identity covariance.

    Attributes:
        mean: mu, (D,).
        kernel: W = U Lambda^(-1/2), (D, k), where U Lambda U^T is the covariance, reduced to its k largest eigenvalues.
    """

    mean: npt.NDArray[np.float64]
    kernel: npt.NDArray[np.float64]

    @classmethod
    def fit(cls, vectors: npt.ArrayLike, dimensions: int | None = None) -> "Whitening":
        """Fit a whitening of (N, D) vectors to ``dimensions`` dimensions (default: all in which they have variance).

        Raises:
            UserError: fewer than two vectors, or fewer than ``dimensions`` dimensions have variance.
        """
        rows = np.asarray(vectors, np.float64)
        if len(rows) < 2:
            raise UserError(f"whitening: needs two or more sentences, got {len(rows)}")
        mean = rows.mean(axis=0)
        variances, directions = np.linalg.eigh(np.cov(rows, rowvar=False).reshape(rows.shape[1], -1))
        # eigh sorts by increasing variance. Directions whose variance is only a rounding error are left out.
        possible = int((variances > variances[-1] * 1e-9).sum()) if variances[-1] > 0 else 0
        wanted = possible if dimensions is None else dimensions
        if not 1 <= wanted <= possible:
            raise UserError(
                f"whitening to {wanted} dimensions: {len(rows)} sentences have variance in {possible}; give more sentences "
                "or fewer dimensions"
            )
        kept = slice(-1, -wanted - 1, -1)
        return cls(mean, directions[:, kept] / np.sqrt(variances[kept]))

    def __call__(self, vectors: npt.ArrayLike) -> Floats:
        """Whiten (N, D) vectors to (N, k)."""
        whitened: Floats = ((np.asarray(vectors, np.float64) - self.mean) @ self.kernel).astype(np.float32)
        return whitened
