"""Counts the operations, bytes and collectives of a step that runs on meta tensors, which have no values."""

import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.nn.functional as F
from fairseq.distributed import utils as distributed_utils
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from fairseq_clear import patches
from fairseq_clear.modules import chunking

patches.apply()

aten = torch.ops.aten
INDEXING = (aten.index.Tensor, aten.index_put_.default, aten.index_put.default, aten._index_put_impl_.default)
IN_PLACE = (aten._fused_adam_, aten._fused_adamw_)  # not implemented for meta tensors
# FlopCounterMode does not count products that are added in place, nor the attention kernel of CPUs.
FLOPS: dict[Any, Callable[..., int]] = {
    **flop_registry,
    aten.addmm_: flop_registry[aten.addmm],
    aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, out_val, **__: sdpa_flop_count(
        q.shape, k.shape, v.shape
    ),
    aten._scaled_dot_product_flash_attention_for_cpu_backward: lambda grad, q, k, v, *_, out_val, **__: (
        sdpa_backward_flop_count(grad.shape, q.shape, k.shape, v.shape)
    ),
}
# Functions of an encoder that torch.autocast computes in float32.
FLOAT32 = ("layer_norm", "softmax", "log_softmax", "nll_loss", "cross_entropy", "normalize")
# Functions of fairseq_clear.distributed -> what they exchange.
CALLERS = {
    "agree_on_counts": "row counts",
    "all_reduce_sum": "counts of queries and masked tokens",
    "forward": "vectors",
    "backward": "vectors' gradients",
}


