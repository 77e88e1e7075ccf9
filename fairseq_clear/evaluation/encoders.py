"""What the harness asks of an encoder, and a wrapper that embeds every distinct sentence once."""

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from fairseq_clear.errors import UserError

__all__ = ["CachedEncoder", "Encoder", "describe_encoder", "to_vectors"]

Floats = npt.NDArray[np.float32]
BATCHES_PER_BLOCK = 64  # the bar moves once a block; large enough for an encoder that batches by itself


class Encoder(Protocol):
    """Anything that turns texts into vectors: a SentenceEncoder, a SentenceTransformer, a class of the user's."""

    def encode(self, sentences: list[str], batch_size: int = 32) -> Any:
        """Vectors (N, D) of N texts in their order: an array, a tensor or nested lists."""


class CachedEncoder:
    """Embeds every distinct sentence once, however many tasks have it; vectors stay in memory.

    What is not yet known goes to the encoder in blocks, longest sentences first, so that an encoder that does not sort
    still pads little. Wrapping a CachedEncoder again is harmless.

    Args:
        encoder: see Encoder.
        batch_size: passed on.
        name: in messages and beside the bar.
        progress: a bar on stderr.
        transform: applied to the vectors of every call, after the cache: (N, D) -> (N, D').

    Attributes:
        seconds: spent in the encoder.
        sentences: distinct ones that were embedded.
        tokens, cells: what a SentenceEncoder counted, 0 for others; see ``padding_share``.
        notes: what a report must say beside the encoder's own description, such as what ``transform`` was fitted on.
    """

    def __init__(
        self,
        encoder: Encoder,
        *,
        batch_size: int = 32,
        name: str = "",
        progress: bool = False,
        transform: Callable[[Floats], Floats] | None = None,
    ) -> None:
        if batch_size < 1:
            raise UserError(f"batch size {batch_size}: must be 1 or more")
        if not callable(getattr(encoder, "encode", None)):
            raise UserError(
                f"encoder {name or type(encoder).__name__}: has no method encode(sentences, batch_size=...)"
            )
        self.encoder, self.batch_size, self.progress, self.transform = encoder, batch_size, progress, transform
        self.name = name or type(encoder).__name__
        self.seconds, self.sentences, self.tokens, self.cells = 0.0, 0, 0, 0
        self.notes: dict[str, Any] = {}
        self._vectors: dict[str, Floats] = {}

    def encode(self, sentences: Sequence[str], batch_size: int | None = None) -> Floats:
        """Vectors (N, D) float32; ``batch_size`` is taken for this call, if given.

        Raises:
            UserError: the encoder returns another number of rows, no matrix, another dimension than before, or NaN.
        """
        self.embed(sentences, batch_size)
        if not sentences:
            raise UserError(f"encoder {self.name}: asked for no sentence at all")
        vectors = np.stack([self._vectors[text] for text in sentences])  # (N, D)
        return vectors if self.transform is None else self.transform(vectors)

    def embed(self, sentences: Sequence[str], batch_size: int | None = None) -> None:
        """Fill the cache, so that one bar runs over the sentences of all tasks."""
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

    @property
    def padding_share(self) -> float | None:
        """Share of what a SentenceEncoder computed that was padding; None where the encoder does not count."""
        return 1 - self.tokens / self.cells if self.cells else None

    def describe(self) -> dict[str, Any]:
        """What a report names."""
        return {**describe_encoder(self.encoder), **self.notes}

    def _store(self, texts: list[str], vectors: Floats) -> None:
        known = next(iter(self._vectors.values()), vectors[0])
        if known.shape != vectors[0].shape:
            raise UserError(f"encoder {self.name}: vectors of {len(vectors[0])} numbers after some of {len(known)}")
        self._vectors.update(zip(texts, vectors, strict=True))
        self.sentences += len(texts)
        counts = getattr(self.encoder, "last", None)
        self.tokens += int(getattr(counts, "tokens", 0))
        self.cells += int(getattr(counts, "cells", 0))


def to_vectors(returned: Any, rows: int, name: str) -> Floats:
    """What an encoder returned as (rows, D) float32.

    Raises:
        UserError: another shape, or NaN or infinity in it.
    """
    if hasattr(returned, "detach"):
        returned = returned.detach().cpu().float().numpy()  # a tensor, on whatever device
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
        raise UserError(f"encoder {name}: {bad} of {rows} vectors have NaN or infinity in them")
    return vectors


def describe_encoder(encoder: object) -> dict[str, Any]:
    """The encoder's own ``describe()`` where it has one, else its class."""
    own = getattr(encoder, "describe", None)
    if callable(own):
        described = own()
        if isinstance(described, dict):
            return described
    return {"class": f"{type(encoder).__module__}.{type(encoder).__qualname__}"}
