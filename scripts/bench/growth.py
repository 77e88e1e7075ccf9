"""Seconds and memory of a start, an epoch of batches and a checkpoint by size of the data, compared with stock masked_lm.

    python scripts/bench/growth.py [--lines 100000 1000000] [--epoch-lines 20000] [--repeats 5] [--json FILE]

For each number of lines a data folder is written (fairseq's mmap format, 12 tokens per line on average, a blank line after
every 20 lines). A separate process then does the steps of fairseq-train with a model of one layer:

- ``start`` builds the task, loads the training set, and makes the list of batches and the first batch;
- ``epoch`` makes every batch of the epoch in this process. With --epoch-lines it stops after that number of lines and scales
  the seconds to the whole epoch; the row says so. The model is not updated, because an update costs the same for any data;
- ``checkpoint`` saves;
- ``data worker`` is the memory of one loader process after --epoch-lines, or 20,000, that it does not share.

Memory is RssAnon of /proc/self/status. It leaves out the pages of the mapped data, which the system drops when memory is
short. It is read every 2 ms; the figure of a step is the peak minus the value before the step. glibc is set to return freed
memory to the system (ALLOCATOR). When fairseq opens a data set, it reads the file in portions of 100 MiB; these are part of
the peak of ``start`` for every recipe. Growth compares the largest with the smallest number of lines: time per line (1 is
linear), and the bytes that a further line adds to the memory in use at the end of the epoch.
"""

import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import active_children
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from results import finish, flags, row

VOCABULARY, EOS = 8_000, 2
FIRST_ID = 4  # after <s>, <pad>, </s>, <unk>
LINES_OF_DOCUMENT, CHUNK_LINES = 20, 1 << 18
LINEAR = "<= 1.2"
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(1 << 16)}
STEPS = ("start", "epoch", "checkpoint")
SIZES = "--encoder-layers 1 --encoder-embed-dim 16 --encoder-ffn-embed-dim 16 --encoder-attention-heads 2"
COMMON = f"--sample-break-mode eos --cpu --optimizer adam --lr 1e-5 --max-update 1000000 --num-workers 0 {SIZES}"
OURS = "--task clear_lm --arch clear_roberta --projection-dim 16 --projection-hidden-dim 16 --criterion clear_nt_xent"
RECIPES = {
    "clear": f"{OURS} --augment del-span+reorder",
    "masked_lm": "--task masked_lm --arch roberta --criterion masked_lm",
}


def main() -> None:
    """Print the table; --json also writes it to a file."""
    arguments = flags(__doc__, lines=[100_000, 1_000_000], epoch_lines=20_000, batch_size=64, keep=Path, child=[str])
    if arguments.child:
        child(Path(arguments.child[0]), arguments.child[1], arguments.batch_size, arguments.epoch_lines)
        return
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in RECIPES}
    with tempfile.TemporaryDirectory(dir=arguments.keep) as folder:
        for lines in arguments.lines:
            data = Path(folder) / f"{lines}"
            write_data(data, lines)
            runs = [{name: measure(data, name, arguments) for name in RECIPES} for _ in range(arguments.repeats)]
            for name in RECIPES:
                medians = {key: median(run[name][key] for run in runs) for key in runs[0][name]}
                found[name].append(medians | {"lines": lines})
                print(name, found[name][-1], flush=True)
    finish(table(found), arguments, figures=found)


def write_data(folder: Path, lines: int) -> None:
    """Write a data folder of random lines, as fairseq's binarizer would, but quickly."""
    folder.mkdir(parents=True)
    (folder / "dict.txt").write_text("".join(f"w{number} 1\n" for number in range(VOCABULARY)))
    rng = np.random.default_rng(1)
    sizes = rng.integers(5, 21, lines, dtype=np.int32)
    sizes[LINES_OF_DOCUMENT :: LINES_OF_DOCUMENT + 1] = 1  # </s> alone
    with open(folder / "train.bin", "wb") as file:
        for first in range(0, lines, CHUNK_LINES):
            part = sizes[first : first + CHUNK_LINES]
            ids = rng.integers(FIRST_ID, FIRST_ID + VOCABULARY, int(part.sum()), dtype=np.uint16)
            ids[np.cumsum(part) - 1] = EOS
            file.write(ids.tobytes())
    with open(folder / "train.idx", "wb") as file:  # ids of type uint16
        file.write(b"MMIDIDX\x00\x00" + struct.pack("<QBQ", 1, 8, lines) + sizes.tobytes())
        file.write(((np.cumsum(sizes, dtype=np.int64) - sizes) * 2).tobytes())


