"""What each worker sends: every collective of an update, with its bytes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fairseq_clear.planning.contrast import contrast_of
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
TENSORS_QUEUE = ("queue_fill", "queue_readings")
TENSORS_REGULARIZER = ("distance",)
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
        found += _contrasted(recipe, texts, workers, update_freq, backend)
        found.append(Collective("counts of queries and masked tokens", "all_reduce", 2 * 8, update_freq))
    if not recipe.is_cpu:
        found.append(Collective("gradient norms", "all_reduce", 8 * workers))
    return found + _logged(recipe)


def _gradients(recipe: Recipe) -> Collective:
    """DistributedDataParallel sums what is trained, fairseq's legacy_ddp its whole buffer, as long as all weights."""
    if recipe.uses_ddp:
        return Collective("gradients", "all_reduce", recipe.trained * recipe.element)
    buffer = min(LEGACY_BUFFER, recipe.weights)
    return Collective("gradients", "all_reduce", buffer * recipe.element, math.ceil(recipe.trained / buffer))


def _contrasted(recipe: Recipe, texts: int, workers: int, times: int, backend: str) -> list[Collective]:
    """Row counts, vectors with their gradients, identities. Each thousandth micro-batch workers also compare their queues."""
    pairs = recipe.anchors * texts

    def gathered(whose: str, vectors: str, rows: int, each: int, *, has_gradient: bool) -> list[Collective]:
        size = rows * each * recipe.encoder.output_dim * recipe.vector
        found = [Collective(f"{whose}{vectors}", "all_gather", size, times)]
        if has_gradient:
            operation = "all_reduce" if backend == "gloo" else "reduce_scatter"
            found.append(Collective(f"{whose}{vectors}' gradients", operation, workers * size, times))
        return found

    def named(whose: str, rows: int) -> list[Collective]:
        return [
            Collective(f"{whose}row counts", "all_gather", 8, times),
            Collective(f"{whose}identities", "all_gather", rows * 8, times),
        ]

    if recipe.key_encoder == "momentum":
        rows = contrast_of(recipe, texts, workers).queries
        return named("", rows) + gathered("", "keys", rows, 1, has_gradient=False)
    if not recipe.is_global:
        return []
    if recipe.key_encoder == "frozen":
        takes_sentences = recipe.objective in ("sg", "opt1")  # as keys; the others gather them for nothing
        has_head = recipe.encoder.has_projection
        found = named("", pairs) + gathered("", "projections", pairs, 1, has_gradient=takes_sentences)
        return found + gathered("", "guides", pairs, recipe.guide_layers, has_gradient=has_head)
    found = named("", 2 * pairs) + gathered("", "projections", 2 * pairs, 1, has_gradient=True)
    if recipe.negatives:
        rows = recipe.negatives * pairs
        found += named("hard negatives' ", rows)
        found += gathered("hard negatives' ", "projections", rows, 1, has_gradient=True)
    return found


def _logged(recipe: Recipe) -> list[Collective]:
    tensors, counts = len(TENSORS), len(COUNTS)
    if recipe.criterion != "masked_lm" and recipe.has_mlm:
        tensors += len(TENSORS_MLM)
    if recipe.has_views:
        tensors, counts = tensors + len(TENSORS_VIEWS), counts + len(COUNTS_VIEWS)
        tensors += recipe.has_queue * len(TENSORS_QUEUE)
    tensors += recipe.has_regularizer * len(TENSORS_REGULARIZER)
    return [
        Collective("logged numbers", "all_reduce", 8 * tensors),
        Collective("logged counts", "all_reduce", 8 * counts),
    ]


def sent_bytes(exchanges: Sequence[Collective], workers: int) -> float:
    """Bytes that a worker sends in one update, around a ring."""
    return sum(exchange.sent(workers) for exchange in exchanges)
