"""Trains the toy translation models with fairseq's own commands: English to each of two made-up languages and back.

    python examples/cert/translation/train.py --output toy [--languages gerlan sinlan] [--updates 300]

Writes ``toy/text.txt`` and the folders ``toy/english-gerlan``, ``toy/gerlan-english``, ... with a checkpoint and its two
dictionaries. ``fairseq-clear back-translate --forward toy/english-gerlan --backward toy/gerlan-english`` reads these folders.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from languages import SYLLABLES, parallel

SIZE = (
    *("--arch", "transformer", "--encoder-layers", "1", "--decoder-layers", "1"),
    *("--encoder-embed-dim", "64", "--decoder-embed-dim", "64", "--encoder-ffn-embed-dim", "128"),
    *("--decoder-ffn-embed-dim", "128", "--encoder-attention-heads", "4", "--decoder-attention-heads", "4"),
)
# Enough for a vocabulary of 110 words: round trips keep the meaning of nearly every sentence.
TRAINING = (
    *("--task", "translation", "--share-decoder-input-output-embed", "--dropout", "0.0"),
    *("--optimizer", "adam", "--adam-betas", "(0.9, 0.98)"),
    *("--lr", "0.005", "--lr-scheduler", "polynomial_decay", "--warmup-updates", "60", "--clip-norm", "1.0"),
    *("--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.0"),
    *("--cpu", "--disable-validation", "--no-epoch-checkpoints", "--log-format", "simple", "--log-interval", "100"),
    *("--max-source-positions", "64", "--max-target-positions", "64", "--num-workers", "0"),
)


def main() -> None:
    """Generate text, binarize it, train both directions of every pair."""
    arguments = parse_arguments()
    root = Path(arguments.output)
    root.mkdir(parents=True, exist_ok=True)
    for language in arguments.languages:
        pair = ("english", language)
        data = root / f"data-{language}"
        data.mkdir(exist_ok=True)
        write_text(pair, data, arguments.sentences)
        binarize(pair, data)
        for source, target in (pair, pair[::-1]):
            train(source, target, data, root / f"{source}-{target}", arguments)
    text = [english for english, _ in parallel(arguments.lines, seed=7, languages=("english", "gerlan"))]
    (root / "text.txt").write_text("\n".join(text) + "\n")


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", required=True, help="folder for text, data and models")
    parser.add_argument(
        "--languages",
        nargs="+",
        default=list(SYLLABLES),
        choices=list(SYLLABLES),
        help="pivot languages (default: both)",
    )
    parser.add_argument("--sentences", type=int, default=8_000, help="pairs to train on (default: %(default)s)")
    parser.add_argument("--updates", type=int, default=300, help="updates of each model (default: %(default)s)")
    parser.add_argument("--max-tokens", default="2000", help="tokens of a batch (default: %(default)s)")
    parser.add_argument("--arch", help="an architecture of fairseq instead of 1 + 1 layers x 64")
    parser.add_argument("--lines", type=int, default=500, help="unseen lines of text.txt (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the training (default: %(default)s)")
    return parser.parse_args()


def write_text(pair: tuple[str, str], data: Path, sentences: int) -> None:
    """Write sentence pairs to ``text.LANGUAGE``."""
    rows = parallel(sentences, seed=1, languages=pair)
    for column, language in enumerate(pair):
        (data / f"text.{language}").write_text("\n".join(row[column] for row in rows) + "\n")


def binarize(pair: tuple[str, str], data: Path) -> None:
    """Run ``fairseq-preprocess``."""
    command = ["--source-lang", pair[0], "--target-lang", pair[1], "--trainpref", str(data / "text")]
    run("preprocess", *command, "--destdir", str(data / "bin"), "--workers", "1")


def train(source: str, target: str, data: Path, folder: Path, arguments: argparse.Namespace) -> None:
    """Run ``fairseq-train``, and copy the dictionaries to the folder of the checkpoint."""
    updates, size = str(arguments.updates), SIZE if arguments.arch is None else ("--arch", arguments.arch)
    command = [str(data / "bin"), "--source-lang", source, "--target-lang", target, "--save-dir", str(folder)]
    length = ("--max-tokens", arguments.max_tokens, "--max-update", updates, "--total-num-update", updates)
    run("train", *command, *size, *TRAINING, *length, "--seed", str(arguments.seed))
    for language in (source, target):
        shutil.copyfile(data / "bin" / f"dict.{language}.txt", folder / f"dict.{language}.txt")


def run(tool: str, *command: str) -> None:
    """Run a command of fairseq with this interpreter, without GPUs: with one, stock fairseq's --cpu --clip-norm fails."""
    program = [sys.executable, "-c", f"from fairseq_cli.{tool} import cli_main; cli_main()"]
    subprocess.run(
        [*program, *command], check=True, env={**os.environ, "PYTHONWARNINGS": "ignore", "CUDA_VISIBLE_DEVICES": ""}
    )


if __name__ == "__main__":
    main()