def table(found: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Rows with seconds and memory of each number of lines, then rows with the growth from the smallest to the largest."""
    rows = []
    for index, mine in enumerate(found["clear"]):
        stock = found["masked_lm"][index]
        for step in STEPS:
            share = mine["epoch_share"]
            note = f" (from {share:.0%} of it)" if step == "epoch" and share < 1 else ""
            rows.append(
                row(
                    f"{step}, {mine['lines']:,} lines{note}", "s", mine[f"{step}_seconds"],
                    baseline="masked_lm", theirs=stock[f"{step}_seconds"],
                    mib=mine[f"{step}_mib"], their_mib=stock[f"{step}_mib"],
                )
            )  # fmt: skip
        private, stock_private = mine["worker_mib"], stock["worker_mib"]
        rows.append(
            row(f"data worker, {mine['lines']:,} lines", "MiB", private, baseline="masked_lm", theirs=stock_private)
        )
    if len(found["clear"]) < 2:
        return rows
    ends = {name: (sizes[0], sizes[-1]) for name, sizes in found.items()}
    for step in STEPS:
        per, what = ("lines", "growth of time per line") if step != "checkpoint" else ("", "growth of time")
        mine, stock = (
            after[f"{step}_seconds"] / before[f"{step}_seconds"] / (after[per] / before[per] if per else 1)
            for before, after in ends.values()
        )
        rows.append(row(f"{step}, {what}", "times", mine, baseline="masked_lm", theirs=stock, aim=LINEAR))
    mine, stock = (bytes_a_line(*ends[name]) for name in RECIPES)
    rows.append(
        row(
            "memory that a further line adds", "bytes", mine, baseline="masked_lm", theirs=stock,
            ratio=mine / stock, aim="<= 1.0",
        )
    )  # fmt: skip
    return rows


def bytes_a_line(before: dict[str, Any], after: dict[str, Any]) -> float:
    """Difference of the memory in use at the end of the epoch, divided by the difference of the lines."""
    return (after["held_mib"] - before["held_mib"]) * 2**20 / (after["lines"] - before["lines"])


def measure(data: Path, recipe: str, arguments: argparse.Namespace) -> dict[str, float]:
    """The figures of one run, in a separate process."""
    sizes = ("--batch-size", arguments.batch_size, "--epoch-lines", arguments.epoch_lines)
    command = [sys.executable, "-W", "ignore", "-m", "growth", "--child", data, recipe, *sizes]
    environment = {**os.environ, **ALLOCATOR, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=environment)
    if done.returncode:
        sys.exit(f"{recipe}, {data}: failed\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def child(data: Path, recipe: str, batch_size: int, epoch_lines: int) -> None:
    """Run the steps once; print their figures as JSON in the last line."""
    from fairseq import checkpoint_utils, options, tasks
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from fairseq.trainer import Trainer

    import fairseq_clear

    fairseq_clear.register()

    places = ("--batch-size", str(batch_size), "--save-dir", str(data / "checkpoints"))
    args = options.parse_args_and_arch(
        options.get_training_parser(), [str(data), *COMMON.split(), *places, *RECIPES[recipe].split()]
    )
    cfg = convert_namespace_to_omegaconf(args)
    figures: dict[str, float] = {}
    held = anonymous_mib()
    with step(figures, "start"):
        task: Any = tasks.setup_task(cfg.task)
        model = task.build_model(cfg.model)
        trainer: Any = Trainer(cfg, task, model, task.build_criterion(cfg.criterion))
        batches = trainer.get_train_iterator(epoch=1)
        itr = batches.next_epoch_itr(shuffle=True)
        first = next(itr)
    with step(figures, "epoch"):
        read = read_lines(itr, epoch_lines)
    items = len(task.dataset("train"))
    figures["epoch_seconds"] *= items / max(read, 1)  # for all items, the first batch of ``start`` included
    # fairseq leaves out the remainder of a last batch whose size is not a multiple of eight
    figures["epoch_share"] = (read + len(first["id"])) / items if itr.has_next() else 1.0
    figures["held_mib"] = anonymous_mib() - held
    with step(figures, "checkpoint"):
        checkpoint_utils.save_checkpoint(cfg.checkpoint, trainer, batches, None)
    cfg.dataset.num_workers = 1
    batches = trainer.get_train_iterator(epoch=2, load_dataset=False, disable_iterator_cache=True)
    itr = batches.next_epoch_itr(shuffle=True)
    read_lines(itr, epoch_lines or 20_000)
    figures["worker_mib"] = private_mib(active_children()[0].pid)
    print(json.dumps(figures))


def read_lines(itr: Any, most: int) -> int:
    """Read batches of ``most`` lines, or of all if it is 0; return the number of lines."""
    read = 0
    for batch in itr:
        read += len(batch["id"])
        if most and read >= most:
            break
    return read


@contextmanager
def step(figures: dict[str, float], name: str) -> Iterator[None]:
    """Record the seconds of the block inside, and the peak memory that it adds."""
    found = anonymous_mib()
    peak, done = [found], threading.Event()

    def watch() -> None:
        while not done.wait(0.002):
            peak[0] = max(peak[0], anonymous_mib())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    began = time.perf_counter()
    yield
    figures[f"{name}_seconds"] = time.perf_counter() - began
    done.set()
    watcher.join()
    figures[f"{name}_mib"] = max(peak[0], anonymous_mib()) - found


def anonymous_mib() -> float:
    """Anonymous memory of this process in MiB, without the pages of files."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("RssAnon:")[2].split()[0]) / 1024


def private_mib(process: int | None) -> float:
    """Memory in MiB that the process has written and shares with no other."""
    rollup = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="ascii")
    return int(rollup.partition("Private_Dirty:")[2].split()[0]) / 1024


if __name__ == "__main__":
    main()
