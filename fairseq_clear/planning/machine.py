"""A plan: how a recipe is laid out over so many GPUs of so much memory, and what that costs."""

import math
from dataclasses import dataclass

from fairseq_clear.errors import UserError
from fairseq_clear.planning.communication import Collective, collectives, sent_bytes
from fairseq_clear.planning.contrast import contrast_of
from fairseq_clear.planning.corpus import Corpus
from fairseq_clear.planning.memory import Memory, estimate_memory
from fairseq_clear.planning.operations import Operations, count_operations
from fairseq_clear.planning.recipe import Recipe

__all__ = ["GIB", "HEADROOM", "Machine", "Plan", "assumed_peak", "make_plan"]

GIB = 2**30
HEADROOM = 0.9  # of the memory: the rest is for the allocator's gaps, kernels' scratch space and NCCL


# operations a second at best, and what they are of
PEAKS = {
    "half": (125e12, "a V100 in half precision"),
    "single": (15.7e12, "a V100 in float32"),
    # 2 FMA units x 8 floats x 2 operations x 3 GHz; PyTorch computes float32 on a CPU, whatever the recipe's precision
    "cpu": (0.096e12, "one CPU core, AVX2 at 3 GHz in float32"),
}


@dataclass(frozen=True)
class Machine:
    """What there is.

    Attributes:
        workers: GPUs.
        memory: bytes of each.
        peak: operations a second of each, at best.
        peak_of: the hardware and precision that the peak belongs to, for the report.
        utilisation: share of the peak that is reached.
        bandwidth: bytes a second that each can send.
        backend: nccl or gloo.
    """

    workers: int
    memory: float = 32.0 * GIB
    peak: float = 125e12
    peak_of: str = "given"
    utilisation: float = 0.45
    bandwidth: float = 10e9
    backend: str = "nccl"


@dataclass(frozen=True)
class Plan:
    """The layout and its costs, of each worker and each update unless it says otherwise.

    Attributes:
        recipe, machine: what it is of.
        texts: of a micro-batch.
        update_freq: micro-batches.
        chunk: tokens encoded at a time; 0 for all.
        negatives: of a query, of a queue once it is full; 0 without a contrastive term.
        updates: of the run.
        tokens: that encoders read, of all workers.
        epochs: of the run; None where the corpus is not known.
        operations: of one micro-batch.
        memory: at the peak.
        exchanges: between workers.
    """

    recipe: Recipe
    machine: Machine
    texts: int
    update_freq: int
    chunk: int
    negatives: int
    updates: int
    tokens: int
    epochs: float | None
    operations: Operations
    memory: Memory
    exchanges: tuple[Collective, ...]

    @property
    def global_batch(self) -> int:
        """Texts of an update."""
        return self.texts * self.update_freq * self.machine.workers

    @property
    def compute_seconds(self) -> float:
        """Of an update."""
        return self.operations.total * self.update_freq / (self.machine.peak * self.machine.utilisation)

    @property
    def sent(self) -> float:
        """Bytes that each worker sends."""
        return sent_bytes(self.exchanges, self.machine.workers)

    @property
    def communication_seconds(self) -> float:
        """Of an update, if nothing of it is hidden behind computing."""
        return self.sent / self.machine.bandwidth

    @property
    def hours(self) -> float:
        """Of the run, nothing hidden."""
        return self.updates * (self.compute_seconds + self.communication_seconds) / 3600


def assumed_peak(recipe: Recipe) -> tuple[float, str]:
    """Operations a second that a worker reaches at best in the recipe's precision, and the hardware assumed for it."""
    if recipe.is_cpu:
        return PEAKS["cpu"]
    return PEAKS["single" if recipe.precision == "fp32" else "half"]


