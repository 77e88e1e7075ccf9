"""Bytes that a worker holds at most in an update: what autograd keeps of each module, and what lies beside it at the peak."""

from dataclasses import asdict, dataclass
from typing import NamedTuple

from fairseq_clear.planning.activations import (
    FLOAT,
    contrasted,
    encoded,
    logits,
    passing,
    predicted,
    projected,
    read_by_keys,
)
from fairseq_clear.planning.recipe import Recipe

__all__ = ["Memory", "estimate_memory"]


@dataclass(frozen=True)
class Memory:
    """In bytes.

    Attributes:
        weights: in the precision of training, with float32 masters in half precision, and copies in half precision where
            products alone are (amp).
        copies: of the encoder, frozen or following, and the queue.
        optimizer: what it keeps of each weight: Adam's two moments.
        buffers: float32 gradients of the masters, and buckets in which workers sum gradients.
        gradients: of the backward pass.
        activations: what autograd keeps of encoder and projection head.
        passing: what comes and goes at the peak: logits of the MLM with their gradients, gradients on their way through a
            layer, hidden states of an encoder without gradient, or what the optimizer makes of a weight.
        contrast: vectors of queries and keys, and one block of their products.
    """

    weights: float
    copies: float
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
        chunk: tokens encoded at a time; 0 for all at once.
    """
    peaks = (
        _reading_keys(recipe, texts, chunk),
        _before_backward(recipe, texts, workers, chunk),
        *(_chunks_in_backward(recipe, texts, chunk) if chunk else (_late_in_backward(recipe, texts),)),
        _in_the_optimizer(recipe, texts),
    )
    return Memory(*_state(recipe, workers), *max(peaks, key=sum))


def _state(recipe: Recipe, workers: int) -> tuple[float, float, float, float]:
    encoder, trained, element = recipe.encoder, recipe.trained, recipe.element
    has_masters = element == 2 and not recipe.is_memory_efficient
    rounded = 0
    if recipe.is_mixed:  # what is looked up stays, what is multiplied is rounded, the embedding for the logits too
        lookups = encoder.embeddings - recipe.has_mlm * encoder.vocabulary * encoder.width
        rounded = recipe.product * (encoder.parameters(mlm=recipe.has_mlm, views=recipe.has_views) - lookups)
    copies = recipe.has_guide * encoder.parameters(mlm=False, views=False) * element
    if recipe.has_queue:
        half = element * (element == 2)  # float32 masters, and in half precision what they are rounded to
        copies += encoder.parameters(mlm=False) * (FLOAT + half) + recipe.queue * (FLOAT * encoder.output_dim + 8)
    buckets = 0 if workers == 1 else (trained if recipe.uses_ddp else recipe.weights) * element
    return (
        encoder.parameters() * element + trained * FLOAT * has_masters + rounded,
        copies,
        1.0 * recipe.moments * FLOAT * trained,
        trained * FLOAT * has_masters + buckets,
    )


class Peak(NamedTuple):
    """What a moment holds beside the state."""

    gradients: float
    activations: float
    passing: float
    contrast: float


def _kept(recipe: Recipe, texts: int, chunk: int) -> float:
    """What autograd keeps once all rows are read."""
    masked, views = recipe.copies * texts, recipe.view_rows * texts
    kept = (
        _texts(recipe, texts)
        + projected(recipe, views, 1)
        + projected(recipe, recipe.key_rows * texts, recipe.guide_layers)
    )
    if chunk:
        return kept
    tokens = (masked + recipe.is_joint * recipe.anchors * texts) * recipe.mean_length
    return (
        kept
        + sum(encoded(recipe, *part) for part in recipe.text_parts(masked))
        + sum(encoded(recipe, *part) for part in recipe.view_parts(views))
        + predicted(recipe, tokens)
    )


def _reading_keys(recipe: Recipe, texts: int, chunk: int) -> Peak:
    """The encoder has read its rows; another is in its last layer."""
    rows = recipe.key_rows * texts
    if not rows:
        return Peak(0.0, 0.0, 0.0, 0.0)
    held = 0.0 if chunk else logits(recipe, recipe.copies * texts * recipe.mean_length, recipe.product)
    beside = max(read_by_keys(recipe, *part) for part in recipe.view_parts(rows, chunk))
    return Peak(0.0, _kept(recipe, texts, chunk), held + beside, 0.0)


def _before_backward(recipe: Recipe, texts: int, workers: int, chunk: int) -> Peak:
    """All activations are there, and the logits with their logarithm and its gradient; without chunks the highest point."""
    masked, views = recipe.copies * texts, recipe.view_rows * texts
    contrast = contrasted(recipe, texts, workers)
    # the gradient of the weights' distance is made first, of all weights at once
    gradients = (recipe.trained - _heads(recipe)) * recipe.element * recipe.has_regularizer
    kept = _kept(recipe, texts, chunk)
    if chunk:
        return Peak(gradients, kept, 0.0, contrast)
    if recipe.is_joint:
        anchors = recipe.anchors * texts * recipe.mean_length
        return Peak(gradients, kept, _made(recipe, anchors, recipe.view_parts(views)), contrast)
    tokens = masked * recipe.mean_length
    parts = recipe.view_parts(views) if views else recipe.text_parts(masked)
    last = max(passing(recipe, *part) for part in parts)
    if views and not masked and recipe.encoder.top < recipe.encoder.layers:
        last = 0.0  # the layers above are gone by then, and are more
    made = _made(recipe, tokens, recipe.text_parts(masked))
    return Peak(gradients, kept, max(made, logits(recipe, tokens, recipe.product) + last), contrast)


def _made(recipe: Recipe, tokens: float, parts: list[tuple[int, int]]) -> float:
    """Logits of so many tokens, with what is made of those of the largest part: their logarithm and its gradient."""
    cells = [rows * length for rows, length in parts]
    share = max(cells) / sum(cells) if cells else 0.0
    return logits(recipe, tokens, recipe.product) + logits(recipe, share * tokens, 2 * FLOAT)


def _late_in_backward(recipe: Recipe, texts: int) -> Peak:
    """Every weight has its gradient, and the MLM is still to be gone back through."""
    masked, gradients = recipe.copies * texts, _gradients(recipe)
    if not masked:
        return Peak(gradients, _texts(recipe, texts), 0.0, 0.0)  # the views' activations are gone by then
    parts, tokens = recipe.text_parts(masked), masked * recipe.mean_length
    activations = sum(encoded(recipe, *part) for part in parts) + _texts(recipe, texts) + predicted(recipe, tokens)
    made = logits(recipe, tokens, recipe.product)
    return Peak(gradients, activations, max(made, *(passing(recipe, *part) for part in parts)), 0.0)


def _chunks_in_backward(recipe: Recipe, texts: int, chunk: int) -> list[Peak]:
    """Every weight has its gradient, and a chunk is computed again and gone back through: each in its turn, views first."""
    masked, views = recipe.copies * texts, recipe.view_rows * texts
    anchors = recipe.is_joint * recipe.anchors * texts
    parts = [(part, masked * recipe.mean_length) for part in recipe.text_parts(masked, chunk)]
    parts += [(part, anchors * recipe.mean_length) for part in recipe.view_parts(views, chunk)]
    gradients, peaks = _gradients(recipe), []
    for (rows, length), most in parts:
        tokens = min(rows * length, most)
        activations = encoded(recipe, rows, length) + _texts(recipe, texts) + predicted(recipe, tokens)
        made = logits(recipe, tokens, 2 * FLOAT + recipe.product)
        peaks.append(Peak(gradients, activations, max(made, passing(recipe, rows, length)), 0.0))
    return peaks


def _gradients(recipe: Recipe) -> float:
    """Of every weight; the embeddings', unless frozen, are met twice and then added up."""
    looked_up = 0 if recipe.frozen_layers else recipe.encoder.vocabulary * recipe.encoder.width
    return float((recipe.trained + looked_up) * recipe.element)


def _in_the_optimizer(recipe: Recipe, texts: int) -> Peak:
    """Adam makes the root of its second moment, of one weight at a time; in half precision all of them are one."""
    encoder = recipe.encoder
    largest = encoder.width * (encoder.ffn if recipe.frozen_layers else encoder.vocabulary)
    made = (recipe.trained if recipe.element == 2 else largest) * FLOAT * (recipe.moments > 1)
    return Peak(float(recipe.trained * recipe.element), _texts(recipe, texts), float(made), 0.0)


def _heads(recipe: Recipe) -> int:
    """Weights of the MLM head and the projection head, as far as they are trained."""
    encoder = recipe.encoder
    return encoder.parameters(mlm=recipe.has_mlm, views=recipe.has_views) - encoder.parameters(mlm=False, views=False)


def _texts(recipe: Recipe, texts: int) -> float:
    """Token ids: masked texts with their targets, views, and what joint ones hide."""
    views = (recipe.view_rows + recipe.key_rows + recipe.is_joint * recipe.anchors) * recipe.view_length
    return 8.0 * texts * (2 * recipe.copies * recipe.length + views)
