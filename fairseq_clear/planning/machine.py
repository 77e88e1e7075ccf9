"""A plan: how a recipe is laid out over a number of GPUs of given memory, and what that costs."""

import json
import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fairseq_clear.errors import UserError
from fairseq_clear.planning.costs import Memory, Operations, Recipe
from fairseq_clear.planning.metering import Collective
from fairseq_clear.planning.recipe import SYMBOLS
from fairseq_clear.spec import check_knobs
from fairseq_clear.text.data_folders import CLEAR_JSON
from fairseq_clear.views.view_table import find_view_source

__all__ = ["GIB", "GPUS", "HEADROOM", "Folder", "Machine", "Plan", "Point", "make_curve", "make_plan", "read_folder"]

GIB = 2**30
HEADROOM = 0.9  # of the memory: the rest is for the allocator's gaps, kernels' scratch space and NCCL
GPUS = tuple(2**power for power in range(13))  # 1 ... 4,096, of a curve
ASSUMPTIONS = "the same MFU for every share, a ring at full bandwidth without latency, nothing hidden"
EFFICIENCY = "computing without recomputation / (computing + sending)"
# operations a second at best, and the hardware that they are of
PEAKS = {
    "half": (125e12, "a V100 in half precision"),
    "single": (15.7e12, "a V100 in float32"),
    # 2 FMA units x 8 floats x 2 operations x 3 GHz; PyTorch computes float32 on a CPU, whatever the recipe's precision
    "cpu": (0.096e12, "one CPU core, AVX2 at 3 GHz in float32"),
}


@dataclass(frozen=True)
class Folder:
    """What a plan reads from a data folder.

    Attributes:
        texts: texts as the recipe cuts them.
        vocabulary: rows of the embedding.
        text_length: mean tokens of a text where each sentence is one; None where texts are filled up.
    """

    texts: int
    vocabulary: int
    text_length: int | None


def read_folder(folder: Path, task: Mapping[str, Any]) -> Folder:
    """Read clear.json and dict.txt; a folder of shards holds their sum.

    Args:
        folder: of ``fairseq-clear prepare``.
        task: the recipe's section.

    Raises:
        UserError: there is no such file, or not one that fairseq-clear prepare wrote.
    """
    manifest = folder / CLEAR_JSON
    try:
        content = json.loads(manifest.read_text(encoding="utf-8"))
        counts = content["splits"]["train"]
        sentences, tokens = int(counts["sentences"]), int(counts["tokens"])
        documents = int(counts.get("documents", 1))
        with open(folder / (content.get("shards") or ["."])[0] / "dict.txt", encoding="utf-8") as lines:
            vocabulary = sum(1 for _ in lines) + SYMBOLS
    except OSError as error:
        raise UserError(
            f"--data-bin {folder}: {error.filename}: {error.strerror}; give a folder of fairseq-clear prepare, or "
            "--vocabulary in its place"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"--data-bin {folder}: {manifest} is not what fairseq-clear prepare writes ({error!r})"
        ) from None
    if sentences < 1 or tokens < 1:
        raise UserError(f"--data-bin {folder}: {manifest} counts no text to train on")
    if str(task.get("document_boundary", "blank")) == "line":
        documents = sentences
    texts, length = _texts(task, sentences, tokens, documents)
    return Folder(texts, vocabulary, length)


