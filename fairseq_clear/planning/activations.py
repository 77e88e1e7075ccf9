"""Bytes that autograd keeps of rows of texts, module by module, and those that come and go beside them."""

from fairseq_clear.objectives.negatives import BLOCK
from fairseq_clear.planning.contrast import contrast_of
from fairseq_clear.planning.recipe import Recipe

__all__ = ["FLOAT", "contrasted", "encoded", "logits", "passing", "predicted", "projected", "read_by_keys"]

FLOAT = 4


def encoded(recipe: Recipe, rows: int, length: int) -> float:
    """Of each token: embedding, then layer by layer; of frozen layers nothing.

    Of a layer its input, q, k, v, what attention gives in both orders of its axes, both inputs of LayerNorm, what lies between
    them (9 d), the masks of two dropouts, the two sides of GELU, whose input fairseq copies to float32; and on a CPU, with
    attention dropout, the weights of attention, their mask and both's product. With amp the inputs of LayerNorm are float32,
    and q, k and v each have a copy of the layer's input.
    """
    encoder, size = recipe.encoder, recipe.product
    mask = _mask(recipe, encoder.dropout)
    copies = 3 if recipe.is_mixed else 1
    states = (copies + 4) * size + 2 * recipe.element  # input, q, k, v, between; LayerNorm
    layer = encoder.width * (states + 2 * mask) + 2 * 2 * FLOAT
    layer += encoder.ffn * (size + FLOAT + _mask(recipe, encoder.activation_dropout))
    embedding = 0 if recipe.frozen_layers else encoder.width * (2 * recipe.element + mask)
    largest = encoder.width * recipe.element * (encoder.pooling == "max")
    trained = encoder.layers - recipe.frozen_blocks
    attention = _attention(recipe, length)
    of_all = _shared_mask(recipe, length)
    return float(rows * (length * (trained * layer + embedding + largest) + trained * attention + of_all))


def _mask(recipe: Recipe, dropout: float) -> int:
    """Bytes of a number's dropout mask: a GPU keeps bits as bytes."""
    return (recipe.element if recipe.is_cpu else 1) * (dropout > 0)


def _attention(recipe: Recipe, length: int) -> float:
    """Of one layer and row beside q, k and v: results, copies in blocks, weights."""
    encoder, size = recipe.encoder, recipe.product
    attention = encoder.attention(length)
    rows, weights = 2 * length, FLOAT * encoder.heads * length
    if attention.queries:  # queries, keys and values by blocks, results by blocks and as a text
        rows = 2 * attention.queries + 2 * attention.keys + length
    if recipe.holds_attention:
        weights = 3 * size * encoder.heads * attention.pairs
        rows -= length + attention.queries  # products with weights need no result
    padded = (
        0 if recipe.is_cpu else attention.mask * size
    )  # fused kernels of GPUs copy a mask whose rows are not aligned
    return float(encoder.width * size * rows + weights + padded)


def _shared_mask(recipe: Recipe, length: int) -> float:
    return float(recipe.encoder.attention(length).mask * recipe.product)


def predicted(recipe: Recipe, tokens: float) -> float:
    """Of each masked token the features, both sides of GELU, and LayerNorm's output."""
    return tokens * recipe.masked_share * recipe.encoder.width * (3 * recipe.product + FLOAT)


def logits(recipe: Recipe, tokens: float, size: int) -> float:
    """Numbers of so many bytes, one for each word and masked token. At the highest point these are float32 logarithms of the
    softmax, the gradient of the loss, and the gradient of the logits.
    """
    return tokens * recipe.masked_share * recipe.encoder.vocabulary * size


def passing(recipe: Recipe, rows: int, length: int) -> float:
    """Gradients beside what the backward pass has let go of a layer by then: one as wide as GELU, two as wide as the layer."""
    return float(rows * length * (recipe.encoder.ffn * recipe.product + 2 * recipe.encoder.width * recipe.element))


def projected(recipe: Recipe, texts: int, vectors: int) -> float:
    """Text vectors, and of the projection head what it gives, and what GELU is given."""
    encoder = recipe.encoder
    return float(texts * vectors * recipe.vector * (sum(encoder.projection) + encoder.projection_kept))


def read_by_keys(recipe: Recipe, rows: int, length: int) -> float:
    """Of an encoder without gradient in its last layer: both sides of GELU, or weights of attention, and the layer's input and
    output; of the guide, whose layers are all pooled, also the hidden states.
    """
    encoder, size = recipe.encoder, recipe.product
    drops_out = recipe.key_encoder == "momentum" or recipe.guide_drops_out
    states = encoder.layers if recipe.key_encoder == "frozen" or encoder.pooling not in ("cls", "mean", "max") else 0
    layer = length * (encoder.ffn * (size + FLOAT) + 2 * encoder.width * recipe.element)
    if recipe.holds_attention and drops_out:
        attention = 4 * length * encoder.width * size + 3 * size * encoder.heads * encoder.attention(length).pairs
        layer = max(layer, attention)
    return float(rows * (layer + states * length * encoder.width * recipe.element))


def contrasted(recipe: Recipe, texts: int, workers: int) -> float:
    """Vectors as they came and of length 1, of queries and keys, the gradient of the queries; one block of their products.

    Keys of a queue are of length 1 as they lie; the positives are taken in their place.
    """
    contrast = contrast_of(recipe, texts, workers)
    keys = contrast.queries if recipe.key_encoder == "momentum" else contrast.keys
    vectors = contrast.queries * (2 * recipe.vector + 4 * FLOAT) + keys * (recipe.vector + FLOAT)
    if recipe.objective == "opt3":  # each layer's positive beside its query
        vectors += contrast.queries * recipe.guide_layers * FLOAT
    return float(recipe.encoder.output_dim * vectors + 3 * FLOAT * min(contrast.queries * contrast.keys, BLOCK))
