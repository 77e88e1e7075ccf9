"""What lets fairseq 0.12 run on today's torch and numpy; each function names the failure that it removes."""

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

from fairseq_clear.patches.precision import apply_precision

SECONDS_TO_STOP_LOADING = 30.0


def apply() -> None:
    """Apply every fix below; calling it again changes nothing."""
    silence_known_warnings()
    allow_checkpoint_classes()
    restore_numpy_compat()
    apply_precision()
    let_ddp_train_on_cpu()
    let_workers_resume()
    stop_loading_at_exit()
    evaluate_settings_as_literals()
    end_well()


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


def let_ddp_train_on_cpu() -> None:
    """Leave the device out where the model is on the CPU.

    Removes: ``ValueError: DistributedDataParallel device_ids and output_device arguments only work with ...`` for several
    CPU workers under fairseq's default ``--ddp-backend pytorch_ddp``.
    """
    from fairseq.models import distributed_fairseq_model as host

    stock = host.DistributedDataParallel
    if getattr(stock, "_clear_any_device", False):
        return

    def wrap(module: torch.nn.Module, device_ids: Any = None, output_device: Any = None, **options: Any) -> Any:
        if next(module.parameters()).device.type == "cpu":
            device_ids = output_device = None
        return stock(module, device_ids=device_ids, output_device=output_device, **options)

    wrap._clear_any_device = True  # type: ignore[attr-defined]
    host.DistributedDataParallel = wrap


def let_workers_resume() -> None:
    """Let the first worker hand to the others what it read from a checkpoint.

    Removes: ``UnpicklingError: Weights only load failed`` in every worker but the first of a run that resumes on torch >=
    2.6: fairseq reads what came from a worker of its own as if it were a file of a stranger's.
    """
    from fairseq.distributed import utils as host

    def hand(obj: Any, src_rank: int, group: Any, dist_device: Any) -> Any:
        handed = [obj]
        torch.distributed.broadcast_object_list(handed, src=src_rank, group=group, device=dist_device)
        return handed[0]

    host._broadcast_object_slow = hand


def evaluate_settings_as_literals() -> None:
    """Let fairseq evaluate the settings of a checkpoint as literals.

    Removes: code run by a checkpoint that holds nothing but weights and strings, since fairseq gives some of these to
    ``eval``: ``encoder_xformers_att_config`` when any RoBERTa is built, ``encoder_layers`` of a convolutional translator.
    """
    import fairseq.models  # noqa: F401  (all that can be built)

    from fairseq_clear.literals import evaluate_literal

    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "fairseq":
            vars(module)["eval"] = evaluate_literal


def end_well() -> None:
    """See ``checkpoint_files`` and ``endings``: torn checkpoints, workers that wait for ever, NaN."""
    from fairseq_clear import checkpoint_files, endings

    checkpoint_files.install()
    endings.install()


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
    """Keep out of every log what fairseq says of its own code and no user can act on; before fairseq is imported."""
    warnings.filterwarnings("ignore", message=r".*torch\.cuda\.amp\.autocast.*", category=FutureWarning)
    warnings.filterwarnings("ignore", message=r".*'pin_memory' argument is set as true.*", category=UserWarning)
    # "Please install tensorboardX", said at every import by a task that is not ours
    logging.getLogger("fairseq.tasks.text_to_speech").setLevel(logging.WARNING)
