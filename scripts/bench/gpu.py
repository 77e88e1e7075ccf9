"""Benchmarks of the base encoder on a GPU: tokens per second, MFU, memory, loading, precisions, Longformer. gpu.sh runs them.

    python scripts/bench/gpu.py [--parts throughput recipe] [--device cuda] [--peak-tflops 989] [--json FILE]

- throughput: whole updates of masked_lm and CLEAR with base (12 x 768) at 512 tokens in bf16; CLEAR also compiled, and in
  chunks. MFU is the FLOPs of an update, divided by its seconds and by the peak. torch counts the FLOPs of forward and backward,
  fused attention included, without what chunks compute again.
- alternatives: these updates with fairseq's adam in place of clear_adamw, and with fairseq's GELU in place of torch's; CLEAR
  on texts of different lengths, with and without cuDNN's attention.
- longformer: base with --attention-window 512, compared with full attention, at 4,096 tokens.
- recipe: clear/base_256gpu as fairseq-hydra-train runs it, with two processes that load data: share of the time that it waits
  for them, MFU, and memory, compared with what ``fairseq-clear plan`` estimates.
- numerics: fairseq-train with every criterion in every precision, in a process group of one worker with the device's backend
  (NCCL, or gloo on a CPU): greatest relative difference of the losses from those in float32.

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
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from statistics import median
from unittest import mock

import torch
from fairseq.modules.gelu import gelu
from results import compare, finish, flags, in_turn, row
from steps import build, make_text, steps
from torch.utils.flop_counter import FlopCounterMode

from fairseq_clear.plan import GIB, Recipe, make_plan, read_recipe

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
        __doc__, device="cuda", arch="clear_roberta_base", length=512, long=4096, window=512, texts=64, sequences=32,
        updates=20, repeats=7, parts=[*PARTS, "numerics"], peak_tflops=989.0,
        criterions=list(CRITERIONS), precisions=list(PRECISIONS),
    )  # fmt: skip
    if arguments.device not in ("cuda", "cpu"):
        raise SystemExit(f"gpu: --device {arguments.device}: give cuda or cpu; CUDA_VISIBLE_DEVICES chooses the GPU")
    is_gpu = arguments.device == "cuda"
    if is_gpu and not torch.cuda.is_available():
        raise SystemExit("gpu: torch sees no GPU here; give --device cpu to try the benchmark without one")
    name = torch.cuda.get_device_name() if is_gpu else "CPU"
    table, losses = [], {}
    with tempfile.TemporaryDirectory() as parent:
        for part, measure in PARTS.items():
            (folder := Path(parent) / part).mkdir()
            table += measure(arguments, folder, is_gpu) if part in arguments.parts else []
            finish(table, arguments, name=name, torch=torch.__version__)  # kept if the next part fails
        if "numerics" in arguments.parts:
            losses = numerics(arguments, Path(parent), is_gpu)
    for criterion, of in losses.items():
        for precision in [one for one in of if one != "fp32"]:
            pairs = zip(of[precision], of["fp32"], strict=True)
            worst = max(abs(mine - exact) / exact for mine, exact in pairs)
            table.append(row(f"{criterion}, {precision} compared with fp32", "relative difference of the loss", worst))
    finish(table, arguments, name=name, torch=torch.__version__, losses=losses)


def flags_of(arguments: argparse.Namespace, length: int, is_gpu: bool) -> tuple[str, ...]:
    """The flags of every training step."""
    size = ("--arch", arguments.arch, "--max-positions", str(length), "--tokens-per-sample", str(length))
    return (*size, "--projection-layers", "2", *(("--bf16", "--optimizer", "clear_adamw") if is_gpu else ()))


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


def throughput(arguments: argparse.Namespace, folder: Path, is_gpu: bool) -> list[dict[str, object]]:
    """Rows of masked_lm and of CLEAR, whose update reads each text three times."""
    data = make_text(folder, 400, (arguments.length - 2, arguments.length - 2))
    common = flags_of(arguments, arguments.length, is_gpu)
    clear, chunk = ("--criterion", "clear_nt_xent", "--augment", "none"), str(64 * arguments.length)
    runs = {
        "masked_lm": ("--criterion", "masked_lm"),
        "CLEAR": clear,
        "CLEAR, compiled": (*clear, "--compile"),
        f"CLEAR, chunks of {chunk} tokens": (*clear, "--encode-chunk-size", chunk),
    }
    rates, tables, tokens, flops = {}, [], 3 * arguments.texts * arguments.length, 0
    for name, chosen in runs.items():
        trainer, dataset = build(data, *common, *chosen, is_cpu=not is_gpu)
        step = steps(trainer, dataset, arguments.texts * (3 if name == "masked_lm" else 1), made=arguments.repeats + 2)
        step(0)
        # the others have CLEAR's: compiled code is not counted, and chunks run twice
        if name in ("masked_lm", "CLEAR"):
            with FlopCounterMode(display=False) as counter:
                step(1)
            flops = counter.get_total_flops()
        (seconds,) = in_turn([finished(step, is_gpu)], arguments.repeats)
        share = flops / median(seconds) / (arguments.peak_tflops * 1e12)
        rates[name] = tokens / median(seconds)
        mib = peak_mib(step, is_gpu)
        tables.append(row(f"{arguments.arch}, {arguments.length} tokens, {name}", "tokens/s", rates[name], mib=mib))
        tables.append(row(f"{arguments.arch}, {name}: MFU", "of the peak", share, aim=">= 0.45" if is_gpu else ""))
        print(*tables[-2:], sep="\n", flush=True)
        del trainer, dataset, step
    for name, baseline, aim in (("CLEAR", "masked_lm", ">= 0.95"), ("CLEAR, compiled", "CLEAR", "")):
        ratio = rates[name] / rates[baseline]
        tables.append(
            row(name, "tokens/s", rates[name], baseline=baseline, theirs=rates[baseline], ratio=ratio, aim=aim)
        )
    return tables


def alternatives(arguments: argparse.Namespace, folder: Path, is_gpu: bool) -> list[dict[str, object]]:
    """Rows of updates with fairseq's optimizer, with fairseq's GELU, and with cuDNN's attention of padded batches."""
    (folder / "padded").mkdir()
    data = make_text(folder, 400, (arguments.length - 2, arguments.length - 2))
    padded = make_text(folder / "padded", 400, (arguments.length // 5, arguments.length - 2))
    common = flags_of(arguments, arguments.length, is_gpu)
    mlm, clear = ("--criterion", "masked_lm"), ("--criterion", "clear_nt_xent", "--augment", "none")
    rows = []
    for what, baseline, chosen, other, texts, reads in (
        ("masked_lm, clear_adamw", "adam", (*mlm, "--optimizer", "clear_adamw"), "adam", 48, 1),
        ("CLEAR, torch's GELU", "fairseq's GELU", clear, "clear_adamw", arguments.texts, 3),
    ):
        texts = min(texts, 3 * arguments.texts)
        ours = build(data, *common, *chosen, is_cpu=not is_gpu)
        theirs = build(data, *common, *chosen, "--optimizer", other, is_cpu=not is_gpu)
        for module in theirs[0].get_model().modules() if other == "clear_adamw" else ():
            if getattr(module, "activation_fn", None) is torch.nn.functional.gelu:
                module.activation_fn = gelu
        sides = [finished(steps(*side, texts, made=arguments.repeats + 2), is_gpu) for side in (ours, theirs)]
        amount = texts * reads * arguments.length
        what = f"{what}, {amount:,} tokens"
        rows.append(compare(what, *sides, arguments.repeats, baseline=baseline, unit="tokens/s", amount=amount))
    trainer, dataset = build(padded, *common, *clear, is_cpu=not is_gpu)
    ours = finished(steps(trainer, dataset, arguments.texts, made=arguments.repeats + 2), is_gpu)

    def with_cudnn(number: int) -> None:
        with mock.patch("fairseq_clear.models.encoder_stack.attention_for", lambda is_padded: nullcontext()):
            ours(number)

    what, other = "CLEAR, texts of different lengths", "with cuDNN's attention"
    rows.append(
        compare(what, ours, with_cudnn, arguments.repeats, baseline=other, unit="texts/s", amount=arguments.texts)
    )
    return rows


def longformer(arguments: argparse.Namespace, folder: Path, is_gpu: bool) -> list[dict[str, object]]:
    """The row of an attention window, compared with full attention."""
    data = make_text(folder, 40, (arguments.long - 2, arguments.long - 2))
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


def recipe(arguments: argparse.Namespace, folder: Path, is_gpu: bool) -> list[dict[str, object]]:
    """Rows of CLEAR's recipe for 256 GPUs on one, with what ``plan`` estimates."""
    words = arguments.length - 2
    data = make_text(folder, 50 * arguments.sequences, (words, words), vocabulary=50_000)
    overrides = [
        *(f"model._name={arguments.arch}", f"model.max_positions={arguments.length}"),
        *(f"task.tokens_per_sample={arguments.length}", f"dataset.batch_size={arguments.sequences}"),
        *(() if is_gpu else ("++common.cpu=true", "common.fp16=false")),
    ]
    cost = make_plan(Recipe(read_recipe("clear/base_256gpu", overrides, str(data))), 1, 1_000 * GIB, 1.0)
    more = {
        "common.user_dir": PROJECT / "fairseq_clear", "common.log_format": "json", "common.log_interval": 5,
        "task.data": data, "optimization.max_update": 3 * arguments.updates, "dataset.num_workers": 2,
        "dataset.disable_validation": "true", "checkpoint.no_save": "true", "checkpoint.save_dir": folder,
        "hydra.run.dir": folder,
    }  # fmt: skip
    tool = "from fairseq_cli.hydra_train import cli_main; cli_main()"
    config = ("--config-dir", str(PROJECT / "examples/clear/config"), "--config-name", "base_256gpu")
    logged = _logged([tool, *config, *overrides, *(f"{name}={value}" for name, value in more.items())], "recipe")
    later = logged[1:] or logged  # after the start
    waits, rates = ([float(line[name]) for line in later] for name in ("data_wait", "ups"))
    what = "clear/base_256gpu, 2 loaders"
    share = cost.flops * median(rates) / (arguments.peak_tflops * 1e12)
    rows = [
        row(what, "texts/s", arguments.sequences * median(rates)),  # views are shorter, by what is deleted
        row(f"{what}: MFU", "of the peak", share, aim=">= 0.45" if is_gpu else ""),
        row(f"{what}: wait for data", "of the time", median(waits), aim="<= 0.02" if is_gpu else ""),
    ]
    if is_gpu:
        total = torch.cuda.get_device_properties(0).total_memory / GIB
        used, planned = total - min(float(line["gb_free"]) for line in logged), (cost.state + cost.activations) / GIB
        rows.append(
            row(f"{what}: memory by plan", "GiB", planned, baseline="measured", theirs=used, ratio=planned / used)
        )
    print(*rows, sep="\n", flush=True)
    return rows


PARTS = {"throughput": throughput, "alternatives": alternatives, "longformer": longformer, "recipe": recipe}


def numerics(arguments: argparse.Namespace, folder: Path, is_gpu: bool) -> dict[str, dict[str, list[float]]]:
    """Losses of the first updates of each criterion in each precision, with fairseq-train and one worker."""
    data = make_text(folder, 400, (arguments.length - 2, arguments.length - 2))
    found: dict[str, dict[str, list[float]]] = {}
    with ThreadPoolExecutor(len(arguments.precisions) if is_gpu else 1) as pool:
        for criterion in arguments.criterions:
            train = partial(_train, arguments, data, criterion, is_gpu=is_gpu)
            found[criterion] = dict(zip(arguments.precisions, pool.map(train, arguments.precisions), strict=True))
            print({criterion: found[criterion]}, flush=True)
    return found


def _train(arguments: argparse.Namespace, data: Path, criterion: str, precision: str, *, is_gpu: bool) -> list[float]:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = [
        *("from fairseq_cli.train import cli_main; cli_main()", str(data)),
        *("--user-dir", str(PROJECT / "fairseq_clear")),
        *("--task", "clear_lm", "--sample-break-mode", "eos", "--criterion", criterion, *CRITERIONS[criterion]),
        *(*flags_of(arguments, arguments.length, False), *NO_DROPOUT, *PRECISIONS[precision]),
        *("--optimizer", "adam", "--lr", "1e-4", "--clip-norm", "1", "--batch-size", str(max(arguments.texts // 8, 2))),
        *("--max-update", str(arguments.updates), "--log-interval", "1", "--log-format", "json", "--no-save"),
        *("--save-dir", str(data / f"{criterion}-{precision}")),
        *("--disable-validation", "--num-workers", "0", "--distributed-world-size", "1", "--distributed-no-spawn"),
        *("--distributed-init-method", f"tcp://localhost:{port}", "--distributed-rank", "0"),
        *(() if is_gpu else ("--cpu", "--fp16-no-flatten-grads", "--distributed-backend", "gloo")),
    ]
    return [float(line["loss"]) for line in _logged(command, f"{criterion}-{precision}")]


def _logged(command: list[str], name: str) -> list[dict[str, str]]:
    """What Python's ``-c`` with this code and arguments logs while it trains."""
    path = os.pathsep.join(filter(None, (str(PROJECT), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", *command], capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": path},
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{name}: {(done.stdout + done.stderr)[-3_000:]}")
    lines = [
        line.partition("train_inner")[2] for line in (done.stdout + done.stderr).splitlines() if "train_inner" in line
    ]
    return [json.loads(line[line.index("{") :]) for line in lines]


if __name__ == "__main__":
    main()
