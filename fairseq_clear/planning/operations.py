"""Floating-point operations of a micro-batch: products of matrices, a multiplication and an addition being two."""

from dataclasses import dataclass

from fairseq_clear.objectives.negatives import BLOCK, BLOCK_ROWS
from fairseq_clear.planning.contrast import contrast_of
from fairseq_clear.planning.recipe import Recipe

__all__ = ["FORMULA", "Operations", "count_operations"]

FORMULA = (
    "rows x length x layers x (8 d^2 + 4 d f) and rows x layers x 4 length^2 d (attention; in a window",
    "4 d (length + blocks x C x (1 + C + W))), masked tokens x (2 d^2 + 2 d V),",
    "views x 2 x the products of neighbouring widths of the head; backward twice that, of fused attention",
    "2.5 times, less what is frozen; forward again where chunks are recomputed; keys of another encoder forward",
    "alone; queries x keys x 2 D x 4 (3 where one block holds them, 2 where keys have no gradient)",
)


@dataclass(frozen=True)
class Operations:
    """Of one micro-batch on one worker.

    Attributes:
        masked: MLM rows through the encoder and the MLM head, forward and backward; the head alone where views are masked.
        views: views through the encoder and the projection head, forward and backward.
        keys: views through the momentum or the frozen encoder, forward, and its vectors through the projection head.
        contrast: queries by keys, forward and backward.
        recomputed: what chunks compute a second time.
    """

    masked: float
    views: float
    keys: float
    contrast: float
    recomputed: float

    @property
    def total(self) -> float:
        """All of them."""
        return self.masked + self.views + self.keys + self.contrast + self.recomputed


def count_operations(recipe: Recipe, texts: int, workers: int = 1, chunk: int = 0) -> Operations:
    """Operations of a micro-batch.

    Args:
        recipe: what is computed of each text.
        texts: on each worker.
        workers: over which negatives are gathered.
        chunk: tokens encoded at a time, recomputed in the backward pass; 0 for all at once.
    """
    rows, views = recipe.copies * texts, recipe.view_rows * texts
    top = recipe.encoder.layers
    masked, back = _in_parts(recipe, recipe.text_parts(rows, chunk), top)
    view, view_back = _in_parts(recipe, recipe.view_parts(views, chunk), top if recipe.is_joint else recipe.encoder.top)
    predicting, head_back = _mlm_head(recipe, (rows + recipe.is_joint * recipe.anchors * texts) * recipe.mean_length)
    return Operations(
        masked=masked + back + predicting + head_back,
        views=view + view_back + 3.0 * _projection(recipe, views),
        keys=_keys(recipe, texts, chunk),
        contrast=_contrast(recipe, texts, workers),
        recomputed=masked + predicting + view if chunk else 0.0,
    )


def _encoder(recipe: Recipe, rows: int, length: int, top: int) -> tuple[float, float]:
    """Forward and backward: products with weights, and of queries, keys and values; blocks above ``top`` forward alone."""
    encoder = recipe.encoder
    dense = rows * length * (8.0 * encoder.width**2 + 4.0 * encoder.width * encoder.ffn)
    attention = rows * 4.0 * encoder.attention(length).pairs * encoder.width
    trained = max(top - recipe.frozen_blocks, 0)
    # nothing below the lowest of them waits for a gradient of its queries, keys and values
    spared = rows * length * 6.0 * encoder.width**2 if recipe.frozen_layers and trained else 0.0
    backward = 2.0 if recipe.holds_attention else 2.5
    return encoder.layers * (dense + attention), trained * (2.0 * dense + backward * attention) - spared


def _in_parts(recipe: Recipe, parts: list[tuple[int, int]], top: int) -> tuple[float, float]:
    """The same of rows in parts."""
    forward = backward = 0.0
    for count, length in parts:
        of_part = _encoder(recipe, count, length, top)
        forward, backward = forward + of_part[0], backward + of_part[1]
    return forward, backward


def _mlm_head(recipe: Recipe, tokens: float) -> tuple[float, float]:
    """Forward and backward; the logits' weights are the embeddings, which may be frozen."""
    encoder = recipe.encoder
    masked = tokens * recipe.masked_share
    inner, logits = masked * 2.0 * encoder.width**2, masked * 2.0 * encoder.width * encoder.vocabulary
    is_frozen = recipe.frozen_layers > 0 and not encoder.is_untied
    return inner + logits, 2.0 * inner + (1.0 if is_frozen else 2.0) * logits


def _projection(recipe: Recipe, vectors: int) -> float:
    widths = recipe.encoder.projection
    return vectors * sum(2.0 * wide * narrow for wide, narrow in zip(widths[:-1], widths[1:], strict=True))


def _keys(recipe: Recipe, texts: int, chunk: int) -> float:
    """The momentum encoder has a projection head of its own; the guide's vectors go through that of the model."""
    keys = recipe.key_rows * texts
    forward, _ = _in_parts(recipe, recipe.view_parts(keys, chunk), 0)
    if recipe.key_encoder == "momentum":
        return forward + _projection(recipe, keys)
    vectors = keys * recipe.guide_layers
    widths = recipe.encoder.projection
    first = 2.0 * widths[0] * widths[1] if recipe.encoder.has_projection else 0.0  # the guide waits for no gradient
    return forward + 3.0 * _projection(recipe, vectors) - vectors * first


def _contrast(recipe: Recipe, texts: int, workers: int) -> float:
    """A product for the cosines, one for the queries' gradient and, where keys have one, one for theirs, from the cosines."""
    contrast = contrast_of(recipe, texts, workers)
    pairs = contrast.queries * contrast.keys
    is_one_block = pairs <= BLOCK and contrast.queries <= BLOCK_ROWS
    return pairs * 2.0 * recipe.encoder.output_dim * (2 if not contrast.key_gradient else 3 if is_one_block else 4)
