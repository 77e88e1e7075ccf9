"""A trainer on generated text, and the memory of a step."""

import random
import subprocess
import sys
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.trainer import Trainer
from torch.profiler import ProfilerActivity, profile

import fairseq_clear

fairseq_clear.register()

COMMON = (
    *("--task", "clear_lm", "--sample-break-mode", "eos", "--optimizer", "adam", "--lr", "1e-5"),
    *("--batch-size", "16", "--max-update", "1000000", "--augment", "none"),
)

# The encoder of most benchmarks, with MiniLM's size.
ENCODER = (
    *("--arch", "clear_roberta", "--encoder-layers", "6", "--encoder-embed-dim", "384"),
    *("--encoder-ffn-embed-dim", "1536", "--encoder-attention-heads", "12"),
)


def make_text(folder: Path, sentences: int, words: tuple[int, int], vocabulary: int = 8_000) -> Path:
    """Make a data folder of random sentences, drawn by Zipf's law; ``words`` are the least and the greatest length."""
    rng = random.Random(1)
    weights = [*accumulate(1 / (rank + 1) for rank in range(vocabulary))]
    text = folder / "train.txt"
    with open(text, "w", encoding="utf-8") as out:
        for _ in range(sentences):
            chosen = rng.choices(range(vocabulary), cum_weights=weights, k=rng.randint(*words))
            out.write(" ".join(f"w{number}" for number in chosen) + "\n")
    tool = "from fairseq_cli.preprocess import cli_main; cli_main()"
    command = [sys.executable, "-c", tool, "--only-source", "--trainpref", str(text), "--destdir", str(folder / "bin")]
    subprocess.run(command, check=True, capture_output=True)
    return folder / "bin"


def build(data: Path, *flags: str, is_cpu: bool = True, workers: int = 1) -> tuple[Trainer, Any]:
    """A trainer of fairseq and its training set; with several ``workers``, in a process group that exists already."""
    device = ("--cpu",) if is_cpu else ()
    args = options.parse_args_and_arch(options.get_training_parser(), [str(data), *COMMON, *device, *flags])
    cfg = convert_namespace_to_omegaconf(args)
    cfg.distributed_training.distributed_world_size = workers
    task = tasks.setup_task(cfg.task)
    torch.manual_seed(1)
    model, criterion = task.build_model(cfg.model), task.build_criterion(cfg.criterion)
    task.load_dataset("train")
    return Trainer(cfg, task, model, criterion), task.dataset("train")


def steps(trainer: Trainer, dataset: Any, batch: int, made: int = 0) -> Callable[[int], None]:
    """A function that runs update number n on ``batch`` texts; the first ``made`` batches are made before the updates."""

    def load(number: int) -> Any:
        return dataset.collater(dataset.__getitems__([(number * batch + k) % len(dataset) for k in range(batch)]))

    loaded = [load(number) for number in range(made)]

    def step(number: int) -> None:
        trainer.train_step([loaded[number] if number < made else load(number)])

    return step


def held_mib(step: Callable[[int], object]) -> float:
    """Peak memory in MiB that one step adds: the running sum of what PyTorch allocates and frees on the CPU."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step(0)
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    return max(accumulate(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns()))) / 2**20
