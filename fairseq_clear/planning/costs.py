"""Counts the cost of a recipe by running its own micro-batches on tensors without values."""

import math
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from fairseq_clear.planning.metering import Collective, Meter, on_worker
from fairseq_clear.planning.recipe import build_trainer

# Methods of the model that read tokens -> the phase of the report that they belong to.
PHASES = {
    "_predict": "masked",
    "_embed_views": "views",
    "_guide": "keys",
    "_keys": "keys",
    "_prediction_loss": "masked",
}
# Maximum texts of a micro-batch that is run; larger ones are extrapolated from this one and from half of it.
LARGEST = 128
COPIES = ("guide", "key_encoder", "key_queue")
LEGACY_BUFFER = 2**28


@dataclass(frozen=True)
class Operations:
    """Floating-point operations of one micro-batch on one worker; a multiplication and an addition count as two.

    Attributes:
        masked: MLM rows through the encoder and the MLM head, forward and backward.
        views: views through the encoder and the projection head, forward and backward.
        keys: views through the momentum or the frozen encoder, and their vectors through the projection head.
        contrast: products of queries and keys, forward and backward.
        recomputed: operations that chunks repeat in the backward pass.
    """

    masked: float = 0.0
    views: float = 0.0
    keys: float = 0.0
    contrast: float = 0.0
    recomputed: float = 0.0

    @property
    def total(self) -> float:
        """Sum of all operations."""
        return sum(getattr(self, field.name) for field in fields(self))


