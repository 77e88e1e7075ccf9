"""Work that several processes share, block by block, and a folder of finished blocks from which a killed job resumes.

torchrun, or srun with ``scripts/slurm/launch.sh``, starts the same command once per device. Each worker takes every n-th block
of the n workers. A block is computed alone, so the result has the same bytes for any number of workers.
"""

import atexit
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from fairseq_clear.errors import UserError
from fairseq_clear.files import read_json, write_errors, write_json, write_whole
from fairseq_clear.processes import locked

FINISHED = "[0-9]*.json"  # files of finished blocks
T = TypeVar("T")
R = TypeVar("R")
WAIT = timedelta(days=30)  # for the slowest worker; the end of a worker is noticed at once


class WorkerLost(UserError):
    """Another worker of the job has ended before its work was done."""


@dataclass(frozen=True)
class Workers:
    """The workers of a job; this process is number ``rank``."""

    rank: int = 0
    size: int = 1
    group: Any = None
    store: Any = None

    def gather(self, value: T) -> list[T]:
        """Return the values of all workers, by rank. A collective. Raises WorkerLost if a worker has ended."""
        if self.size == 1:
            return [value]
        from torch.distributed import all_gather_object

        values: list[Any] = [None] * self.size
        try:
            all_gather_object(values, value, group=self.group)
        except RuntimeError:  # gloo: the connection was closed
            raise WorkerLost("a worker of this job has ended; rerun, finished blocks of an output are kept") from None
        return values

    def is_first_report(self, error: BaseException) -> bool:
        """Whether this worker prints an error: no other worker has the same one, or reported why a worker is lost."""
        try:
            if self.store is None:
                return True
            is_first = int(self.store.add("reports", 1)) == 1
            return is_first if isinstance(error, WorkerLost | SystemExit) else self.store.add(str(error), 1) == 1
        except RuntimeError:  # worker 0 kept the store, and has ended
            return isinstance(error, WorkerLost)


@cache
def join_workers() -> Workers:
    """Connect to the workers that torchrun or ``scripts/slurm/launch.sh`` started; UserError if one did not start."""
    size = os.environ.get("WORLD_SIZE", "1")
    if size == "1":
        return Workers()
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # torch prints twenty lines when worker 0 has ended
    import torch.distributed as dist
    from torch.distributed.rendezvous import rendezvous

    try:
        store, rank, count = next(iter(rendezvous("env://")))
        dist.init_process_group("gloo", store=store, rank=rank, world_size=count)
        atexit.register(dist.destroy_process_group)  # its threads would now and then abort the process at its end
    except (RuntimeError, ValueError) as error:
        raise UserError(f"WORLD_SIZE={size}: the workers did not connect ({error}); use torchrun or unset it") from None
    return Workers(rank, count, dist.new_group(timeout=WAIT, backend="gloo"), store)


def gather_blocks(blocks: Sequence[T], compute: Callable[[T], R], workers: Workers) -> Iterator[R]:
    """Yield ``compute(block)`` of each block, in order, on every worker. A collective: all workers must read all results."""
    for first in range(0, len(blocks), workers.size):
        own = blocks[first + workers.rank : first + workers.rank + 1]
        for results in workers.gather([compute(block) for block in own]):
            yield from results


def take_blocks(items: Iterable[T], size: int, numbers: Sequence[int]) -> Iterator[tuple[int, list[T]]]:
    """Yield number and items of the blocks with these ascending numbers; each block but the last has ``size`` items."""
    left, done = iter(items), 0
    for number in numbers:
        yield number, list(islice(left, (number - done) * size, (number - done + 1) * size))
        done = number + 1


@dataclass(frozen=True)
class Work:
    """The blocks of an output. ``folder`` holds the finished ones; ``own`` lists the others that this worker computes."""

    folder: Path
    blocks: int
    own: Sequence[int]
    workers: Workers

    def finish(self, block: int, content: Any) -> None:
        """Store the result of a block, a JSON value, on disk; OSError if the disk is full."""
        write_json(self.folder / f"{block}.json", content)

    def results(self) -> Iterator[Any]:
        """Yield the stored results of all blocks, in order; UserError if a file has been damaged."""
        for block in range(self.blocks):
            yield read_json(self.folder / f"{block}.json", "remove it and rerun")


