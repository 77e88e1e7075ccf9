"""Runs the demonstration: pretrain with and without CLEAR on the documentation of the installed packages, and compare.

All numbers of the table are measured in this run. ``make demo-scratch`` calls this script.
"""

import argparse
import json
import logging
import os
import platform
import re
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from corpus import PROJECT, Split, commit, documents, split, write_text
from report import draw, print_table
from scores import Questions, Scores, choose_candidates, score, tfidf_vectors
from tqdm import tqdm

from fairseq_clear import SentenceEncoder, __version__
from fairseq_clear.lifecycle import Needs
from fairseq_clear.tasks import ClearLMConfig, ClearLMTask

TOKENS_PER_SAMPLE = 128
BATCH = 32
WARMUP = 40
# Short pretraining from scratch learns with mean pooling but hardly with [CLS]. With 70 % deleted, views stay hard.
COMMON = (
    *("--user-dir", str(PROJECT / "fairseq_clear"), "--task", "clear_lm", "--arch", "clear_roberta_tiny"),
    *("--sample-break-mode", "eos", "--tokens-per-sample", str(TOKENS_PER_SAMPLE), "--pooling", "mean", "--cpu"),
    *("--optimizer", "adam", "--adam-betas", "(0.9, 0.98)", "--adam-eps", "1e-6", "--weight-decay", "0.01"),
    *("--lr", "1e-3", "--lr-scheduler", "polynomial_decay", "--warmup-updates", str(WARMUP), "--clip-norm", "1.0"),
    *("--batch-size", str(BATCH), "--log-format", "json", "--log-interval", "10", "--no-epoch-checkpoints"),
    *("--no-last-checkpoints", "--max-epoch", "1000", "--disable-validation", "--total-num-update", "100000"),
)
ARMS = {
    "MLM": ("--criterion", "masked_lm"),
    "CLEAR": ("--criterion", "clear_nt_xent", "--augment", "del-word"),
}