@dataclass(frozen=True)
class Memory:
    """Bytes of a worker at the peak of an update.

    Attributes:
        weights: weights in the precision of training, and in half precision their float32 masters.
        copies: frozen or momentum copies of the encoder, and the queue.
        optimizer: state of the optimizer, such as Adam's two moments.
        buffers: float32 gradients of the masters, and buckets in which workers sum gradients.
        gradients: gradients of the backward pass.
        activations: tensors of the forward pass that autograd keeps.
        passing: temporary tensors of the backward pass or of the optimizer.
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
        """Sum of all bytes."""
        return sum(getattr(self, field.name) for field in fields(self))


@dataclass(frozen=True)
class _Encoded:
    """Cost of a micro-batch without its contrastive term: FLOPs and peak bytes by phase, and bytes before that term."""

    flops: Counter[str]
    at_peak: Counter[str]
    before_contrast: float

    def beyond(self, half: "_Encoded", share: float) -> "_Encoded":
        """Extrapolate linearly from ``half`` over this one: 0 is this one, 1 is as far beyond it as ``half`` is below."""

        def line(ours: Mapping[str, float], theirs: Mapping[str, float]) -> Counter[str]:
            return Counter({name: value + share * (value - theirs.get(name, 0.0)) for name, value in ours.items()})

        more = self.before_contrast + share * (self.before_contrast - half.before_contrast)
        return _Encoded(line(self.flops, half.flops), line(self.at_peak, half.at_peak), more)


class Recipe:
    """A recipe, which computes the cost of a micro-batch with any number of texts.

    Args:
        config: sections of the configuration, as ``recipe.compose_recipe`` returns them.
        vocabulary: rows of the embedding, special symbols included.
        text_length: tokens of a text, or of a sentence if a text has several (default: ``task.tokens_per_sample``).

    Attributes:
        cfg: fairseq's configuration.
        model, criterion: model and criterion on the meta device.
        precision: fp32, fp16, bf16 or amp.
        texts: ``masked``, ``views`` and ``keys`` -> tokens of each row of the drawn items.
        items: number of drawn items.
        longest: tokens of the longest row.
        weights, trained: numbers of parameters.
        has_contrast: whether there is a contrastive term.

    Raises:
        UserError: training rejects a setting, or its cost cannot be estimated.
    """

    def __init__(self, config: Mapping[str, Any], vocabulary: int, text_length: int | None = None) -> None:
        self.trainer, self._items = build_trainer(config, vocabulary, text_length)
        self.cfg, self.model, self.criterion = self.trainer.cfg, self.trainer._model, self.trainer._criterion
        instances = [instance for item in self._items for instance in item.instances]
        self.masked_views = sum(one.anchor_target is not None for one in instances) // len(self._items)
        self.vocabulary, self.items = vocabulary, len(self._items)
        common = self.cfg.common
        self.precision = next((name for name in ("fp16", "bf16", "amp") if common[name]), "fp32")
        self.is_cpu, self.chunk_size = bool(common.cpu), int(self.model.args.encode_chunk_size)
        self.uses_ddp = self.cfg.distributed_training.ddp_backend in ("pytorch_ddp", "c10d")
        parameters = list(self.model.parameters())
        self.weights, self.element = sum(one.numel() for one in parameters), parameters[0].element_size()
        self.trained = sum(one.numel() for one in parameters if one.requires_grad)
        self._on_worker = partial(on_worker, is_cpu=self.is_cpu, amp=self.precision == "amp")
        self.measured, self.contrasted = cache(self._run), cache(self._contrasted)
        self._vectors: dict[str, Tensor] = {}
        self._seen: dict[str, list[int]] = {}
        self.model.train()
        self.criterion.train()
        for name, phase in PHASES.items():
            setattr(self.model, name, partial(self._in_phase, getattr(self.model, name), phase))
        self._contrast = getattr(self.criterion, "contrast", None)
        self.criterion.contrast = self._before_contrast
        self._state = Meter()
        self._make_state()
        self._counts = self._count_exchanges()
        self.encoded(self.items, 0)
        self.texts = dict(self._seen)
        self.longest = max(max(lengths) for lengths in self.texts.values())
        self.text_length = max(self.texts.get("masked") or self.texts["views"])
        self.has_contrast = bool(self._vectors)

    def _in_phase(
        self, function: Callable[..., Any], phase: str, tokens: Tensor | None, *args: Any, **kwargs: Any
    ) -> Any:
        if tokens is not None and not tokens.is_floating_point():
            self._seen[phase] = tokens.ne(self.model.padding_idx).sum(dim=1).tolist()
        with self._meter.during(phase):
            return function(tokens, *args, **kwargs)

    def _before_contrast(self, vectors: dict[str, Tensor], views: Any, layouts: dict[str, Any]) -> Any:
        """Stands in for the criterion's ``contrast``, whose cost is counted separately, as it grows with pairs of texts."""
        self._held = self._meter.total
        if not self._vectors:
            self._vectors = {name: rows.detach().requires_grad_(rows.requires_grad) for name, rows in vectors.items()}
        total = torch.stack([rows.float().sum() for rows in vectors.values()]).sum()
        return total, total.detach(), {}

    def batch(self, texts: int) -> dict[str, Any]:
        """Make a micro-batch of ``texts`` drawn items, taken evenly from the shortest to the longest."""
        picked = ((np.arange(texts) + 0.5) / texts * len(self._items)).astype(int)
        sample: dict[str, Any] = self.trainer.task.dataset("train").collater([self._items[index] for index in picked])
        return sample

    def _make_state(self) -> None:
        """Make two updates with one text. The bytes left are the optimizer's state; the peak of the second is the minimum."""
        meter, model, optimizer = self._state, self.model, None
        self.tensors = [*model.parameters(), *model.buffers()]
        meter.ignore(self.tensors)
        self._meter = meter
        devices = patch("torch.optim.optimizer._get_fused_kernels_supported_devices", lambda: ["meta"])
        with patch.object(torch.cuda, "current_device", lambda: None), devices, self._on_worker(), meter:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the scaler of --amp warns that there is no GPU
                optimizer = self.trainer.optimizer
            if self.precision == "fp16":
                optimizer.scaler = None  # it reads values
            for _ in range(2):
                meter.peak = 0
                loss, _, _ = self.criterion(model, self.batch(1))
                optimizer.backward(loss)
                self.gradients = sum(
                    parameter.grad.nbytes for parameter in model.parameters() if parameter.grad is not None
                )
                optimizer.multiply_grads(1.0)
                self.trainer.clip_grad_norm(self.cfg.optimization.clip_norm)
                self.trainer.task.optimizer_step(optimizer, model=model, update_num=0)
                optimizer.zero_grad()
                del loss
        self._step = meter.peak - meter.total

    def _run(self, texts: int, chunk: int) -> _Encoded:
        sample, self.model.args.encode_chunk_size = self.batch(texts), chunk
        meter = self._meter = Meter(self._state)
        self._held = 0
        for leaf in tree_leaves(sample):
            if isinstance(leaf, Tensor):
                meter.hold(leaf, "activations")
        with self._on_worker(), meter:
            loss, _, _ = self.criterion(self.model, sample)
            loss.backward()
        self.model.zero_grad(set_to_none=True)
        return _Encoded(meter.flops, Counter(meter.at_peak), self._held)

    def encoded(self, texts: int, chunk: int) -> _Encoded:
        """Cost of a micro-batch: run, or extrapolated from two smaller ones, or if in chunks from one chunk of each phase."""
        if not chunk:
            if texts <= LARGEST:
                return self.measured(texts, 0)
            whole, half = self.encoded(LARGEST, 0), self.encoded(LARGEST // 2, 0)
            return whole.beyond(half, (texts - LARGEST) / (LARGEST - LARGEST // 2))
        few = self._few(chunk)
        if texts <= few:
            return self.measured(texts, chunk)
        part = self.measured(few, chunk)
        kept = (texts - few) / few * part.before_contrast
        return _Encoded(part.flops, part.at_peak + Counter(kept=kept), part.before_contrast + kept)

    def _few(self, chunk: int) -> int:
        """Number of texts that fill a chunk of masked rows and a chunk of views."""
        return math.ceil(chunk / min(sum(rows) / self.items for part, rows in self.texts.items() if part != "keys"))

    def _contrasted(self, texts: int, workers: int, backend: str) -> tuple[float, float, list[Collective]]:
        """FLOPs, peak bytes and exchanges of only the contrastive term."""
        if not self.has_contrast:
            return 0.0, 0.0, []
        views = self.batch(1)["views"]

        def more(value: Any) -> Any:
            rows = (value.shape[0] * texts, *value.shape[1:])
            made = torch.empty(rows, dtype=value.dtype, device="meta")
            return made.requires_grad_(value.requires_grad)

        vectors, views = tree_map_only(Tensor, more, (self._vectors, views))
        meter = Meter(self._state)
        with self._on_worker(workers=workers, backend=backend) as exchanged, meter:
            rows = self.criterion.gathered_rows(views)
            layouts = {name: self.criterion.layout(count, torch.device("cpu")) for name, count in rows.items()}
            loss, _, _ = self._contrast(vectors, views, layouts)
            loss.backward()
        return sum(meter.flops.values()), meter.peak, exchanged

    def _count_exchanges(self) -> list[Collective]:
        """Exchanges that do not depend on the number of workers: counts, and logged numbers."""
        with patch.object(self.criterion, "contrast", self._contrast), self._on_worker(workers=2) as exchanged, Meter():
            _, sample_size, log = self.criterion(self.model, self.batch(1))
            self.trainer._fast_stat_sync_sum([log], sample_size, 0, 0.0)
        return [one for one in exchanged if one.operation == "all_reduce"]

    def operations(self, texts: int, workers: int = 1, chunk: int = 0) -> Operations:
        """FLOPs of a micro-batch.

        Args:
            texts: texts on each worker.
            workers: number of workers over which negatives are gathered.
            chunk: tokens encoded at a time and recomputed in the backward pass; 0 for all at once.
        """
        # several chunks, because the more rows there are, the less padding chunks of similar length have
        few = min(texts, 4 * self._few(chunk)) if chunk else texts
        counted = self.measured(few, chunk).flops if chunk else self.encoded(texts, 0).flops
        flops = {name: counted[name] * texts / few for name in ("masked", "views", "keys", "recomputed")}
        return Operations(**flops, contrast=self.contrasted(texts, workers, "nccl")[0])

    def memory(self, texts: int, workers: int = 1, chunk: int = 0) -> Memory:
        """Bytes at the peak of an update; arguments as for ``operations``."""
        encoded, (_, contrast, _) = self.encoded(texts, chunk), self.contrasted(texts, workers, "nccl")
        backward = encoded.at_peak["backward"]
        gradients = min(self.gradients, backward)
        peaks = (
            (gradients, sum(encoded.at_peak.values()) - backward, backward - gradients, 0.0),
            (0.0, encoded.before_contrast, 0.0, contrast),
            (self.gradients, 0.0, self._step - self.gradients, 0.0),
        )
        return Memory(*self._state_bytes(workers), *max(peaks, key=sum))

    def _state_bytes(self, workers: int) -> tuple[float, float, float, float]:
        """Bytes of weights, copies, optimizer and buffers."""
        optimizer = self.trainer.optimizer
        copies = [module for name in COPIES if (module := getattr(self.model, name)) is not None]
        copied = {id(tensor) for module in copies for tensor in (*module.parameters(), *module.buffers())}
        weights = sum(tensor.nbytes for tensor in self.tensors if id(tensor) not in copied)
        masters = getattr(optimizer, "fp32_params", None) or []
        masters = list(masters.values()) if isinstance(masters, dict) else masters
        moments = sum(leaf.nbytes for leaf in tree_leaves(dict(optimizer.optimizer.state)) if isinstance(leaf, Tensor))
        of_masters = sum(master.nbytes for master in masters)
        held = (self._state.total - 2 * of_masters - moments) * bool(copies)  # rounded weights of a momentum encoder
        copied_bytes = sum(tensor.nbytes for tensor in self.tensors) - weights + held
        return weights + of_masters, copied_bytes, moments, of_masters + self._bucket() * (workers > 1)

    def _bucket(self) -> int:
        """Bytes of the buffers in which gradients are summed: DistributedDataParallel's, or the fixed buffer of legacy_ddp."""
        if self.uses_ddp:
            return self.gradients
        return min(LEGACY_BUFFER, self.weights) * self.element

    def exchanges(self, texts: int, workers: int, update_freq: int = 1, *, backend: str = "nccl") -> list[Collective]:
        """All exchanges of one update; none for one worker.

        Args:
            texts: texts of a micro-batch on each worker.
            workers: number of workers.
            update_freq: micro-batches of an update.
            backend: nccl; or gloo, which sums the gradient of all keys instead of scattering it.
        """
        if workers == 1:
            return []
        buckets = -(-self.gradients // self._bucket())
        found = [Collective("gradients", "all_reduce", self._bucket(), buckets)]
        if not self.is_cpu:
            found.append(Collective("gradient norms", "all_reduce", 8 * workers))
        repeated = self.contrasted(texts, workers, backend)[2] + self._counts[:-2]
        return found + [replace(one, times=update_freq) for one in repeated] + self._counts[-2:]

    def negatives(self, texts: int, workers: int = 1) -> int:
        """Number of negatives of a query; with a queue, once it is full."""
        if not self.has_contrast:
            return 0
        if self.model.key_queue is not None:
            return int(self.model.key_queue.size)
        two, four, shared = self._candidates(2, 1), self._candidates(4, 1), self._candidates(2, 2)
        everyone = texts * (workers if shared > two else 1)
        return round(two + (four - two) / 2 * (everyone - 2))

    def _candidates(self, texts: int, workers: int) -> float:
        """Number of negatives of a query, as the criterion logs it for random vectors."""
        views = self.batch(texts)["views"]
        vectors = {name: torch.randn(rows.shape[0] * texts, *rows.shape[1:]) for name, rows in self._vectors.items()}
        with self._on_worker(workers=workers):
            layouts = {
                name: self.criterion.layout(count, torch.device("cpu"))
                for name, count in self.criterion.gathered_rows(views).items()
            }
            _, counted, log = self._contrast(vectors, views, layouts)
        return float(log["negatives"] / counted)
