"""The toy languages of examples/cert/translation, their models, and a stand-in for a model."""

import fcntl
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_clear.preparation.back_translation.translation_settings import OneDirection
from fairseq_clear.preparation.back_translation.translator import Translation, Translator
from tests.conftest import ROOT, load_file
from tests.zygote import forked_python

EXAMPLE = ROOT / "examples" / "cert" / "translation"


languages = load_file(EXAMPLE / "languages.py")  # which train.py imports
train = load_file(EXAMPLE / "train.py", "toy_train")


def train_toys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with english-gerlan, gerlan-english and text.txt, trained once for all test processes of a run."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if base.name.startswith("popen-") else base) / "toy-translation"
    with open(folder.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "text.txt").exists():
            folder.mkdir(exist_ok=True)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(sys, "executable", forked_python())
                # smaller batches than the example's, for half the time
                size = ("--languages", "gerlan", "--max-tokens", "1000", "--updates", "300")
                patch.setattr(sys, "argv", ["train.py", "--output", str(folder), *size])
                train.main()
    return folder


class StandIn(Translator):
    """A model whose tokens are the characters' numbers and whose translations are in capitals, without ``_``.

    A translation of a text with ``~`` is cut off. A batch with ``!`` in a text fails, and so does one of more than ``capacity``
    texts. A sample ends in the seed.
    """

    capacity, max_source, unknown = 10**9, 1000, ord("?")

    def __init__(self, model: Any = None, device: torch.device | None = None) -> None:
        self.batches: list[list[str]] = []
        model = model or OneDirection(input=Path("in"), output=Path("out"), model="a:b").models[0]
        super().__init__(model, device or torch.device("cpu"))

    @classmethod
    def files(cls, model: Any) -> list[Path]:
        return []

    def encode(self, text: str) -> list[int]:
        return [*map(ord, text), 0]

    def search(self, batch: Sequence[Sequence[int]], seed: int) -> list[Translation]:
        texts = ["".join(map(chr, tokens[:-1])) for tokens in batch]
        if len(texts) > self.capacity:
            raise MemoryError("too many at once")
        if any("!" in text for text in texts):
            raise ValueError("cannot take this")
        self.batches.append(texts)
        end = f"{seed % 1000}" if self.draws else ""
        return [Translation(text.upper().replace("_", "") + end, "~" in text) for text in texts]
