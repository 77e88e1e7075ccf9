"""Tokens per second of ``fairseq-clear prepare``, compared with ``spm_encode`` and ``fairseq-preprocess``: text to equal ids.

    python scripts/bench/prepare.py [--lines 100000] [--workers 1] [--repeats 5] [--corpora DIR] [--json FILE]

Both sides use the same sentencepiece model, the same number of workers and the same text with blank lines between documents,
generated or from --corpora. ``spm_encode`` always uses one thread. Whole commands are timed, start of Python included;
``prepare`` also stages, hashes, counts and describes the text. The sides take turns; the ratio is the median of the ratios of
the rounds. Afterwards both folders are compared line by line: different ids are an error.

Without ``spm_encode`` (Debian: sentencepiece) a loop over sentencepiece's Python encoder replaces it, and the row says so.
Other releases of ``spm_encode`` may break ties differently: Debian's 0.1.97 and the Python package 0.2.3 differ at runs of one
character. --python-encoder then uses the Python encoder.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import numpy as np
from fairseq.data.indexed_dataset import MMapIndexedDataset
from results import finish, row
from steps import in_turn, ratio
from texts import documents, generate

AIM = ">= 1.0"
SPM, PYTHON = "spm_encode", "sentencepiece's Python encoder"
LINES_OF_DOCUMENT = 20
SAMPLE_LINES = 20_000
# Reads lines and writes pieces, as spm_encode does; used if that is not installed.
STAND_IN = """
import sys
from sentencepiece import SentencePieceProcessor
model = SentencePieceProcessor(model_file=sys.argv[1])
with open(sys.argv[2], encoding="utf-8") as lines, open(sys.argv[3], "w", encoding="utf-8") as out:
    for line in lines:
        out.write(" ".join(model.encode(line.rstrip("\\n"), out_type=str)) + "\\n")
"""


def main() -> None:
    """Print the ratio; --json also writes the result to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=100_000, help="lines of the generated text")
    parser.add_argument("--vocab-size", type=int, default=8_000, help="pieces of the sentencepiece model")
    parser.add_argument("--workers", type=int, default=1, help="processes, on both sides")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--corpora", type=Path, metavar="DIR", help="folder of 20news.train.jsonl.xz, instead of generated text"
    )
    parser.add_argument(
        "--python-encoder",
        action="store_true",
        help="use sentencepiece's Python encoder, even if spm_encode is installed",
    )
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    encoder = PYTHON if arguments.python_encoder or not shutil.which(SPM) else SPM
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_text(folder / "text.txt", arguments.lines, arguments.corpora)
        (folder / "valid.txt").write_text("a line\n", encoding="utf-8")
        train_model(folder, arguments.vocab_size)
        seconds = in_turn(
            [lambda _: ours(folder, arguments.workers), lambda _: theirs(folder, arguments.workers, encoder)],
            arguments.repeats,
            0,
        )
        difference = first_difference(folder / "ours" / "train", folder / "theirs" / "train")
        if difference:
            sys.exit(
                f"the ids differ: {difference} (if spm_encode is of another release, it may break ties differently: "
                "give --python-encoder)"
            )
        tokens, lines = token_count(folder / "ours" / "train")
    rates = [tokens / median(times) for times in seconds]
    faster = ratio(seconds[1], seconds[0])
    baseline = f"{encoder} + fairseq-preprocess"
    plural = "s" if arguments.workers > 1 else ""
    print(f"prepare {rates[0]:,.0f} tokens/s, {baseline} {rates[1]:,.0f}: {faster:.2f} times, {tokens:,} equal ids")
    result = {
        "tokens": tokens,
        "lines": lines,
        "workers": arguments.workers,
        "seconds": seconds[0],
        "their_seconds": seconds[1],
        "ratio": faster,
        "encoder": encoder,
        "text": str(arguments.corpora.name) if arguments.corpora else "generated",
        "table": [
            row(
                f"prepare, {tokens / 1e6:.1f} M tokens, {arguments.workers} worker{plural}", "tokens/s", rates[0],
                baseline=baseline, theirs=rates[1], ratio=faster, aim=AIM,
            )
        ],
    }  # fmt: skip
    finish(result, arguments.json)