class Meter(TorchDispatchMode):
    """Runs every operation on meta tensors, which have shapes but no values, and counts operations and live bytes.

    Token ids and masks are real CPU tensors, because shapes depend on them. An operation runs on meta tensors if one of its
    inputs is a meta tensor. A value read from a meta tensor is 1.

    Args:
        before: another Meter, whose tensors are not counted again.

    Attributes:
        flops: operations by phase. The backward pass is counted in the phase that recorded its graph, and recomputation as
            ``recomputed``.
        held: live bytes by phase, of all tensors made under this mode.
        peak, at_peak: the largest sum of ``held``, and ``held`` at that moment.
    """

    def __init__(self, before: "Meter | None" = None) -> None:
        super().__init__()
        self.phase = "other"
        self.flops: Counter[str] = Counter()
        self.held: Counter[str] = Counter()
        self.total = self.peak = 0
        self.at_peak: dict[str, int] = {}
        self._ends: list[tuple[int, str]] = []  # first sequence number of the autograd nodes after a change of phase
        self._storages: dict[int, Any] = dict(before._storages) if before is not None else {}

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Count operations inside the block for this phase; of nested phases, the inner one counts."""
        before, self.phase = self.phase, phase
        self._ends.append((torch.autograd._get_sequence_nr(), before))
        try:
            yield
        finally:
            self._ends.append((torch.autograd._get_sequence_nr(), phase))
            self.phase = before

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run ``func`` and count its operations and results."""
        kwargs = kwargs or {}
        is_meta = any(isinstance(leaf, Tensor) and leaf.is_meta for leaf in _flat((*args, *kwargs.values())))
        if is_meta and func in (aten._local_scalar_dense.default, aten.equal.default):
            return 1.0 if args[0].is_floating_point() else 1
        if is_meta and func._overloadpacket in IN_PLACE:
            return None
        if is_meta and func in INDEXING:
            args = (args[0], [index for one in args[1] for index in _as_numbers(one)], *args[2:])
        result, flops = _on_meta(func, args, kwargs) if is_meta else (func(*args, **kwargs), 0)
        node = torch._C._current_autograd_node()
        if flops:
            self.flops[self._phase_of(node)] += flops
        for leaf in _flat((result,)):
            if isinstance(leaf, Tensor):
                self.hold(leaf, self.phase if node is None or torch.is_grad_enabled() else "backward")
        return result

    def _phase_of(self, node: Any) -> str:
        """The phase that recorded the graph of a node; without a node (in a forward pass), the current phase."""
        if node is None:
            return self.phase
        if torch.is_grad_enabled():  # a checkpointed part is computed again
            return "recomputed"
        number = node._sequence_nr()
        return next((phase for end, phase in self._ends if number < end), self.phase)

    def ignore(self, tensors: Iterable[Tensor]) -> None:
        """Do not count these tensors."""
        self._storages |= {tensor.untyped_storage()._cdata: None for tensor in tensors}

    def hold(self, tensor: Tensor, phase: str) -> None:
        """Count the storage of a tensor until it is freed."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._storages:
            return

        def release(_: Any) -> None:
            del self._storages[key]
            self.held[phase] -= size
            self.total -= size

        self._storages[key] = weakref.ref(storage, release)
        self.held[phase] += size
        self.total += size
        if self.total > self.peak:
            self.peak, self.at_peak = self.total, dict(self.held)


def _as_numbers(index: Tensor | None) -> tuple[Tensor | None, ...]:
    """Convert a mask to the positions that it selects."""
    if index is None or index.is_meta or index.dtype != torch.bool:
        return (index,)
    return index.nonzero().unbind(1)


def _flat(values: Iterable[Any]) -> Iterator[Any]:
    """Yield the values, and those in lists and tuples; an operation takes and returns no deeper structures."""
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from value
        else:
            yield value


def _each(convert: Callable[[Any], Any], value: Any) -> Any:
    """Apply a function to a value, or to those in a list or tuple."""
    return type(value)(map(convert, value)) if type(value) in (list, tuple) else convert(value)


# Cache for repeated layers: operation and shapes -> shapes of the results, and FLOPs
_KNOWN: dict[Any, tuple[Any, int]] = {}


def _on_meta(func: Any, args: Any, kwargs: Any) -> tuple[Any, int]:
    """Run an operation on meta tensors; return its result and its FLOPs."""
    aliases = func._schema.is_mutable or any(value.alias_info is not None for value in func._schema.returns)
    key = None
    if not aliases and func is not aten._unsafe_view.default:
        given = (*args, *kwargs, *kwargs.values())
        key = (
            func,
            *(tuple(map(_signature, one)) if isinstance(one, (list, tuple)) else _signature(one) for one in given),
        )
    if key in _KNOWN:
        made, flops = _KNOWN[key]
        return _each(_made, made), flops
    args = [_each(_without_values, value) for value in args]
    kwargs = {name: _each(_without_values, value) for name, value in kwargs.items()}
    if kwargs.get("device") is not None:
        kwargs["device"] = torch.device("meta")
    result = func(*args, **kwargs)
    count = FLOPS.get(func._overloadpacket)
    flops = count(*args, **kwargs, out_val=result) if count is not None else 0
    if key is not None:
        _KNOWN[key] = _each(_shape, result), flops
    return result, flops


class _Shape(NamedTuple):
    size: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype


def _signature(value: Any) -> Any:
    # with the type, because 1, 1.0 and True are equal
    return _shape(value) if isinstance(value, Tensor) else (type(value), value)


def _shape(value: Any) -> Any:
    return _Shape(value.shape, value.stride(), value.dtype) if isinstance(value, Tensor) else value


def _made(value: Any) -> Any:
    if not isinstance(value, _Shape):
        return value
    return torch.empty_strided(value.size, value.stride, dtype=value.dtype, device="meta")


def _without_values(value: Any) -> Any:
    if not isinstance(value, Tensor) or value.is_meta:
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


def _kernels(*, is_cpu: bool, amp: bool) -> dict[str, Any]:
    """Replacements of functions of torch.nn.functional that use on meta tensors the kernels of a CPU or GPU, and autocast.

    A CPU stores dropout masks in the precision of their tensor, and has no fused attention with dropout. A GPU stores one byte
    per element of a mask.
    """
    rounded: dict[Tensor, Tensor] = {}

    def half(tensor: Tensor) -> Tensor:
        if tensor.dtype != torch.float32:
            return tensor
        if not tensor.is_leaf:
            return tensor.half()
        if tensor not in rounded:  # once per weight, as autocast does
            rounded[tensor] = tensor.half()
        return rounded[tensor]

    def single(tensor: Tensor) -> Tensor:
        return tensor.float() if tensor.dtype == torch.float16 else tensor

    def casting(function: Callable[..., Tensor], cast: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
        def call(*args: Any, **kwargs: Any) -> Tensor:
            if torch.is_autocast_enabled("cpu"):
                args, kwargs = tree_map_only(Tensor, cast, (args, kwargs))
            return function(*args, **kwargs)

        return call

    def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:  # noqa: A002
        return torch.native_dropout(input, p, True)[0] if training and p else input

    def attention(
        query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0, *_: Any
    ) -> Tensor:
        if not is_cpu:
            return aten._scaled_dot_product_efficient_attention(query, key, value, attn_mask, True, dropout_p)[0]
        if dropout_p:
            return aten._scaled_dot_product_attention_math(query, key, value, attn_mask, dropout_p)[0]
        return aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, False, attn_mask=attn_mask)[0]

    functions = {"scaled_dot_product_attention": attention, **({} if is_cpu else {"dropout": dropout})}
    if amp and not is_cpu:
        functions |= {"scaled_dot_product_attention": casting(attention, half), "linear": casting(F.linear, half)}
        functions |= {name: casting(getattr(F, name), single) for name in FLOAT32}
    return functions


@dataclass(frozen=True)
class Collective:
    """One kind of exchange between workers.

    Attributes:
        what: name of the exchanged data.
        operation: all_reduce, all_gather or reduce_scatter.
        size: bytes that a worker contributes; for a reduce-scatter, the bytes of its input.
        times: number of exchanges in one update.
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


