"""Several devices of one machine for ``fairseq-clear embed``: one process per device, each of which embeds one part."""

import multiprocessing
import tempfile
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, wait
from pathlib import Path
from typing import Any

from fairseq_clear.cli.flags import quiet_logs
from fairseq_clear.errors import UserError, one_line
from fairseq_clear.evaluation.embedding_files import BLOCK, EmbedReport
from fairseq_clear.evaluation.embedding_parts import Shard, join_parts
from fairseq_clear.evaluation.sentence_encoder import choose_device
from fairseq_clear.output_folder import signals_raise
from fairseq_clear.preparation.workers import worker_pool

POLL_SECONDS = 0.5


def read_devices(text: str) -> list[str]:
    """Read the value of ``--devices``; UserError if a device does not exist.

    Args:
        text: names of devices, separated by commas, or N for the first N CUDA devices.
    """
    names = [f"cuda:{index}" for index in range(int(text))] if text.isdecimal() else text.split(",")
    if not names:
        raise UserError(f"--devices {text}: give the number of CUDA devices, or names such as cuda:0,cuda:1 or cpu,cpu")
    for name in names:
        try:
            choose_device(name)
        except UserError as error:
            raise UserError(f"--devices {text}: {error}") from None
    return names


def embed_on_devices(
    embed: Callable[..., object],
    output: Path,
    devices: list[str],
    sentences: int,
    *,
    overwrite: bool,
    on_batch: Callable[[int], object],
) -> EmbedReport:
    """Embed one part on each device, and join the parts.

    The parts are written to a hidden folder next to the output, which is removed, also after a failure.

    Args:
        embed: writes one part, called in a worker process as embed(output, shard, device, on_batch).
        output: the file to write.
        devices: names of devices; a device may occur several times.
        sentences: number of texts of all parts.
        overwrite: replace an existing output.
        on_batch: called with numbers of texts that are done.

    Raises:
        UserError: a worker failed.
    """
    devices = devices[: -(-sentences // BLOCK)]
    done = multiprocessing.get_context("spawn").Value("q", 0)  # a forked process cannot use CUDA
    remedy = "rerun with fewer --devices or a smaller --batch-size"
    with signals_raise(), tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}.parts.") as folder:
        named, shown = Path(folder) / output.name, 0
        with worker_pool(len(devices), _start_worker, (done, devices), method="spawn", remedy=remedy) as pool:
            waiting = {
                pool.submit(_embed_part, embed, named, Shard(number, len(devices)), device)
                for number, device in enumerate(devices, 1)
            }
            while waiting:
                ready, waiting = wait(waiting, POLL_SECONDS, FIRST_EXCEPTION)
                on_batch(done.value - shown)
                shown = done.value
                for future in ready:
                    future.result()
        return join_parts(output, len(devices), overwrite=overwrite, parts_of=named)


_done: Any  # in a worker process: number of texts done by all workers


def _start_worker(done: Any, devices: list[str]) -> None:
    global _done
    import torch

    _done = done
    torch.set_num_threads(max(1, torch.get_num_threads() // len(devices)))


def _embed_part(embed: Callable[..., object], output: Path, shard: Shard, device: str) -> None:
    def add(texts: int) -> None:
        with _done.get_lock():
            _done.value += texts

    try:
        with quiet_logs():
            embed(output, shard, device, add)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"--devices: the worker of {device} failed ({one_line(error)}); nothing was written") from None