def write_text(path: Path, lines: int, corpora: Path | None) -> None:
    """Write sentences with single blank lines between documents."""

    def made() -> Iterator[str]:
        for number, line in enumerate(generate(lines, (5, 45))):
            yield f"\n{line}" if number and number % LINES_OF_DOCUMENT == 0 else line

    with open(path, "w", encoding="utf-8") as out:
        if corpora is None:
            out.writelines(f"{line}\n" for line in made())
        else:
            out.write("\n\n".join(block for block in documents(corpora, "20news") if block) + "\n")


def train_model(folder: Path, size: int) -> None:
    """Train ``model.model`` and write its vocabulary as fairseq's ``dict.txt``."""
    from sentencepiece import SentencePieceTrainer

    with open(folder / "text.txt", encoding="utf-8") as text:
        sample = [line.strip() for _, line in zip(range(SAMPLE_LINES), text, strict=False) if line.strip()]
    SentencePieceTrainer.train(
        sentence_iterator=iter(sample),
        model_prefix=str(folder / "model"),
        vocab_size=size,
        byte_fallback=True,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    pieces = (folder / "model.vocab").read_text(encoding="utf-8").split("\n")[3:]  # after <unk>, <s>, </s>
    text = "".join(f"{line.split(chr(9))[0]} 1\n" for line in pieces if line)
    (folder / "dict.txt").write_text(text, encoding="utf-8")


def ours(folder: Path, workers: int) -> None:
    """Turn the text into a data folder with ``prepare``."""
    flags = (
        "--valid",
        folder / "valid.txt",
        "--spm-model",
        folder / "model.model",
        "--workers",
        workers,
        "--overwrite",
    )
    run(sys.executable, "-m", "fairseq_clear.cli", "prepare", folder / "text.txt", "--dest", folder / "ours", *flags)


def theirs(folder: Path, workers: int, encoder: str) -> None:
    """Turn the text into pieces, and the pieces into a data folder with ``fairseq-preprocess``."""
    for name in ("text", "valid"):
        text, pieces = folder / f"{name}.txt", folder / f"{name}.pieces"
        if encoder == SPM:
            run(SPM, f"--model={folder / 'model.model'}", f"--output={pieces}", text)
        else:
            run(sys.executable, "-c", STAND_IN, folder / "model.model", text, pieces)
    shutil.rmtree(folder / "theirs", ignore_errors=True)
    tool = "from fairseq_cli.preprocess import cli_main; cli_main()"
    splits = ("--trainpref", folder / "text.pieces", "--validpref", folder / "valid.pieces")
    flags = ("--srcdict", folder / "dict.txt", "--destdir", folder / "theirs", "--workers", workers)
    run(sys.executable, "-c", tool, "--only-source", *splits, *flags)


def run(*command: object) -> None:
    """Run a command; if it fails, exit with the end of its output."""
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, env=environment)
    if done.returncode:
        sys.exit(f"{command[0]} failed:\n{(done.stdout + done.stderr)[-3000:]}")


def first_difference(mine: Path, other: Path) -> str:
    """The first place where two data sets (prefixes) differ; empty if they are equal."""
    left, right = (MMapIndexedDataset(str(prefix)) for prefix in (mine, other))
    if len(left) != len(right):
        return f"{len(left)} lines, theirs has {len(right)}"
    uneven = np.flatnonzero(left.sizes != right.sizes)
    if len(uneven):
        at = int(uneven[0])
        return f"line {at + 1} has {left.sizes[at]} tokens, theirs {right.sizes[at]}"
    ids = [np.fromfile(f"{prefix}.bin", part._index.dtype) for prefix, part in ((mine, left), (other, right))]
    unequal = np.flatnonzero(ids[0] != ids[1])
    if not len(unequal):
        return ""
    line = int(np.searchsorted(np.cumsum(left.sizes), unequal[0], side="right"))
    return f"line {line + 1}: {left[line].tolist()}, theirs {right[line].tolist()}"


def token_count(prefix: Path) -> tuple[int, int]:
    """Number of tokens and of lines of a data set."""
    data = MMapIndexedDataset(str(prefix))
    return int(data.sizes.sum(dtype=np.int64)), len(data)


if __name__ == "__main__":
    main()