@contextmanager
def on_worker(
    *, workers: int = 1, backend: str = "nccl", is_cpu: bool = False, amp: bool = False
) -> Iterator[list[Collective]]:
    """Run a step on meta tensors inside the block as the first of ``workers`` workers, which all hold the same number of rows.

    Nothing is sent. The kernels are those of a GPU, or of a CPU with ``is_cpu``; ``amp`` turns autocast on.

    Yields:
        A list to which each exchange of this worker is appended.
    """
    exchanged: list[Collective] = []

    def record(operation: str, given: Tensor) -> None:
        caller = sys._getframe(2).f_code.co_name
        what = CALLERS.get(caller, caller)
        what = "identities" if what == "vectors" and given.dtype == torch.int64 else what
        exchanged.append(Collective(what, operation, given.nbytes))

    def all_reduce(tensor: Tensor, *_: Any, **__: Any) -> None:
        record("all_reduce", tensor)

    def reduce_scatter(output: Tensor, tensor: Tensor, *_: Any, **__: Any) -> None:
        record("reduce_scatter", tensor)

    def all_gather(parts: list[Tensor], tensor: Tensor, *_: Any, **__: Any) -> None:
        record("all_gather", tensor)
        # hashes are large, counts are small; the texts of other workers differ
        for rank, part in enumerate([] if tensor.is_meta else parts):
            part.copy_(tensor + rank * (tensor.abs() > 2**32) if tensor.dtype == torch.int64 else tensor)

    def all_reduce_dict(data: dict[str, Any], *_: Any, **__: Any) -> dict[str, Any]:
        tensors = sum(isinstance(value, Tensor) for value in data.values())
        exchanged.append(Collective("logged numbers", "all_reduce", 8 * tensors))
        exchanged.append(Collective("logged counts", "all_reduce", 8 * (len(data) - tensors)))
        return data

    busy = chunking.ENOUGH_CELLS["cpu" if is_cpu else "cuda"]
    with ExitStack() as stack:
        for module, replaced in (
            (dist, {"all_reduce": all_reduce, "all_gather": all_gather, "reduce_scatter_tensor": reduce_scatter}),
            (dist, {"is_initialized": lambda: workers > 1, "get_world_size": lambda *_: workers}),
            (dist, {"get_rank": lambda *_: 0, "get_backend": lambda *_: backend}),
            (distributed_utils, {"get_data_parallel_group": lambda: None, "all_reduce_dict": all_reduce_dict}),
            (F, _kernels(is_cpu=is_cpu, amp=amp)),
            (torch, {"autocast": lambda _, **options: torch.amp.autocast("cpu", **options)}),
        ):
            stack.enter_context(patch.multiple(module, **replaced))
        stack.enter_context(patch.dict(chunking.ENOUGH_CELLS, cpu=busy))
        stack.enter_context(torch.amp.autocast("cpu", enabled=amp and not is_cpu))
        yield exchanged
