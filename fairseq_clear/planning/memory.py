"""Bytes that a worker holds at most in an update: what autograd keeps of each module, and what lies beside it at the peak."""

from dataclasses import asdict, dataclass

from fairseq_clear.objectives.negatives import BLOCK
from fairseq_clear.planning.operations import contrast_shape
from fairseq_clear.planning.recipe import Recipe

__all__ = ["Memory", "estimate_memory"]

FLOAT = 4


@dataclass(frozen=True)
class Memory:
    """In bytes.

    Attributes:
        weights: in the precision of training, with float32 masters in half precision.
        optimizer: Adam's two moments.
        buffers: float32 gradients of the masters, and buckets in which workers sum gradients.
        gradients: of the backward pass.
        activations: what autograd keeps of encoder and projection head.
        passing: what comes and goes at the peak: logits of the MLM with their gradients, or gradients on their way through a
            layer.
        contrast: vectors of queries and keys, and one block of their products.
    """

    weights: float
    optimizer: float
    buffers: float
    gradients: float
    activations: float
    passing: float
    contrast: float

    @property
    def total(self) -> float:
        """All of it."""
        return float(sum(asdict(self).values()))


def estimate_memory(recipe: Recipe, texts: int, workers: int = 1, chunk: int = 0) -> Memory:
    """The peak of an update.

    Args:
        recipe: what is trained.
        texts: of this worker in a micro-batch.
        workers: over which keys are gathered.
        chunk: rows encoded at a time; 0 for all at once.
    """
    peaks = [_before_backward(recipe, texts, workers, chunk), _late_in_backward(recipe, texts, chunk)]
    gradients, activations, passing, contrast = max(peaks, key=sum)
    return Memory(*_state(recipe, workers), gradients, activations, passing, contrast)


def _state(recipe: Recipe, workers: int) -> tuple[float, float, float]:
    weights, trained = recipe.encoder.parameters(), recipe.trained
    element = recipe.element
    has_masters = element == 2 and not recipe.is_memory_efficient
    buckets = 0 if workers == 1 else trained * element
    return (
        weights * element + trained * FLOAT * has_masters,
        2.0 * FLOAT * trained,
        trained * FLOAT * has_masters + buckets,
    )


Peak = tuple[float, float, float, float]


def _before_backward(recipe: Recipe, texts: int, workers: int, chunk: int) -> Peak:
    """All activations are there, and the logits with their logarithm and its gradient; without chunks the highest point."""
    masked, views = recipe.copies * texts, recipe.view_rows * texts
    kept = _head(recipe, views) + _contrast(recipe, texts, workers)
    if chunk:
        return 0.0, _texts(recipe, masked, views), 0.0, kept
    activations = _encoder(recipe, masked, recipe.length) + _encoder(recipe, views, recipe.view_length)
    activations += _mlm_head(recipe, masked) + _texts(recipe, masked, views)
    logits = _logits(recipe, masked)
    last = _passing(recipe, views, recipe.view_length) if views else _passing(recipe, masked, recipe.length)
    return 0.0, activations, max(logits, _logit_gradient(recipe, masked) + last), kept


def _late_in_backward(recipe: Recipe, texts: int, chunk: int) -> Peak:
    """Every weight has its gradient, and the MLM, or the last chunk of it, is still to be gone back through."""
    masked, views = recipe.copies * texts, recipe.view_rows * texts
    gradients = float(recipe.trained * recipe.element)
    embedding = float(recipe.encoder.vocabulary * recipe.encoder.width * recipe.element)  # met twice, then added up
    rows, length = (masked, recipe.length) if masked else (views, recipe.view_length)
    rows = min(chunk, rows) if chunk else rows
    activations = _encoder(recipe, rows, length) + _texts(recipe, masked, views)
    if not masked and not chunk:
        return gradients + embedding, _texts(recipe, masked, views), 0.0, 0.0  # its activations are gone by then
    head = _mlm_head(recipe, rows) if masked else 0.0
    logits = (_logits if chunk else _logit_gradient)(recipe, rows) if masked else 0.0
    return gradients + embedding, activations + head, max(logits, _passing(recipe, rows, length)), 0.0


def _encoder(recipe: Recipe, rows: int, length: int) -> float:
    """What autograd keeps of each token: embedding, then layer by layer.

    Of a layer its input, q, k, v, what attention gives in both orders of its axes, both inputs of LayerNorm, what lies between
    them (9 d), the masks of two dropouts, the two sides of GELU, whose input fairseq copies to float32; and on a CPU, with
    attention dropout, the weights of attention, their mask and both's product.
    """
    encoder, size = recipe.encoder, recipe.element
    mask = (size if recipe.is_cpu else 1) * (encoder.dropout > 0)  # a GPU keeps bits as bytes
    inner_mask = (size if recipe.is_cpu else 1) * (encoder.activation_dropout > 0)
    vectors = 8 if recipe.holds_attention else 9
    layer = encoder.width * (vectors * size + 2 * mask) + encoder.ffn * (size + FLOAT + inner_mask) + 2 * 2 * FLOAT
    weights = 3 * size * encoder.heads * length if recipe.holds_attention else FLOAT * encoder.heads
    embedding = encoder.width * (2 * size + mask)
    return float(rows * length * (encoder.layers * (layer + weights) + embedding))


def _mlm_head(recipe: Recipe, rows: int) -> float:
    """Of each masked token the features, both sides of GELU, and LayerNorm's output."""
    masked = rows * recipe.length * recipe.masked_share
    return masked * recipe.encoder.width * (3 * recipe.element + FLOAT)


def _logits(recipe: Recipe, rows: int) -> float:
    """Float32 logarithms of the softmax, the gradient of the loss, and the gradient of the logits."""
    return rows * recipe.length * recipe.masked_share * recipe.encoder.vocabulary * (2 * FLOAT + recipe.element)


def _logit_gradient(recipe: Recipe, rows: int) -> float:
    return rows * recipe.length * recipe.masked_share * recipe.encoder.vocabulary * recipe.element


def _passing(recipe: Recipe, rows: int, length: int) -> float:
    """Gradients beside what the backward pass has let go of a layer by then: one as wide as GELU, two as wide as the layer."""
    return float(rows * length * (recipe.encoder.ffn + 2 * recipe.encoder.width) * recipe.element)


def _head(recipe: Recipe, views: int) -> float:
    """Text vectors, and both sides of each activation of the projection head."""
    widths = recipe.encoder.projection
    return float(views * recipe.element * (sum(widths) + sum(widths[1:-1])))


def _contrast(recipe: Recipe, texts: int, workers: int) -> float:
    """Vectors as they came and of length 1, of queries and keys, the gradient of the queries; one block of their products."""
    queries, keys = contrast_shape(recipe, texts, workers)
    vectors = recipe.encoder.output_dim * (queries * (2 * recipe.element + 4 * FLOAT) + keys * (recipe.element + FLOAT))
    return float(vectors + 3 * FLOAT * min(queries * keys, BLOCK))


def _texts(recipe: Recipe, masked: int, views: int) -> float:
    """Token ids: masked texts with their targets, and views."""
    return 8.0 * (2 * masked * recipe.length + views * recipe.view_length)