def main() -> None:
    """Collect the text, prepare it, train both arms with each seed, score, report."""
    arguments = parse()
    logging.getLogger().setLevel(logging.WARNING)  # the log of each run is in its train.log
    folder = Path(arguments.output)
    folder.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    print("reading the documentation of the installed packages ...", flush=True)
    parts = split(documents())
    print(
        f"{len(parts.train):,} docstrings to train on, {len(parts.held_out):,} of held-out modules, "
        f"{len(parts.topics)} packages as topics ({time.monotonic() - begin:.0f} s)"
    )
    data = prepare(parts, folder)
    questions = ask(parts)
    rows: dict[str, list[Scores]] = {
        "TF-IDF": [score(tfidf_vectors(questions, [d.text for d in parts.train]), questions)]
    }
    runs = []
    for seed in arguments.seeds:
        for arm, flags in {"untrained": ARMS["MLM"], **ARMS}.items():
            tokens = 0 if arm == "untrained" else arguments.tokens
            run = train(data, folder / f"seed{seed}" / arm.lower(), flags, seed, tokens)
            encoder = SentenceEncoder.from_pretrained(run["checkpoint"], data)
            rows.setdefault(arm, []).append(score(encoder.encode(questions.texts(), batch_size=64), questions))
            runs.append({"arm": arm, "seed": seed, **run})
    report = {
        "rows": {name: [asdict(scores) for scores in found] for name, found in rows.items()},
        "runs": runs,
        "documents": {"train": len(parts.train), "held_out": len(parts.held_out), "topics": parts.topics},
        "counts": {"topic_test": len(questions.topic_test), "retrieval": len(questions.retrieval)},
        "seeds": arguments.seeds,
        "seconds": round(time.monotonic() - begin, 1),
        "machine": {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()},
        "versions": {"fairseq_clear": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "commit": commit(),
    }
    (folder / "demo.json").write_text(json.dumps(report, indent=1) + "\n")
    draw(report, folder / "demo.png")
    print_table(report)
    print(f"finished in {report['seconds']:.0f} s; wrote {folder / 'demo.json'} and {folder / 'demo.png'}")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default="demo", help="folder for data, checkpoints, table and plot (default: demo)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="one run of each arm per seed (default: 1)")
    parser.add_argument(
        "--tokens", type=int, default=1_500_000, help="tokens that each arm's encoder reads (default: 1,500,000)"
    )
    arguments = parser.parse_args()
    if len(set(arguments.seeds)) < len(arguments.seeds):
        parser.error("--seeds: give different seeds")
    return arguments


def prepare(parts: Split, folder: Path) -> Path:
    """Make the data folder with ``fairseq-clear prepare``."""
    text, data = folder / "train.jsonl", folder / "data-bin"
    write_text(parts.train, text)
    command = [sys.executable, "-m", "fairseq_clear.cli", "prepare", str(text), "--dest", str(data), "--overwrite"]
    subprocess.run([*command, "--vocab-size", "8000", "--workers", "2"], check=True, cwd=PROJECT)
    return data


def ask(parts: Split) -> Questions:
    """Choose the documents of both tasks: the training texts of topics are from training modules, all others are held out."""
    return Questions(
        parts.labelled(parts.train, most=300, seed=1),
        parts.labelled(parts.held_out, most=150, seed=2),
        choose_candidates(parts.held_out, seed=3),
    )


def train(data: Path, folder: Path, flags: tuple[str, ...], seed: int, tokens: int) -> dict:
    """Run fairseq-train for about ``tokens`` tokens; with 0, save the initial weights."""
    updates = max(1, round(tokens / tokens_per_update(data, flags, seed))) if tokens else 1
    command = [sys.executable, "-c", "from fairseq_cli.train import cli_main; cli_main()", str(data), *COMMON, *flags]
    command += ["--seed", str(seed), "--max-update", str(updates), "--total-num-update", str(max(updates, WARMUP + 1))]
    command += ["--save-interval-updates", str(updates), "--save-dir", str(folder)]
    if not tokens:
        command += ["--lr", "1e-30", "--weight-decay", "0"]
    curve, read, seconds = [], 0.0, 0.0
    name = folder.name
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    folder.mkdir(parents=True, exist_ok=True)
    with (
        (folder / "train.log").open("w") as log,
        subprocess.Popen(
            command, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        ) as process,
        tqdm(total=updates, desc=f"{name}, seed {seed}", unit="update", disable=not tokens) as bar,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            log.write(line)
            if match := re.search(r"\| train_inner \| (\{.*\})", line):
                numbers = {key: float(value) for key, value in json.loads(match[1]).items()}
                done = int(numbers["num_updates"])
                read += numbers["wpb"] * (done - bar.n)
                seconds = numbers["wall"]
                curve.append({**numbers, "tokens": read})
                bar.update(done - bar.n)
    if process.returncode:
        sys.exit(
            f"demo: fairseq-train failed; {folder / 'train.log'} ends with:\n"
            + (folder / "train.log").read_text()[-3000:]
        )
    checkpoints = sorted(folder.glob("checkpoint*.pt"), key=lambda path: path.stat().st_mtime)
    return {
        "checkpoint": str(checkpoints[-1]),
        "updates": updates if tokens else 0,
        "tokens": round(read) if tokens else 0,
        "tokens_per_second": round(read / seconds) if tokens and seconds else 0,
        "curve": curve if tokens else [],
    }


def tokens_per_update(data: Path, flags: tuple[str, ...], seed: int) -> float:
    """Tokens that the encoder reads in one update. The arms differ, because CLEAR also reads the views."""
    augment = flags[flags.index("--augment") + 1] if "--augment" in flags else "none"
    settings = {"data": str(data), "sample_break_mode": "eos", "tokens_per_sample": TOKENS_PER_SAMPLE}
    task = ClearLMTask.setup_task(ClearLMConfig(**settings, augment=augment, seed=seed))
    task.needs = Needs(views="--augment" in flags)
    task.load_dataset("train")
    dataset = task.dataset("train")
    sample = np.random.default_rng(0).choice(len(dataset), size=min(2_000, len(dataset)), replace=False)
    read = [dataset.collater([dataset[int(index)]])["ntokens"] for index in sample]
    return BATCH * float(np.mean(read))


if __name__ == "__main__":
    main()
