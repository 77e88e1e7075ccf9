"""Lets fairseq 0.12 run on current torch and numpy, with safe loading of checkpoints."""

import argparse
import atexit
import logging
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

from fairseq_clear.patches.replacing import original

SECONDS_TO_STOP_LOADING = 30.0


def allow_checkpoint_classes() -> None:
    """Let ``torch.load`` of torch >= 2.6 read fairseq's checkpoints with ``weights_only`` left on.

    Removes: ``UnpicklingError: Weights only load failed ... Unsupported global: GLOBAL argparse.Namespace`` (checkpoints of
    fairseq < 0.10, roberta.base among them) and the same for the numpy scalars that the saved meters hold. All are plain
    containers of data: loading them runs no code of the file's.
    """
    import_scalar = numpy.float64(0).__reduce__()[0]  # numpy.core.multiarray.scalar, moved in numpy 2
    kinds = [type(numpy.dtype(kind)) for kind in (numpy.float64, numpy.float32, numpy.int64, numpy.int32)]
    torch.serialization.add_safe_globals([argparse.Namespace, import_scalar, numpy.dtype, *kinds])


def restore_numpy_compat() -> None:
    """Give numpy 2 the one name that TokenBlockDataset reads at run time.

    Removes: ``AttributeError: module 'numpy' has no attribute 'compat'`` with ``--sample-break-mode eos``.
    """
    if int(numpy.__version__.split(".")[0]) >= 2:
        numpy.compat = SimpleNamespace(long=int)  # type: ignore[attr-defined]  # noqa: NPY201


def forget_tpu(args: Any) -> None:
    """Undo ``--bf16`` implying ``--tpu`` (fairseq/options.py) where torch_xla is absent.

    Removes: ``ModuleNotFoundError: No module named 'torch_xla'`` for ``fairseq-train --bf16``. fairseq sets the flag after
    parsing and calls the architecture function right after that, hence our architectures call this.
    """
    if getattr(args, "bf16", False) and getattr(args, "tpu", False) and find_spec("torch_xla") is None:
        args.tpu = False


def any_device_ddp(module: torch.nn.Module, device_ids: Any = None, output_device: Any = None, **options: Any) -> Any:
    """``DistributedDataParallel``, without a device where the model is on the CPU.

    Removes: ``ValueError: DistributedDataParallel device_ids and output_device arguments only work with ...`` for several
    CPU workers under fairseq's default ``--ddp-backend pytorch_ddp``.
    """
    if next(module.parameters()).device.type == "cpu":
        device_ids = output_device = None
    stock = original("fairseq.models.distributed_fairseq_model:DistributedDataParallel")
    return stock(module, device_ids=device_ids, output_device=output_device, **options)


def broadcast_object(obj: Any, src_rank: int, group: Any, dist_device: Any) -> Any:
    """``_broadcast_object_slow`` by torch's own broadcast of objects.

    Removes: ``UnpicklingError: Weights only load failed`` on every worker but the first when a run resumes on torch >= 2.6:
    fairseq reads what its own worker sent as if it were a file from elsewhere.
    """
    handed = [obj]
    torch.distributed.broadcast_object_list(handed, src=src_rank, group=group, device=dist_device)
    return handed[0]


def evaluate_settings_as_literals() -> None:
    """Let fairseq evaluate the settings of a checkpoint as literals.

    Removes: code run by a checkpoint that holds nothing but weights and strings, since fairseq gives some of these to
    ``eval``: ``encoder_xformers_att_config`` when any RoBERTa is built, ``encoder_layers`` of a convolutional translator.
    """
    import fairseq.models  # noqa: F401  (all that can be built)

    from fairseq_clear.patches.literals import evaluate_literal

    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "fairseq":
            vars(module)["eval"] = evaluate_literal


def stop_loading_at_exit() -> None:
    """End the threads that read batches ahead before the interpreter ends.

    Removes: ``terminate called without an active exception``, exit code 134 of a run that ended well. fairseq never stops
    them; one that is inside torch while Python shuts down is unwound through C++ that may not be, which aborts the process
    after the last checkpoint, now and then, and ends a Slurm job as failed.
    """
    atexit.unregister(_stop_loading)
    atexit.register(_stop_loading)


def _stop_loading() -> None:
    host = sys.modules.get("fairseq.data.iterators")
    if host is None:
        return
    deadline = time.monotonic() + SECONDS_TO_STOP_LOADING
    for thread in threading.enumerate():
        if not isinstance(thread, host.BackgroundConsumer):
            continue
        thread._max_len = 0  # the batch at hand is its last
        while thread.is_alive() and time.monotonic() < deadline:
            with suppress(queue.Empty):
                thread._queue.get_nowait()  # it may be waiting for room
            thread.join(0.01)


def silence_known_warnings() -> None:
    """Hide warnings about fairseq's own code, which a user cannot fix."""
    warnings.filterwarnings("ignore", message=r".*torch\.cuda\.amp\.autocast.*", category=FutureWarning)
    warnings.filterwarnings("ignore", message=r".*'pin_memory' argument is set as true.*", category=UserWarning)
    warnings.filterwarnings("ignore", message=r".*broadcast_buffers.*", category=FutureWarning)
    # fairseq speaks to hydra 1.0, hydra 1.3 answers
    for message in (
        r"hydra\.experimental\.",
        r"\s*The version_base parameter",
        r"In '.*': Usage of deprecated keyword",
    ):
        warnings.filterwarnings("ignore", message=message, category=UserWarning)
    for message in (r"\s*'.*' is validated against ConfigStore", r"\s*The strict flag in the compose API"):
        warnings.filterwarnings("ignore", message=message, category=UserWarning)
    # "Please install tensorboardX", said at every import by a task that is not ours
    logging.getLogger("fairseq.tasks.text_to_speech").setLevel(logging.WARNING)