def partial_folder_of(output: Path) -> Path:
    """The folder of the finished blocks of an output."""
    return output.with_name(f"{output.name}.partial")


@contextmanager
def open_work(
    output: Path, settings: Mapping[str, Any], blocks: int, workers: Workers, *, overwrite: bool = False
) -> Iterator[Work]:
    """Open the work on an output, which worker 0 writes in the ``with`` block, and remove OUTPUT.partial at the end.

    ``settings`` are JSON values that determine the output: blocks that were finished with the same settings are kept, and
    ``overwrite`` discards blocks of other settings. Several machines must share the file system.

    Raises:
        UserError: another job writes the output, blocks of other settings exist, or the disk is full.
    """
    folder, unfinished = partial_folder_of(output), list[int]()
    try:
        with ExitStack() as stack:
            if workers.rank == 0:
                folder.mkdir(exist_ok=True)
                busy = f"--output {output}: another process is writing it; wait, or give another name"
                stack.enter_context(locked(folder / "lock", busy))
                _check_settings(folder, json.loads(json.dumps(settings)), overwrite)
                stack.push(partial(_remove, folder))
                unfinished = [block for block in range(blocks) if not (folder / f"{block}.json").exists()]
            unfinished = workers.gather(unfinished)[0]
            yield Work(folder, blocks, unfinished[workers.rank :: workers.size], workers)
    except OSError as error:
        what = f"{error.filename or folder}: {error.strerror or error}"
        kept = f"finished blocks are kept in {folder}: " if any(folder.glob(FINISHED)) else ""
        raise UserError(f"{what}; {kept}fix this and rerun") from error


@dataclass(frozen=True)
class BlockFiles:
    """Finished blocks of vectors in OUTPUT.partial, for a command whose ``output`` is not the vectors.

    ``describe_origin`` returns a JSON value of what determines the vectors, without the texts, such as hashes of the encoder's
    files. It is called for the first block.
    """

    output: Path
    describe_origin: Callable[[], Any]

    @cached_property
    def origin(self) -> Any:
        """What determines the vectors."""
        return self.describe_origin()

    def get(self, block: Any, compute: Callable[[], R]) -> R:
        """Return the vectors of a block, a NumPy array: from its file, or else computed and written to it.

        ``block`` is a JSON value of the texts and of what else differs between blocks.

        Raises:
            UserError: a file has been damaged, or the disk is full.
        """
        import numpy as np

        name = hashlib.sha256(json.dumps([self.origin, block]).encode()).hexdigest()
        path = partial_folder_of(self.output) / f"vectors-{name}.npy"
        if path.exists():
            try:
                return np.load(path, allow_pickle=False)
            except (OSError, ValueError):
                raise UserError(f"{path}: was damaged after it was written; remove it and rerun") from None
        vectors = compute()
        with write_errors(path.parent, "finished blocks"):
            path.parent.mkdir(exist_ok=True)
            with write_whole(path) as stream:
                np.save(stream, np.asarray(vectors), allow_pickle=False)
        return vectors


def remove_vectors(output: Path) -> None:
    """Remove the files of BlockFiles of an output, and OUTPUT.partial if it is empty then."""
    folder = partial_folder_of(output)
    for path in folder.glob("*vectors-*"):
        path.unlink()
    with suppress(OSError):
        folder.rmdir()


def _remove(folder: Path, error: type[BaseException] | None, *_: object) -> None:
    """Remove the folder, unless an error leaves finished blocks from which to resume."""
    if error is None or not any(folder.glob(FINISHED)):
        shutil.rmtree(folder, ignore_errors=True)


def _check_settings(folder: Path, wanted: dict[str, Any], overwrite: bool) -> None:
    """Record the settings of new work; UserError if there are blocks of other settings and ``overwrite`` is False."""
    path, finished = folder / "settings.json", list(folder.glob(FINISHED))
    begun = read_json(path, f"remove {folder} and rerun", dict) if path.is_file() else {}
    if finished and begun != wanted and not overwrite:
        changed = ", ".join(name for name in begun | wanted if begun.get(name) != wanted.get(name))
        raise UserError(f"{folder}: was started with another {changed}; give the same, or start again with --overwrite")
    if begun != wanted:
        for block in finished:
            block.unlink()
        write_json(path, wanted)
