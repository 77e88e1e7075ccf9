"""Plans a run: distributes a recipe over GPUs of a given memory, and estimates its cost."""

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
from fairseq_clear.tasks.corpus_mix import parse_mix
from fairseq_clear.text.data_folders import CLEAR_JSON
from fairseq_clear.views.view_table import find_view_source

GIB = 2**30
HEADROOM = 0.9  # share of the memory to use; the rest is for fragmentation, scratch space of kernels and NCCL
GPUS = tuple(2**power for power in range(13))  # 1 ... 4,096, the points of a curve
ASSUMPTIONS = "the same MFU for every share, a ring at full bandwidth without latency, nothing hidden"
EFFICIENCY = "computing without recomputation / (computing + sending)"
# precision -> peak operations per second, and the hardware
PEAKS = {
    "half": (125e12, "a V100 in half precision"),
    "single": (15.7e12, "a V100 in float32"),
    # 2 FMA units x 8 floats x 2 operations x 3 GHz; PyTorch computes float32 on a CPU, whatever the recipe's precision
    "cpu": (0.096e12, "one CPU core, AVX2 at 3 GHz in float32"),
}


@dataclass(frozen=True)
class Folder:
    """Facts of a data folder that a plan uses.

    Attributes:
        texts: number of texts of an epoch, those of the other corpora of ``task.mix`` included.
        vocabulary: rows of the embedding.
        text_length: mean tokens of a text if each sentence is a text; None if texts are filled up to the maximum.
    """

    texts: int
    vocabulary: int
    text_length: int | None


def read_folder(folder: Path, task: Mapping[str, Any]) -> Folder:
    """Read clear.json and dict.txt; for a folder of shards, their sum.

    Args:
        folder: data folder of ``fairseq-clear prepare``.
        task: the recipe's section ``task``.

    Raises:
        UserError: a file is missing, or was not written by fairseq-clear prepare; or ``task.mix`` does not name the folder.
    """
    corpora = parse_mix(str(task.get("mix") or ""), str(folder))
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
            "--vocabulary instead"
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
    if corpora:
        texts = round(texts * sum(corpus.weight for corpus in corpora) / corpora[0].weight)
    return Folder(texts, vocabulary, length)


