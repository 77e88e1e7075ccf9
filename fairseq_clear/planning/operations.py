"""Floating-point operations of a micro-batch: products of matrices, a multiplication and an addition being two."""

from dataclasses import dataclass

from fairseq_clear.objectives.negatives import BLOCK, BLOCK_ROWS
from fairseq_clear.planning.recipe import Recipe

__all__ = ["FORMULA", "Operations", "count_operations"]

FORMULA = (
    "rows x length x layers x (8 d^2 + 4 d f) and rows x layers x 4 length^2 d (attention),",
    "masked tokens x (2 d^2 + 2 d V), views x 2 x the products of neighbouring widths of the head;",
    "backward twice that, of fused attention 2.5 times; forward again where chunks are recomputed;",
    "queries x keys x 2 D x 4 (3 where one block holds them)",
)


@dataclass(frozen=True)
class Operations:
    """Of one micro-batch on one worker.

    Attributes:
        masked: MLM rows through the encoder and the MLM head, forward and backward.
        views: views through the encoder and the projection head, forward and backward.
        contrast: queries by keys, forward and backward.
        recomputed: what chunks compute a second time.
    """

    masked: float
    views: float
    contrast: float
    recomputed: float

    @property
    def total(self) -> float:
        """All of them."""
        return self.masked + self.views + self.contrast + self.recomputed


def count_operations(recipe: Recipe, texts: int, workers: int = 1, chunk: int = 0) -> Operations:
    """Operations of a micro-batch.

    Args:
        recipe: what is computed of each text.
        texts: on each worker.
        workers: over which negatives are gathered.
        chunk: rows encoded at a time, recomputed in the backward pass; 0 for all at once.
    """
    encoder = recipe.encoder
    d = encoder.width
    rows, views = recipe.copies * texts, recipe.view_rows * texts
    dense, attention = _encoder(recipe, rows, recipe.length)
    head = rows * recipe.length * recipe.masked_share * (2.0 * d * d + 2.0 * d * encoder.vocabulary)
    view_dense, view_attention = _encoder(recipe, views, recipe.view_length)
    widths = zip(encoder.projection[:-1], encoder.projection[1:], strict=True)
    projection = views * sum(2.0 * wide * narrow for wide, narrow in widths)
    backward = 2.0 if recipe.holds_attention else 2.5
    return Operations(
        masked=3.0 * (dense + head) + (1 + backward) * attention,
        views=3.0 * (view_dense + projection) + (1 + backward) * view_attention,
        contrast=_contrast(recipe, texts, workers),
        recomputed=dense + head + attention + view_dense + view_attention if chunk else 0.0,
    )


def _encoder(recipe: Recipe, rows: int, length: int) -> tuple[float, float]:
    """The forward pass: products with weights, and of queries, keys and values."""
    encoder = recipe.encoder
    dense = rows * length * encoder.layers * (8.0 * encoder.width**2 + 4.0 * encoder.width * encoder.ffn)
    return dense, rows * encoder.layers * 4.0 * length**2 * encoder.width


def _contrast(recipe: Recipe, texts: int, workers: int) -> float:
    queries, keys = contrast_shape(recipe, texts, workers)
    is_one_block = queries * keys <= BLOCK and queries <= BLOCK_ROWS
    return queries * keys * 2.0 * recipe.encoder.output_dim * (3 if is_one_block else 4)


def contrast_shape(recipe: Recipe, texts: int, workers: int) -> tuple[int, int]:
    """Queries of a worker and the keys that it sees."""
    everyone = workers if recipe.is_global else 1
    pairs = recipe.anchors * texts
    return 2 * pairs, everyone * (2 * pairs + recipe.negatives * pairs)
