"""Tokens per second of ``fairseq-clear prepare``, compared with ``spm_encode`` and ``fairseq-preprocess``: text to equal ids.

    python scripts/bench/prepare.py [--lines 100000] [--workers 1] [--repeats 5] [--corpora DIR] [--json FILE]

Both sides use the same sentencepiece model, the same number of workers and the same text with blank lines between documents,
generated or from --corpora. ``spm_encode`` always uses one thread. Whole commands are timed, start of Python included;
``prepare`` also stages, hashes, counts and describes the text. The sides take turns; the ratio is the median of the ratios of
the rounds. First both folders are compared: different ids are an error.

Without ``spm_encode`` (Debian: sentencepiece) a loop over sentencepiece's Python encoder replaces it, and the row says so.
Other releases of ``spm_encode`` may break ties differently: Debian's 0.1.97 and the Python package 0.2.3 differ at runs of one
character. --python-encoder 1 then uses the Python encoder.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from fairseq.data.indexed_dataset import MMapIndexedDataset
from results import compare, finish, flags
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
    """Print the row."""
    arguments = flags(__doc__, lines=100_000, vocab_size=8_000, workers=1, corpora=Path, python_encoder=0)
    encoder = PYTHON if arguments.python_encoder or not shutil.which(SPM) else SPM
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_text(folder / "text.txt", arguments.lines, arguments.corpora)
        (folder / "valid.txt").write_text("a line\n", encoding="utf-8")
        train_model(folder, arguments.vocab_size)
        ours(folder, arguments.workers)
        theirs(folder, arguments.workers, encoder)
        files = [
            [(folder / side / f"train.{end}").read_bytes() for end in ("idx", "bin")] for side in ("ours", "theirs")
        ]
        if files[0] != files[1]:
            sys.exit(
                "the ids differ (another release of spm_encode may break ties differently: give --python-encoder 1)"
            )
        tokens, lines = token_count(folder / "ours" / "train")
        plural = "s" if arguments.workers > 1 else ""
        line = compare(
            f"prepare, {tokens / 1e6:.1f} M tokens, {arguments.workers} worker{plural}",
            lambda _: ours(folder, arguments.workers), lambda _: theirs(folder, arguments.workers, encoder),
            arguments.repeats, baseline=f"{encoder} + fairseq-preprocess", aim=AIM, unit="tokens/s", amount=tokens,
            warm_up=0,
        )  # fmt: skip
    finish([line], arguments, tokens=tokens, lines=lines, encoder=encoder)


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
    model = ("--valid", folder / "valid.txt", "--spm-model", folder / "model.model")
    places = (folder / "text.txt", "--dest", folder / "ours", "--overwrite", "--workers", workers)
    run(sys.executable, "-m", "fairseq_clear.cli", "prepare", *places, *model)


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
    places = ("--srcdict", folder / "dict.txt", "--destdir", folder / "theirs", "--workers", workers)
    run(sys.executable, "-c", tool, "--only-source", *splits, *places)


def run(*command: object) -> None:
    """Run a command; if it fails, exit with the end of its output."""
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, env=environment)
    if done.returncode:
        sys.exit(f"{command[0]} failed:\n{(done.stdout + done.stderr)[-3000:]}")


def token_count(prefix: Path) -> tuple[int, int]:
    """Number of tokens and of lines of a data set."""
    data = MMapIndexedDataset(str(prefix))
    return int(data.sizes.sum(dtype=np.int64)), len(data)


if __name__ == "__main__":
    main()
