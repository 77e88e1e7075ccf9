"""What each worker sends: every collective of an update, with its bytes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fairseq_clear.planning.recipe import Recipe

__all__ = ["Collective", "collectives", "sent_bytes"]

# What fairseq sums over workers each update, in float64: masked_lm's numbers with its own (sample_size, ooms, time), and those
# of a contrastive term; what is a tensor by itself, what the host counts by itself.
TENSORS = ("loss", "sample_size", "extra_sample_size")
COUNTS = ("ntokens", "nsentences", "ooms", "time")
TENSORS_MLM = ("mlm_loss", "masked_tokens")
TENSORS_VIEWS = (
    *("contrastive_loss", "queries", "without_negatives", "correct", "positive_cosine", "negative_cosine"),
    *("negatives", "alignment", "uniformity"),
)
COUNTS_VIEWS = ("view_length", "text_length", "words", "substituted", "fell_back")

LEGACY_BUFFER = 2**28


@dataclass(frozen=True)
class Collective:
    """One kind of exchange.

    Attributes:
        what: is exchanged.
        operation: all_reduce, all_gather or reduce_scatter.
        size: bytes of what a worker contributes; of a reduce-scatter, of what it holds before.
        times: in one update.
    """

    what: str
    operation: str
    size: int
    times: int = 1

    def sent(self, workers: int) -> float:
        """Bytes that a worker sends around a ring in one update."""
        if self.operation == "all_gather":
            return float((workers - 1) * self.size * self.times)
        share = (workers - 1) / workers * self.size * self.times
        return 2 * share if self.operation == "all_reduce" else share


def collectives(
    recipe: Recipe, texts: int, workers: int, update_freq: int = 1, *, backend: str = "nccl"
) -> list[Collective]:
    """Every exchange of one update; none for one worker.

    Args:
        recipe: what is trained.
        texts: of each worker in a micro-batch.
        workers: all of them.
        update_freq: micro-batches of an update.
        backend: nccl, or gloo, which sums the whole gradient of the keys where nccl scatters it.
    """
    if workers == 1:
        return []
    found = [_gradients(recipe)]
    if recipe.has_views:
        if recipe.is_global:
            pairs = recipe.anchors * texts
            found += _gathered("", 2 * pairs, recipe, workers, update_freq, backend)
            if recipe.negatives:
                found += _gathered("hard negatives' ", recipe.negatives * pairs, recipe, workers, update_freq, backend)
        found.append(Collective("counts of queries and masked tokens", "all_reduce", 2 * 8, update_freq))
    if not recipe.is_cpu:
        found.append(Collective("gradient norms", "all_reduce", 8 * workers))
    return found + _logged(recipe)


def _gradients(recipe: Recipe) -> Collective:
    """DistributedDataParallel sums what is trained, fairseq's legacy_ddp its whole buffer, as long as all weights."""
    weights = recipe.encoder.parameters()
    if recipe.uses_ddp:
        return Collective("gradients", "all_reduce", recipe.trained * recipe.element)
    buffer = min(LEGACY_BUFFER, weights)
    return Collective("gradients", "all_reduce", buffer * recipe.element, math.ceil(recipe.trained / buffer))


def _gathered(whose: str, rows: int, recipe: Recipe, workers: int, times: int, backend: str) -> list[Collective]:
    """Row counts, vectors forward and backward, identities."""
    vectors = rows * recipe.encoder.output_dim * recipe.element
    operation = "all_reduce" if backend == "gloo" else "reduce_scatter"
    return [
        Collective(f"{whose}row counts", "all_gather", 8, times),
        Collective(f"{whose}projections", "all_gather", vectors, times),
        Collective(f"{whose}identities", "all_gather", rows * 8, times),
        Collective(f"{whose}projections' gradients", operation, workers * vectors, times),
    ]


def _logged(recipe: Recipe) -> list[Collective]:
    tensors, counts = len(TENSORS), len(COUNTS)
    if recipe.criterion != "masked_lm" and recipe.copies:
        tensors += len(TENSORS_MLM)
    if recipe.has_views:
        tensors, counts = tensors + len(TENSORS_VIEWS), counts + len(COUNTS_VIEWS)
    return [
        Collective("logged numbers", "all_reduce", 8 * tensors),
        Collective("logged counts", "all_reduce", 8 * counts),
    ]


def sent_bytes(exchanges: Sequence[Collective], workers: int) -> float:
    """Bytes that a worker sends in one update, around a ring."""
    return sum(exchange.sent(workers) for exchange in exchanges)
