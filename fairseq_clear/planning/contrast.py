"""Which queries meet which keys in the contrastive term of a recipe."""

from dataclasses import dataclass

from fairseq_clear.planning.recipe import Recipe

__all__ = ["Contrast", "contrast_of"]


@dataclass(frozen=True)
class Contrast:
    """Of one micro-batch on one worker.

    Attributes:
        queries, keys: how many.
        negatives: of a query.
        key_gradient: whether the keys have one.
    """

    queries: int = 0
    keys: int = 0
    negatives: int = 0
    key_gradient: bool = False


def contrast_of(recipe: Recipe, texts: int, workers: int = 1) -> Contrast:
    """Queries of a worker and the keys that it sees.

    Args:
        recipe: what is trained.
        texts: on each worker.
        workers: whose views are keys, where negatives are global.
    """
    if not recipe.has_views:
        return Contrast()
    pairs = recipe.anchors * texts
    everyone = pairs * (workers if recipe.is_global else 1)
    if recipe.key_encoder == "momentum":
        return Contrast(pairs * (1 + recipe.is_symmetric), recipe.queue, recipe.queue)
    if recipe.key_encoder == "shared":
        keys = everyone * (2 + recipe.negatives)
        return Contrast(2 * pairs, keys, keys - 2, key_gradient=True)
    if recipe.objective in ("sg", "opt1"):
        queries = 2 * pairs if recipe.objective == "sg" else pairs
        return Contrast(queries, 2 * everyone, 2 * everyone - 2, key_gradient=True)
    layers = recipe.guide_layers  # the guide's vectors alone, whose gradient is the projection head's
    return Contrast(pairs, everyone * layers, (everyone - 1) * layers, key_gradient=recipe.encoder.has_projection)
