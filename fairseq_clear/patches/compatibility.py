"""Adapts fairseq 0.12 to current versions of torch and numpy, with safe loading of checkpoints."""

import argparse
import ast
import atexit
import queue
import sys
import threading
import time
import warnings
from contextlib import suppress
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import numpy
import torch

from fairseq_clear.patches import original

SECONDS_TO_STOP_LOADING = 30.0
LONGEST = 100_000  # items of a repeated list


def allow_checkpoint_classes() -> None:
    """Let ``torch.load`` of torch >= 2.6 read fairseq's checkpoints with ``weights_only`` left on.

    Removes: ``UnpicklingError: Weights only load failed ... Unsupported global: GLOBAL argparse.Namespace`` (checkpoints of
    fairseq < 0.10, such as roberta.base), and the same error for numpy scalars, which saved meters contain. All of these
    classes only hold data: loading them runs no code of the file.
    """
    import_scalar: Any = numpy.float64(0).__reduce__()[0]  # numpy.core.multiarray.scalar, moved in numpy 2
    kinds = [type(numpy.dtype(kind)) for kind in (numpy.float64, numpy.float32, numpy.int64, numpy.int32)]
    torch.serialization.add_safe_globals([argparse.Namespace, import_scalar, numpy.dtype, *kinds])


def restore_numpy_compat() -> None:
    """Add to numpy 2 the one missing name that TokenBlockDataset uses at run time.

    Removes: ``AttributeError: module 'numpy' has no attribute 'compat'`` with ``--sample-break-mode eos``.
    """
    if int(numpy.__version__.split(".")[0]) >= 2:
        numpy.compat = SimpleNamespace(long=int)  # type: ignore[attr-defined]  # noqa: NPY201


def forget_tpu(args: Any) -> None:
    """Reset ``--tpu``, which ``--bf16`` implies (fairseq/options.py), if torch_xla is not installed.

    Removes: ``ModuleNotFoundError: No module named 'torch_xla'`` for ``fairseq-train --bf16``. fairseq sets the flag after
    parsing, just before it calls the architecture function; therefore our architectures call this function.
    """
    if getattr(args, "bf16", False) and getattr(args, "tpu", False) and find_spec("torch_xla") is None:
        args.tpu = False


def any_device_ddp(module: torch.nn.Module, device_ids: Any = None, output_device: Any = None, **options: Any) -> Any:
    """Replaces ``DistributedDataParallel``: without device ids if the model is on the CPU.

    Removes: ``ValueError: DistributedDataParallel device_ids and output_device arguments only work with ...`` for several
    CPU workers under fairseq's default ``--ddp-backend pytorch_ddp``.
    """
    if next(module.parameters()).device.type == "cpu":
        device_ids = output_device = None
    stock = original("fairseq.models.distributed_fairseq_model:DistributedDataParallel")
    return stock(module, device_ids=device_ids, output_device=output_device, **options)


def broadcast_object(obj: Any, src_rank: int, group: Any, dist_device: Any) -> Any:
    """Replaces ``_broadcast_object_slow`` by torch's own broadcast of objects.

    Removes: ``UnpicklingError: Weights only load failed`` on every worker but the first when a run resumes on torch >= 2.6:
    fairseq loads the object that its own first worker sent like an untrusted file.
    """
    objects = [obj]
    torch.distributed.broadcast_object_list(objects, src=src_rank, group=group, device=dist_device)
    return objects[0]


def evaluate_settings_as_literals() -> None:
    """Replace ``eval`` in fairseq's modules, so that settings of a checkpoint are only evaluated as literals.

    Removes: code execution by a checkpoint that holds only weights and strings. fairseq passes some strings to ``eval``:
    ``encoder_xformers_att_config`` when any RoBERTa is built, ``encoder_layers`` of a convolutional translator.
    """
    import fairseq.models  # noqa: F401  (imports all models)

    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "fairseq":
            vars(module)["eval"] = evaluate_literal


def evaluate_literal(text: str) -> Any:
    """Evaluate a literal, or sums and multiples of lists, such as ``[(512, 3)] + [(512, 2)] * 4``.

    Raises:
        TypeError: ``text`` is not a string, as for ``eval``.
        ValueError: any other expression, such as a name or a call, or a list that is too long.
    """
    if not isinstance(text, str):
        raise TypeError(f"expected a string, not {type(text).__name__}")
    try:
        return _value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError, TypeError, ValueError):
        raise ValueError(f"{text[:80]!r} is not a Python literal") from None


def _value(node: ast.expr) -> Any:
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Add | ast.Mult):
        return ast.literal_eval(node)
    left, right = _value(node.left), _value(node.right)
    if isinstance(node.op, ast.Add):
        return left + right
    if len(left) * right > LONGEST:
        raise ValueError
    return left * right


def stop_loading_at_exit() -> None:
    """End the threads that read batches ahead before the interpreter ends.

    Removes: ``terminate called without an active exception``, exit code 134 of a successful run. fairseq never stops these
    threads. If one of them is inside torch while Python shuts down, its C++ stack cannot be unwound, which now and then aborts
    the process after the last checkpoint, so a Slurm job counts as failed.
    """
    atexit.register(_stop_loading)


def _stop_loading() -> None:
    iterators = sys.modules.get("fairseq.data.iterators")
    if iterators is None:
        return
    deadline = time.monotonic() + SECONDS_TO_STOP_LOADING
    for thread in threading.enumerate():
        if not isinstance(thread, iterators.BackgroundConsumer):
            continue
        thread._max_len = 0  # so that it stops after the current batch
        while thread.is_alive() and time.monotonic() < deadline:
            with suppress(queue.Empty):
                thread._queue.get_nowait()  # it may be blocked because its queue is full
            thread.join(0.01)


def silence_known_warnings() -> None:
    """Hide warnings about fairseq's own code, which a user cannot fix."""
    for message in (r".*torch\.cuda\.amp\.(autocast|GradScaler).*", r".*broadcast_buffers.*"):
        warnings.filterwarnings("ignore", message=message, category=FutureWarning)
    for message in (
        r".*'pin_memory' argument is set as true.*",
        r"hydra\.experimental\.",  # this and the others: fairseq is written for hydra 1.0 and runs on hydra 1.3
        r"\s*The version_base parameter",
        r"In '.*': Usage of deprecated keyword",
        r"\s*'.*' is validated against ConfigStore",
        r"\s*The strict flag in the compose API",
    ):
        warnings.filterwarnings("ignore", message=message, category=UserWarning)