def _texts(task: Mapping[str, Any], sentences: int, tokens: int, documents: int) -> tuple[int, int | None]:
    """Number of texts that the recipe makes, and mean tokens of a text, or of a sentence if a text has several.

    Assumes for pairs of neighbours that all documents have the same length, and for spans that every document is long enough.
    """
    limit = int(task.get("tokens_per_sample", 512))
    length = min(round(tokens / sentences) + 1, limit)  # <s> is not among the tokens counted
    kind, step = find_view_source(str(task.get("views", "same")), flag="task.views")
    if step.name == "span":
        return documents, None
    if step.name == "neighbor":
        each = int(check_knobs(step, kind.knobs, flag="task.views")["sentences"])
        return max(sentences // each - documents, 1), length
    if str(task.get("sample_break_mode", "none")) == "eos" or kind.needs_documents:
        # then a long line is cut off instead of split
        is_aligned = bool(kind.values or task.get("hard_negatives") or kind.needs_documents)
        return sentences if is_aligned else max(sentences, math.ceil((tokens - sentences) / max(limit - 2, 1))), length
    return math.ceil(tokens / max(limit - 1, 1)), None


@dataclass(frozen=True)
class Machine:
    """The GPUs, or CPU workers.

    Attributes:
        workers: number of GPUs or CPU workers.
        memory: bytes of each.
        peak: peak operations per second of each; 0 for the default of the recipe's precision.
        utilisation: share of the peak that is reached (MFU).
        bandwidth: bytes per second that each can send.
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
    """A recipe distributed over a machine, and its cost. Numbers are per worker and per update unless stated otherwise.

    Attributes:
        recipe, machine: the recipe and the machine.
        peak_of: hardware and precision that the peak belongs to.
        texts: texts of a micro-batch.
        update_freq: number of micro-batches.
        chunk: tokens encoded at a time; 0 for all.
        negatives: negatives of a query, with a queue once it is full; 0 without a contrastive term.
        updates: number of updates of the run.
        tokens: tokens that encoders read, on all workers.
        epochs: epochs of the run; None if the corpus is not known.
        operations: operations of one micro-batch.
        memory: bytes at the peak.
        exchanges: exchanges between workers.
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
        """Texts of an update, on all workers."""
        return self.texts * self.update_freq * self.machine.workers

    @property
    def compute_seconds(self) -> float:
        """Seconds of computing per update."""
        return self.operations.total * self.update_freq / (self.machine.peak * self.machine.utilisation)

    @property
    def sent(self) -> float:
        """Bytes that each worker sends per update, around a ring."""
        return sum(exchange.sent(self.machine.workers) for exchange in self.exchanges)

    @property
    def communication_seconds(self) -> float:
        """Seconds of sending per update, if it does not overlap with computing."""
        return self.sent / self.machine.bandwidth

    @property
    def hours(self) -> float:
        """Hours of the run, without overlap of computing and sending."""
        return self.updates * (self.compute_seconds + self.communication_seconds) / 3600

    @property
    def gpus(self) -> int:
        """Number of GPUs or CPU workers."""
        return self.machine.workers

    @property
    def needed_seconds(self) -> float:
        """Seconds of computing per update, without recomputation."""
        return self.compute_seconds * (1 - self.operations.recomputed / self.operations.total)

    @property
    def efficiency(self) -> float:
        """Seconds of computing without recomputation, over seconds of computing and sending; see EFFICIENCY."""
        return self.needed_seconds / (self.compute_seconds + self.communication_seconds)

    @property
    def texts_per_second(self) -> float:
        """Texts per second of all GPUs."""
        return self.global_batch / (self.compute_seconds + self.communication_seconds)


def make_plan(recipe: Recipe, machine: Machine, global_batch: int | None = None, corpus: int | None = None) -> Plan:
    """Distribute a recipe over a machine.

    With a contrastive term, micro-batches are as large as configured, because negatives come from one micro-batch, and the
    encoder reads them in chunks if memory is short. Without one, or with a queue, there are more, smaller micro-batches.

    Args:
        global_batch: texts of an update (default: as configured, on this number of workers).
        corpus: number of texts of the training set.

    Raises:
        UserError: the batch cannot be divided evenly, or one text does not fit into memory.
    """
    frequency = recipe.cfg.optimization.update_freq[0]
    wanted = (
        (recipe.cfg.dataset.batch_size or 0) * frequency * machine.workers if global_batch is None else global_batch
    )
    if wanted < 1:
        raise UserError("dataset.batch_size: the recipe has none; give --global-batch, the texts of an update")
    if wanted % machine.workers:
        raise UserError(f"--global-batch {wanted}: is not a multiple of --gpus {machine.workers}; give a multiple")
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
    """Texts of a micro-batch and tokens of a chunk. A chunk holds 1, 2, 4 ... of the longest texts, if not configured."""
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

    if recipe.has_contrast and recipe.model.key_queue is None:  # with smaller micro-batches, negatives would be fewer
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
        f"--memory {machine.memory / GIB:g}: a single text needs {lowest:.1f} GiB, of which {HEADROOM:.0%} may be used; "
        "give a smaller model, common.fp16=true, or more memory"
    )


def _length(recipe: Recipe, global_batch: int, corpus: int | None) -> tuple[int, float | None]:
    """Number of updates of the run, and of its epochs."""
    most, epochs = recipe.cfg.optimization.max_update, recipe.cfg.optimization.max_epoch
    if corpus is None:
        if not most:
            raise UserError(
                "optimization.max_update: the recipe has none; set it, or give --data-bin to know the length of an epoch"
            )
        return most, None
    an_epoch = math.ceil(corpus / global_batch)
    limits = [limit for limit in (most, epochs * an_epoch) if limit]
    if not limits:
        raise UserError("optimization.max_update: neither it nor optimization.max_epoch is set; set one")
    return min(limits), min(limits) / an_epoch


def make_curve(
    recipe: Recipe,
    machine: Machine,
    texts: int,
    *,
    per_gpu: bool = False,
    gpus: Sequence[int] = GPUS,
    corpus: int | None = None,
) -> list[Plan]:
    """Plan for several numbers of GPUs under ASSUMPTIONS, which favour many GPUs with few texts each.

    Args:
        machine: a GPU and its network; ``workers`` is not used.
        texts: texts of an update, on all GPUs, or with ``per_gpu`` on each, so that the batch grows with the number of GPUs.
        gpus: numbers of GPUs; those among which the batch cannot be divided evenly are left out.
        corpus: number of texts of the training set.

    Raises:
        UserError: no number of GPUs is left, or memory is too small.
    """
    numbers = [number for number in gpus if per_gpu or (texts >= number and texts % number == 0)]
    if not numbers:
        raise UserError(
            f"--global-batch {texts}: cannot be divided evenly among any of {', '.join(map(str, gpus))} GPUs"
        )
    batches = [texts * number if per_gpu else texts for number in numbers]
    return [
        make_plan(recipe, replace(machine, workers=number), batch, corpus)
        for number, batch in zip(numbers, batches, strict=True)
    ]
