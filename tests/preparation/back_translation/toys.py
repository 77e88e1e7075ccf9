"""The toy languages of examples/cert/translation, their models, and a stand-in for a model."""

import fcntl
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fairseq_clear.preparation.back_translation.translation_settings import BackTranslateSettings, ModelSource
from fairseq_clear.preparation.back_translation.translator import Translation
from tests.conftest import ROOT
from tests.faults import commands

EXAMPLE = ROOT / "examples" / "cert" / "translation"


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"toy_{name}", EXAMPLE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


languages = sys.modules["languages"] = _load("languages")
train = _load("train")


def train_toys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with english-gerlan, gerlan-english and text.txt, trained once for all test processes of a run."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if base.name.startswith("popen-") else base) / "toy-translation"
    with open(folder.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "text.txt").exists():
            folder.mkdir(exist_ok=True)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(train, "run", lambda tool, *command: _fork_tool(folder / "log", tool, *command))
                # smaller batches than the example's, for half the time
                size = ("--languages", "gerlan", "--max-tokens", "1000", "--updates", "360")
                patch.setattr(sys, "argv", ["train.py", "--output", str(folder), *size])
                train.main()
    return folder


def _fork_tool(log: Path, tool: str, *command: str) -> None:
    """A command of fairseq in a forked process, which has imported fairseq already."""

    cli = importlib.import_module(f"fairseq_cli.{tool}")

    def work() -> int:
        sys.argv = [f"fairseq-{tool}", *command]
        cli.cli_main()
        return 0

    assert commands.run(work, log) == 0, log.read_text()[-4000:]


def toy_settings(toys: Path, text: Path, output: Path, **others: Any) -> BackTranslateSettings:
    """A round trip over gerlan in small chunks."""
    sources = {
        "forward": ModelSource(str(toys / "english-gerlan")),
        "backward": ModelSource(str(toys / "gerlan-english")),
    }
    given = {"chunk_lines": 16, "threads": 1, "device": "cpu", **sources, **others}
    return BackTranslateSettings(input=text, output=output, **given)


class StandIn:
    """Takes the place of a FairseqTranslator: tokens are the characters' numbers, translations are in capitals.

    Args:
        limit: most tokens of a text, the end included.
        bad: texts with this character make their batch fail.
        capacity: batches of more texts fail for memory.
    """

    draws, has_alternatives = False, True

    def __init__(self, limit: int = 1000, bad: str = "\0", capacity: int = 10**9, which: str = "forward") -> None:
        self.which, self.max_source, self.languages = which, limit, ("en", "xx")
        self.bad, self.capacity = bad, capacity
        self.batches: list[list[str]] = []
        self.seeds: list[int] = []
        self.device = "cpu"

    def encode(self, text: str) -> list[int]:
        return [*map(ord, text), 0]

    def count_unknown(self, ids: Sequence[int]) -> int:
        return ids.count(ord("?"))

    def translate_batch(self, batch: Sequence[Sequence[int]], seed: int, count: int = 1) -> list[list[Translation]]:
        texts = ["".join(map(chr, ids[:-1])) for ids in batch]
        if len(texts) > self.capacity:
            raise MemoryError("too many at once")
        if any(self.bad in text for text in texts):
            raise ValueError("cannot take this")
        self.batches.append(texts)
        self.seeds.append(seed)
        return [[Translation(text.upper().replace("_", ""), is_cut="~" in text)] for text in texts]
