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
from results import finish, row

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
    arguments = parse()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder, arguments)
        rows = [measure(folder, arguments) for _ in range(arguments.repeats)]
    medians = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
    report = {
        "size": arguments.size,
        "lines": arguments.lines,
        "sentences_per_second": {key: round(value, 1) for key, value in medians.items()},
        "one_pass_ratio": round(medians["one pass"] / medians["generate, search alone"], 3),
        "command_ratio": round(medians["back-translate"] / medians["generate, round trip"], 3),
        "rows": rows,
    }
    for key, value in medians.items():
        print(f"{key:28} {value:9.1f} sentences/s")
    print(f"one pass from text to text / search of fairseq-generate: {report['one_pass_ratio']:.3f}")
    print(f"back-translate / fairseq-generate, round trip:           {report['command_ratio']:.3f}")
    report["table"] = [
        row(
            f"back-translation, {arguments.size}, {what}", "sentences/s", medians[ours],
            baseline="fairseq-generate", theirs=medians[theirs], ratio=report[ratio],
        )
        for what, ours, theirs, ratio in (
            ("one pass", "one pass", "generate, search alone", "one_pass_ratio"),
            ("whole command", "back-translate", "generate, round trip", "command_ratio"),
        )
    ]  # fmt: skip
    finish(report, arguments.json)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="toy", help="size of the models (default: toy)")
    parser.add_argument("--lines", type=int, default=2000, help="lines to translate (default: 2000)")
    parser.add_argument("--repeats", type=int, default=3, help="number of measurements (default: 3)")
    parser.add_argument("--max-tokens", type=int, default=4096, help="tokens of a batch, on both sides (default: 4096)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    return parser.parse_args()


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