def _texts(task: Mapping[str, Any], sentences: int, tokens: int, documents: int) -> tuple[int, int | None]:
    """The number of texts that the recipe makes, and mean tokens of a text, or of a sentence where a text has several.

    Counts neighbours as if all documents had the same length; every document is taken to have spans.
    """
    limit = int(task.get("tokens_per_sample", 512))
    length = min(round(tokens / sentences) + 1, limit)  # <s> is not among the tokens counted
    kind, step = find_view_source(str(task.get("views", "same")), flag="task.views")
    if step.name == "span":
        return documents, None
    if step.name == "neighbor":
        each = int(check_knobs(step, kind.knobs, flag="task.views")["sentences"])
        return max(sentences // each - documents, 1), length
    if str(task.get("sample_break_mode", "none")) == "eos":
        is_aligned = bool(kind.values or task.get("hard_negatives"))  # a long line is then cut off, not split
        return sentences if is_aligned else max(sentences, math.ceil((tokens - sentences) / max(limit - 2, 1))), length
    return math.ceil(tokens / max(limit - 1, 1)), None


@dataclass(frozen=True)
class Machine:
    """The GPUs, or CPU workers.

    Attributes:
        workers: how many.
        memory: bytes of each.
        peak: operations a second of each, at best; 0 for one that suits the recipe's precision.
        utilisation: share of the peak that is reached.
        bandwidth: bytes a second that each can send.
        backend: nccl or gloo.
    """

    workers: int
    memory: float = 32.0 * GIB
    peak: float = 0.0
    utilisation: float = 0.45
    bandwidth: float = 10e9
    backend: str = "nccl"


@dataclass(frozen=True)
class Plan:
    """The layout and its costs, of each worker and each update unless it says otherwise.

    Attributes:
        recipe, machine: what is laid out, and over what.
        peak_of: the hardware and precision that the peak belongs to.
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
    peak_of: str
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
        """Seconds of computing of an update."""
        return self.operations.total * self.update_freq / (self.machine.peak * self.machine.utilisation)

    @property
    def sent(self) -> float:
        """Bytes that each worker sends around a ring."""
        return sum(exchange.sent(self.machine.workers) for exchange in self.exchanges)

    @property
    def communication_seconds(self) -> float:
        """Seconds of sending of an update, if none is hidden behind computing."""
        return self.sent / self.machine.bandwidth

    @property
    def hours(self) -> float:
        """Hours of the run, nothing hidden."""
        return self.updates * (self.compute_seconds + self.communication_seconds) / 3600


def make_plan(recipe: Recipe, machine: Machine, global_batch: int | None = None, corpus: int | None = None) -> Plan:
    """Lay a recipe out.

    With a contrastive term micro-batches stay as large as they are configured, since its negatives are theirs, and the
    encoder reads them in chunks where memory asks for it; without one, or with a queue, there are more, smaller
    micro-batches.

    Args:
        recipe: what is trained.
        machine: what it is trained on.
        global_batch: texts of an update (default: as configured, on this number of workers).
        corpus: texts of the training set.

    Raises:
        UserError: a batch that cannot be divided, memory that one text does not fit.
    """
    frequency = recipe.cfg.optimization.update_freq[0]
    wanted = (
        (recipe.cfg.dataset.batch_size or 0) * frequency * machine.workers if global_batch is None else global_batch
    )
    if wanted < 1:
        raise UserError("dataset.batch_size: the recipe has none; give --global-batch, the texts of an update")
    if wanted % machine.workers:
        raise UserError(f"--global-batch {wanted}: is no multiple of --gpus {machine.workers}; give one that is")
    share = wanted // machine.workers
    updates, epochs = _length(recipe, wanted, corpus)
    texts, chunk = _fit(recipe, machine, share, frequency if share % frequency == 0 else 1)
    assumed, of = PEAKS["cpu" if recipe.is_cpu else "single" if recipe.precision == "fp32" else "half"]
    return Plan(
        recipe=recipe,
        machine=replace(machine, peak=machine.peak or assumed),
        peak_of="of --peak-tflops" if machine.peak else f"assumed: {of} (--peak-tflops sets another)",
        texts=texts,
        update_freq=share // texts,
        chunk=chunk,
        negatives=recipe.negatives(texts, machine.workers),
        updates=updates,
        tokens=round(wanted * sum(map(sum, recipe.texts.values())) / recipe.items),
        epochs=epochs,
        operations=recipe.operations(texts, machine.workers, chunk),
        memory=recipe.memory(texts, machine.workers, chunk),
        exchanges=tuple(recipe.exchanges(texts, machine.workers, share // texts, backend=machine.backend)),
    )


def _fit(recipe: Recipe, machine: Machine, share: int, least: int) -> tuple[int, int]:
    """Texts of a micro-batch, and tokens of a chunk: those of 1, 2, 4 ... of the longest texts, where the recipe has none."""
    frequencies = [count for count in range(least, share + 1) if share % count == 0]
    if recipe.chunk_size:
        chunks = [recipe.chunk_size]
    else:
        rows = max(map(len, recipe.texts.values())) * share / recipe.items
        chunks = [0, *(2**power * recipe.longest for power in range(int(math.log2(max(rows, 1))), -1, -1))]

    def needed(count: int, chunk: int) -> float:
        return recipe.memory(share // count, machine.workers, chunk).total

    def is_enough(count: int, chunk: int) -> bool:
        return needed(count, chunk) <= HEADROOM * machine.memory

    if recipe.has_contrast and recipe.model.key_queue is None:  # fewer negatives are the last resort
        for count in frequencies:
            if is_enough(count, chunks[0]):
                return share // count, chunks[0]
            if is_enough(count, chunks[-1]):
                return share // count, chunks[bisect_left(chunks, True, key=lambda chunk: is_enough(count, chunk))]
    for chunk in chunks:
        if is_enough(frequencies[-1], chunk):
            first = bisect_left(frequencies, True, key=lambda count: is_enough(count, chunk))
            return share // frequencies[first], chunk
    lowest = min(needed(share, chunk) for chunk in (chunks[0], chunks[-1])) / GIB
    raise UserError(
        f"--memory {machine.memory / GIB:g}: one text alone needs {lowest:.1f} GiB, of which {HEADROOM:.0%} may be used; "
        "give a smaller model, common.fp16=true, or more memory"
    )


def _length(recipe: Recipe, global_batch: int, corpus: int | None) -> tuple[int, float | None]:
    """Updates of the run, and its epochs."""
    most, epochs = recipe.cfg.optimization.max_update, recipe.cfg.optimization.max_epoch
    if corpus is None:
        if not most:
            raise UserError(
                "optimization.max_update: the recipe has none; set it, or give --data-bin, whose text the epochs are of"
            )
        return most, None
    an_epoch = math.ceil(corpus / global_batch)
    limits = [limit for limit in (most, epochs * an_epoch) if limit]
    if not limits:
        raise UserError("optimization.max_update: neither it nor optimization.max_epoch is set; set one")
    return min(limits), min(limits) / an_epoch


@dataclass(frozen=True)
class Point:
    """An update on a number of GPUs.

    Attributes:
        gpus: how many.
        texts, update_freq, chunk: of each, as the plan has them.
        compute_seconds, communication_seconds: of an update.
        needed_seconds: of computing, what chunks recompute left out.
        sent: bytes that each sends.
        texts_per_second: of all.
    """

    gpus: int
    texts: int
    update_freq: int
    chunk: int
    compute_seconds: float
    communication_seconds: float
    needed_seconds: float
    sent: float
    texts_per_second: float

    @property
    def efficiency(self) -> float:
        """Seconds of computing without recomputation, over seconds of computing and sending; see EFFICIENCY."""
        return self.needed_seconds / (self.compute_seconds + self.communication_seconds)

    @classmethod
    def of(cls, plan: Plan) -> "Point":
        """What a curve shows of a plan."""
        return cls(
            gpus=plan.machine.workers,
            texts=plan.texts,
            update_freq=plan.update_freq,
            chunk=plan.chunk,
            compute_seconds=plan.compute_seconds,
            communication_seconds=plan.communication_seconds,
            needed_seconds=plan.compute_seconds * (1 - plan.operations.recomputed / plan.operations.total),
            sent=plan.sent,
            texts_per_second=plan.global_batch / (plan.compute_seconds + plan.communication_seconds),
        )


def make_curve(
    recipe: Recipe,
    machine: Machine,
    texts: int,
    *,
    per_gpu: bool = False,
    gpus: Sequence[int] = GPUS,
    corpus: int | None = None,
) -> list[Point]:
    """Plan for several numbers of GPUs, under the ASSUMPTIONS: small shares look faster than they are, large ones slower.

    Args:
        recipe: what is trained.
        machine: each GPU, and what connects them; its ``workers`` are not read.
        texts: of an update: on all GPUs, or on each.
        per_gpu: on each, so that the batch grows with the GPUs.
        gpus: numbers of GPUs; those among which the batch cannot be divided evenly are left out.
        corpus: texts of the training set.

    Raises:
        UserError: no such number is left, or memory does not suffice.
    """
    numbers = [number for number in gpus if per_gpu or (texts >= number and texts % number == 0)]
    if not numbers:
        raise UserError(
            f"--global-batch {texts}: cannot be dealt out to any of {', '.join(map(str, gpus))} GPUs evenly"
        )
    batches = [texts * number if per_gpu else texts for number in numbers]
    return [
        Point.of(make_plan(recipe, replace(machine, workers=number), batch, corpus))
        for number, batch in zip(numbers, batches, strict=True)
    ]
