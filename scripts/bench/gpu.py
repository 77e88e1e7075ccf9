"""Benchmarks of the base encoder on a GPU: tokens per second, MFU, memory, precisions, NCCL, Longformer. gpu.sh runs them.

    python scripts/bench/gpu.py [--device cuda] [--peak-tflops 989] [--json FILE]

1. Whole updates of masked_lm and CLEAR with base (12 x 768) at 512 tokens in bf16. MFU is the FLOPs of an update, divided by
   its seconds and by the peak. torch counts the FLOPs of forward and backward, fused attention included; nothing is recomputed.
2. fairseq-train with every criterion in every precision, in a process group of one worker with the device's backend (NCCL, or
   gloo on a CPU): greatest relative difference of the losses from those in float32.
3. base with --attention-window 512, compared with full attention, at 4,096 tokens.

``--device cpu --arch clear_roberta_tiny --length 64 --long 128`` runs all parts without a GPU.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from unittest import mock

import torch
from results import compare, finish, flags, in_turn, row
from steps import build, make_text, steps
from torch.utils.flop_counter import FlopCounterMode

PROJECT = Path(__file__).resolve().parents[2]
CRITERIONS: dict[str, tuple[str, ...]] = {
    "masked_lm": (),
    "clear_nt_xent": ("--augment", "del-span"),
    "clear_moco": ("--augment", "del-span", "--queue-size", "256", "--mlm-weight", "1"),
    "clear_self_guided": ("--regularizer-weight", "0.1"),
}
PRECISIONS: dict[str, tuple[str, ...]] = {
    "fp32": (),
    "bf16": ("--bf16",),
    "fp16": ("--fp16", "--fp16-init-scale", "128"),
}
NO_DROPOUT = ("--dropout", "0", "--attention-dropout", "0", "--activation-dropout", "0")


def main() -> None:
    """Print a line of JSON; --json also writes it to a file."""
    arguments = flags(
        __doc__, device="cuda", arch="clear_roberta_base", length=512, long=4096, window=512, texts=16, updates=20,
        repeats=7, peak_tflops=989.0, criterions=list(CRITERIONS), precisions=list(PRECISIONS),
    )  # fmt: skip
    if arguments.device not in ("cuda", "cpu"):
        raise SystemExit(f"gpu: --device {arguments.device}: give cuda or cpu; CUDA_VISIBLE_DEVICES chooses the GPU")
    is_gpu = arguments.device == "cuda"
    if is_gpu and not torch.cuda.is_available():
        raise SystemExit("gpu: torch sees no GPU here; give --device cpu to try the benchmark without one")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "short").mkdir()
        (Path(folder) / "long").mkdir()
        short = make_text(Path(folder) / "short", 400, (arguments.length - 2, arguments.length - 2))
        long = make_text(Path(folder) / "long", 40, (arguments.long - 2, arguments.long - 2))
        name = torch.cuda.get_device_name() if is_gpu else "CPU"
        table = throughput(arguments, short, is_gpu)
        table += longformer(arguments, long, is_gpu)
        finish(table, arguments, name=name, torch=torch.__version__)  # kept if the next part fails
        losses = numerics(arguments, short, is_gpu)
    for name, of in losses.items():
        for precision in of.keys() - {"fp32"}:
            pairs = zip(of[precision], of["fp32"], strict=True)
            worst = max(abs(mine - exact) / exact for mine, exact in pairs)
            table.append(row(f"{name}, {precision} compared with fp32", "relative difference of the loss", worst))
    finish(table, arguments, name=name, torch=torch.__version__, losses=losses)


def flags_of(arguments: argparse.Namespace, length: int, is_gpu: bool) -> tuple[str, ...]:
    """The flags of every training step."""
    size = ("--arch", arguments.arch, "--max-positions", str(length), "--tokens-per-sample", str(length))
    return (*size, "--projection-layers", "2", *(("--bf16",) if is_gpu else ()))


def finished(step: Callable[[int], object], is_gpu: bool) -> Callable[[int], None]:
    """The step, which returns when the device has finished."""

    def call(number: int) -> None:
        step(number)
        if is_gpu:
            torch.cuda.synchronize()

    return call


def peak_mib(step: Callable[[int], object], is_gpu: bool) -> float | None:
    """GPU memory in MiB that one update adds at its peak; None on a CPU."""
    if not is_gpu:
        return None
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    with mock.patch("torch.cuda.reset_peak_memory_stats"):  # Trainer.train_step calls it before it returns
        step(0)
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def throughput(arguments: argparse.Namespace, data: Path, is_gpu: bool) -> list[dict[str, object]]:
    """Rows of masked_lm and of CLEAR, whose update reads each text three times."""
    common = flags_of(arguments, arguments.length, is_gpu)
    runs = (("masked_lm", 3 * arguments.texts, ()), ("clear_nt_xent", arguments.texts, ("--augment", "none")))
    rates, tables = [], []
    for name, texts, recipe in runs:
        trainer, dataset = build(data, *common, "--criterion", name, *recipe, is_cpu=not is_gpu)
        step = steps(trainer, dataset, texts, made=arguments.repeats + 2)
        step(0)
        counter = FlopCounterMode(display=False)
        with counter:
            step(1)
        (seconds,) = in_turn([finished(step, is_gpu)], arguments.repeats)
        tokens = 3 * arguments.texts * arguments.length
        share = counter.get_total_flops() / median(seconds) / (arguments.peak_tflops * 1e12)
        rates.append([tokens / one for one in seconds])
        mib = peak_mib(step, is_gpu)
        tables.append(
            row(f"{arguments.arch}, {arguments.length} tokens, {name}", "tokens/s", median(rates[-1]), mib=mib)
        )
        tables.append(row(f"{arguments.arch}, {name}: MFU", "of the peak", share, aim=">= 0.45" if is_gpu else ""))
        del trainer, dataset, step
    tables.append(
        row(
            "CLEAR step (MLM + 2 views)", "tokens/s", median(rates[1]), baseline="masked_lm", theirs=median(rates[0]),
            ratio=median(rates[1]) / median(rates[0]), aim=">= 0.95",
        )
    )  # fmt: skip
    return tables


def longformer(arguments: argparse.Namespace, data: Path, is_gpu: bool) -> list[dict[str, object]]:
    """The row of an attention window, compared with full attention."""
    common = (*flags_of(arguments, arguments.long, is_gpu), "--criterion", "masked_lm")
    found, memory = [], []
    for window in (arguments.window, 0):
        trainer, dataset = build(data, *common, "--attention-window", str(window), is_cpu=not is_gpu)
        found.append(steps(trainer, dataset, 2))
        found[-1](0)  # makes the state of the optimizer, which is not part of the memory of an update
        memory.append(peak_mib(found[-1], is_gpu))
    what = f"{arguments.arch}, {arguments.long} tokens, window {arguments.window}"
    limited, full = (finished(step, is_gpu) for step in found)
    return [
        compare(
            what, limited, full, arguments.repeats, baseline="full attention", unit="tokens/s", mib=memory,
            amount=2 * arguments.long,
        )
    ]  # fmt: skip


def numerics(arguments: argparse.Namespace, data: Path, is_gpu: bool) -> dict[str, dict[str, list[float]]]:
    """Losses of the first updates of each criterion in each precision, with fairseq-train and one worker."""
    found: dict[str, dict[str, list[float]]] = {}
    for criterion in arguments.criterions:
        for precision in arguments.precisions:
            losses = _train(arguments, data, criterion, precision, is_gpu)
            found.setdefault(criterion, {})[precision] = losses
    return found


def _train(arguments: argparse.Namespace, data: Path, criterion: str, precision: str, is_gpu: bool) -> list[float]:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    tool = "from fairseq_cli.train import cli_main; cli_main()"
    command = [
        *(sys.executable, "-W", "ignore", "-c", tool, str(data), "--user-dir", str(PROJECT / "fairseq_clear")),
        *("--task", "clear_lm", "--sample-break-mode", "eos", "--criterion", criterion, *CRITERIONS[criterion]),
        *(*flags_of(arguments, arguments.length, False), *NO_DROPOUT, *PRECISIONS[precision]),
        *("--optimizer", "adam", "--lr", "1e-4", "--clip-norm", "1", "--batch-size", str(arguments.texts)),
        *("--max-update", str(arguments.updates), "--log-interval", "1", "--log-format", "json", "--no-save"),
        *("--save-dir", str(data / f"{criterion}-{precision}")),
        *("--disable-validation", "--num-workers", "0", "--distributed-world-size", "1", "--distributed-no-spawn"),
        *("--distributed-init-method", f"tcp://localhost:{port}", "--distributed-rank", "0"),
        *(() if is_gpu else ("--cpu", "--fp16-no-flatten-grads", "--distributed-backend", "gloo")),
    ]
    path = os.pathsep.join(filter(None, (str(PROJECT), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path})
    if done.returncode:
        raise SystemExit(f"{criterion}, {precision}: {done.stderr[-2_000:]}")
    lines = [line.partition(" | ")[2] for line in (done.stdout + done.stderr).splitlines() if "train_inner" in line]
    return [float(json.loads(line[line.index("{") :])["loss"]) for line in lines]


if __name__ == "__main__":
    main()
