"""Sentences per second of ``fairseq-clear back-translate``, compared with ``fairseq-generate`` on the same models and text.

    python scripts/bench/back_translation.py [--size toy|base] [--lines 2000] [--repeats 3] [--json FILE]

``toy`` are the trained models of examples/cert/translation. ``base`` are untrained transformers of 6 + 6 layers x 512. Their
translations have no meaning but cost as much as those of trained models: on both sides they end at the greatest length,
1 x source + 2.

There are two comparisons, with one thread each. One direction: one pass from text to text with the model loaded, compared with
the search alone as ``fairseq-generate`` reports it. Whole commands, loading included: ``back-translate``, compared with two
calls of ``fairseq-generate`` on binarized text.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from results import finish, flags, row

from fairseq_clear.preparation.back_translation.fairseq_translator import FairseqTranslator
from fairseq_clear.preparation.back_translation.translation_settings import OneDirection

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "cert" / "translation"
sys.path.insert(0, str(EXAMPLE))
from languages import parallel  # noqa: E402

PAIR = ("english", "gerlan")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
SIZES = {"toy": (), "base": ("--arch", "transformer", "--updates", "1")}
LENGTHS = {"toy": ("--max-len-a", "1.5", "--max-len-b", "50"), "base": ("--max-len-a", "1", "--max-len-b", "2")}


def main() -> None:
    """Make the models, time both sides in turn, print the ratios of the medians."""
    arguments = flags(__doc__, size="toy", lines=2000, repeats=3, max_tokens=4096)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder, arguments)
        rows = [measure(folder, arguments) for _ in range(arguments.repeats)]
    medians = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
    table = []
    for what, ours, theirs in (
        ("one pass", "one pass", "generate, search alone"),
        ("whole command", "back-translate", "generate, round trip"),
    ):
        name, ratio = f"back-translation, {arguments.size}, {what}", round(medians[ours] / medians[theirs], 3)
        print(f"{name}: {medians[ours]:.1f} sentences/s, fairseq-generate {medians[theirs]:.1f}: {ratio:.2f}")
        table.append(
            row(name, "sentences/s", medians[ours], baseline="fairseq-generate", theirs=medians[theirs], ratio=ratio)
        )
    finish(table, arguments, rows=rows)


def make(folder: Path, arguments: argparse.Namespace) -> None:
    """Make the models, the text, and the binarized text for each direction."""
    run(sys.executable, EXAMPLE / "train.py", "--output", folder, "--languages", PAIR[1], *SIZES[arguments.size])
    rows = parallel(arguments.lines, 5, PAIR)
    for column, language in enumerate(PAIR):
        (folder / f"test.{language}").write_text("\n".join(row[column] for row in rows) + "\n")
    for source, target in (PAIR, PAIR[::-1]):
        model = folder / f"{source}-{target}"
        run(
            *fairseq("preprocess", "--source-lang", source, "--target-lang", target, "--testpref", folder / "test"),
            *("--srcdict", model / f"dict.{source}.txt", "--tgtdict", model / f"dict.{target}.txt"),
            *("--destdir", folder / f"bin-{source}", "--workers", "1"),
        )


def measure(folder: Path, arguments: argparse.Namespace) -> dict[str, float]:
    """Sentences per second of each measurement, once."""
    lengths = LENGTHS[arguments.size]
    searched, generated = 0.0, 0.0
    for source, target in (PAIR, PAIR[::-1]):
        path = folder / f"{source}-{target}" / "checkpoint_last.pt"
        began = time.perf_counter()
        shown = run(
            *fairseq("generate", folder / f"bin-{source}", "--path", path, "--cpu", "--gen-subset", "test"),
            *("--source-lang", source, "--target-lang", target, "--user-dir", ROOT / "fairseq_clear"),
            *("--max-tokens", str(arguments.max_tokens), "--unkpen", "inf", "--beam", "5", *lengths),
        )
        generated += time.perf_counter() - began
        if source == PAIR[0]:
            found = re.search(r"\(([\d.]+) sentences/s", shown)
            assert found is not None, shown[-500:]
            searched = float(found[1])
    output = folder / "out"
    models = ("--forward", folder / "-".join(PAIR), "--backward", folder / "-".join(PAIR[::-1]))
    command = ("--input", folder / f"test.{PAIR[0]}", "--output", output, "--overwrite", *models, *lengths)
    output.unlink(missing_ok=True)
    began = time.perf_counter()
    flags = ("--device", "cpu", "--max-tokens", str(arguments.max_tokens))
    run(sys.executable, "-m", "fairseq_clear.cli", "back-translate", *command, *flags)
    translated = time.perf_counter() - began
    return {
        "generate, search alone": searched,
        "one pass": one_pass(folder, arguments, lengths),
        "generate, round trip": arguments.lines / generated,
        "back-translate": arguments.lines / translated,
    }


def one_pass(folder: Path, arguments: argparse.Namespace, lengths: tuple[str, ...]) -> float:
    """Sentences per second of the pass in one direction, in chunks of the same size as in the command."""
    text, model = folder / f"test.{PAIR[0]}", str(folder / "-".join(PAIR))
    limits = {"max_len_a": float(lengths[1]), "max_len_b": int(lengths[3]), "max_tokens": arguments.max_tokens}
    settings = OneDirection(input=text, output=folder / "none", model=model, **limits)
    translator = FairseqTranslator(settings.models[0], torch.device("cpu"))
    lines = text.read_text().splitlines()
    began = time.perf_counter()
    for start in range(0, len(lines), settings.chunk_lines):
        translator.translate(lines[start : start + settings.chunk_lines])
    return len(lines) / (time.perf_counter() - began)


def fairseq(tool: str, *flags: object) -> tuple[object, ...]:
    """The command line of a fairseq tool, run by this interpreter."""
    return (sys.executable, "-c", f"from fairseq_cli.{tool} import cli_main; cli_main()", *flags)


def run(*command: object) -> str:
    """Run a command and return its output; if it fails, exit with the end of its errors."""
    done = subprocess.run([str(part) for part in command], cwd=ROOT, capture_output=True, text=True, env=ENVIRONMENT)
    if done.returncode:
        sys.exit(f"{command[0]} failed:\n{done.stderr[-3000:]}")
    return done.stdout + done.stderr


if __name__ == "__main__":
    main()