def make_plan(recipe: Recipe, machine: Machine, global_batch: int | None = None, corpus: Corpus | None = None) -> Plan:
    """Lay a recipe out.

    With a contrastive term micro-batches stay as large as they are configured, since its negatives are theirs, and the
    encoder goes over them in chunks where memory asks for it; without one, or with a queue, there are more, smaller
    micro-batches.

    Args:
        recipe: what is trained.
        machine: what there is.
        global_batch: texts of an update (default: as configured, on so many workers).
        corpus: the training text.

    Raises:
        UserError: a batch that cannot be divided, memory that one text does not fit.
    """
    configured = recipe.batch_size * recipe.update_freq * machine.workers
    wanted = configured if global_batch is None else global_batch
    if wanted < 1:
        raise UserError("dataset.batch_size: the recipe has none; give --global-batch, the texts of an update")
    if wanted % machine.workers:
        raise UserError(f"--global-batch {wanted}: is no multiple of --gpus {machine.workers}; give one that is")
    share = wanted // machine.workers
    least = recipe.update_freq if share % recipe.update_freq == 0 else 1
    texts, chunk = _fit(recipe, machine, share, least)
    frequency = share // texts
    updates, epochs = _length(recipe, wanted, corpus)
    read = recipe.copies * recipe.mean_length + (recipe.view_rows + recipe.key_rows) * recipe.mean_view_length
    return Plan(
        recipe=recipe,
        machine=machine,
        texts=texts,
        update_freq=frequency,
        chunk=chunk,
        negatives=contrast_of(recipe, texts, machine.workers).negatives,
        updates=updates,
        tokens=round(wanted * read),
        epochs=epochs,
        operations=count_operations(recipe, texts, machine.workers, chunk),
        memory=estimate_memory(recipe, texts, machine.workers, chunk),
        exchanges=tuple(collectives(recipe, texts, machine.workers, frequency, backend=machine.backend)),
    )


def fits(recipe: Recipe, machine: Machine, texts: int, chunk: int) -> bool:
    """Whether the peak leaves the headroom."""
    return estimate_memory(recipe, texts, machine.workers, chunk).total <= HEADROOM * machine.memory


def _fit(recipe: Recipe, machine: Machine, share: int, least: int) -> tuple[int, int]:
    """Texts of a micro-batch, and tokens of a chunk: those of 1, 2, 4 ... of the longest texts, where the recipe has none."""
    frequencies = [count for count in range(least, share + 1) if share % count == 0]
    if recipe.chunk_size:
        chunks = [recipe.chunk_size]
    else:
        rows = max(recipe.copies, recipe.view_rows, recipe.key_rows) * share
        chunks = [0, *(2**power * recipe.longest for power in range(int(math.log2(rows)), -1, -1))]
    if recipe.has_views and not recipe.has_queue:  # fewer negatives are the last resort
        orders = [(count, chunk) for count in frequencies for chunk in chunks]
    else:
        orders = [(count, chunk) for chunk in chunks for count in frequencies]
    for count, chunk in orders:
        if fits(recipe, machine, share // count, chunk):
            return share // count, chunk
    needed = min(estimate_memory(recipe, 1, machine.workers, chunk).total for chunk in chunks) / GIB
    raise UserError(
        f"--memory {machine.memory / GIB:g}: one text alone needs {needed:.1f} GiB, of which {HEADROOM:.0%} may be used; "
        "give a smaller model, common.fp16=true, or more memory"
    )


def _length(recipe: Recipe, global_batch: int, corpus: Corpus | None) -> tuple[int, float | None]:
    """Updates of the run, and its epochs."""
    if corpus is None:
        if not recipe.max_update:
            raise UserError(
                "optimization.max_update: the recipe has none; set it, or give --data-bin, whose text the epochs are of"
            )
        return recipe.max_update, None
    an_epoch = math.ceil(corpus.texts / global_batch)
    limits = [limit for limit in (recipe.max_update, recipe.max_epoch * an_epoch) if limit]
    if not limits:
        raise UserError("optimization.max_update: neither it nor optimization.max_epoch is set; set one")
    return min(limits), min(limits) / an_epoch
