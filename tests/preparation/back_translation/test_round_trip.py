"""Real models: paraphrases keep the meaning, hypotheses equal fairseq's, the command survives kills on several workers."""

import os
import random
import re
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq_cli import interactive

from fairseq_clear.preparation.back_translation.fairseq_translator import FairseqTranslator
from fairseq_clear.preparation.back_translation.translating import translate_file
from fairseq_clear.preparation.back_translation.translation_settings import OneDirection
from fairseq_clear.shared_work import join_workers
from tests.conftest import ROOT
from tests.faults import commands
from tests.preparation.back_translation.toys import languages, toy_settings

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def text(toys: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100 of the unseen sentences, blank lines between them, and lines with what breaks alignment elsewhere."""
    lines = (toys / "text.txt").read_text().split("\n")[:100]
    lines[10] = lines[50] = ""
    lines[20] = lines[20].replace(" ", "\t")
    lines[30] = lines[30].replace(" ", "\u2028", 1) + "\r"
    lines[40] = "\0 \t"
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_bytes("\n".join(lines).encode())
    return path


def kept_and_changed(originals: list[str], results: list[str]) -> tuple[float, float]:
    """Share of the sentences whose meaning is kept, and of those whose wording is changed."""
    pairs = [
        (original.split(), result)
        for original, result in zip(originals, results, strict=True)
        if original.strip("\0 \t")
    ]
    kept = sum(languages.parse(" ".join(words)) == languages.parse(result) for words, result in pairs)
    changed = sum(" ".join(words) != result for words, result in pairs)
    return kept / len(pairs), changed / len(pairs)


@pytest.mark.parametrize(
    ("search", "least"),
    [
        ({}, 0.95),
        ({"sampling": 0}, 0.75),  # draws improbable words too, hence top-k
        ({"sampling": 3}, 0.9),
    ],
    ids=["beam", "sampling", "top-k"],
)
def test_meaning_is_kept_and_wording_changed(
    toys: Path, text: Path, tmp_path: Path, search: dict[str, Any], least: float
) -> None:
    settings = toy_settings(toys, text, tmp_path / "out", **search)
    report = translate_file(settings)
    assert report is not None
    content = settings.output.read_bytes().decode()
    results, originals = content.split("\n")[:-1], text.read_bytes().decode().split("\n")
    assert len(content.splitlines()) == content.count("\n") == 100
    kept, changed = kept_and_changed(originals, results)
    assert kept >= least and changed >= 0.9, (kept, changed)
    assert results[10] == results[50] == results[40] == ""
    assert report["blank"] == 3 and report["unchanged"] == 97 - round(changed * 97)
    assert 5 < report["self_bleu"] < 50 and report["length_ratio"] == pytest.approx(1, abs=0.02)
    assert report["forward"]["unknown"] == report["kept"] == 0


def test_meaning_is_measured(text: Path) -> None:
    """The control: sentences of other lines do not mean the same."""
    originals = text.read_bytes().decode().split("\n")
    kept, changed = kept_and_changed(originals, [*originals[1:], originals[0]])
    assert kept < 0.05 and changed > 0.95
    assert kept_and_changed(originals, originals)[0] == 1


def test_hypotheses_equal_fairseq(toys: Path, tmp_path: Path) -> None:
    """Against fairseq-interactive on the same model and text; with another beam they differ."""
    model = toys / "gerlan-english"
    lines = [row[1] for row in languages.parallel(80, 11, ("english", "gerlan"))]
    lines[5] = " ".join(lines[5].split()[:2] + ["unheardof"] * 3)
    source = tmp_path / "source"
    source.write_text("\n".join(lines) + "\n")

    def theirs(beam: str) -> list[str]:
        length = ("--max-len-a", "1.5", "--max-len-b", "50", "--unkpen", "inf", "--beam", beam, "--max-tokens", "400")
        user_dir = ("--cpu", "--user-dir", str(ROOT / "fairseq_clear"))  # its settings for today's torch
        files = (str(model), "--path", str(model / "checkpoint_last.pt"), "--input", str(source))
        pair = ("--source-lang", "gerlan", "--target-lang", "english", "--buffer-size", "100")

        def work() -> int:
            sys.argv = ["fairseq-interactive", *files, *user_dir, *pair, *length]
            interactive.cli_main()
            return 0

        assert commands.run(work, tmp_path / beam) == 0
        shown = (tmp_path / beam).read_text()
        found = {int(number): words for number, words in re.findall(r"^H-(\d+)\t\S+\t(.*)$", shown, re.MULTILINE)}
        return [found[number] for number in range(len(lines))]

    settings = OneDirection(input=source, output=tmp_path / "out", model=str(model), max_tokens=400, device="cpu")
    found = FairseqTranslator(settings.models[0], torch.device("cpu")).translate(lines)
    assert [one.text for one in found] == theirs("5") != theirs("1")
    assert [one.unknown for one in found if one.unknown] == [3] and not any("<unk>" in one.text for one in found)


def start(size: int, log: Path, *arguments: object) -> list[int]:
    """The process ids of the command on several workers, as torchrun starts them."""
    with socket.create_server(("localhost", 0)) as free:
        port = free.getsockname()[1]
    variables = {"WORLD_SIZE": str(size), "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}

    def work(rank: int) -> int:
        os.environ.update(variables, RANK=str(rank))
        join_workers.cache_clear()
        return commands.fairseq_clear_command("back-translate", *arguments)

    return [commands.fork(lambda rank=rank: work(rank), log) for rank in range(size)]  # type: ignore[misc]


def test_kill_of_a_worker_at_random(toys: Path, text: Path, tmp_path: Path) -> None:
    """A killed worker ends the others; with another number of workers, the rerun's text equals that of a quiet run."""
    settings = toy_settings(toys, text, tmp_path / "quiet", chunk_lines=8, sampling=5)
    report = translate_file(settings)
    models = ("--forward", settings.forward, "--backward", settings.backward, "--chunk-lines", 8, "--device", "cpu")
    output, log = tmp_path / "disturbed", tmp_path / "log"
    command = ("--input", text, "--output", output, *models, "--sampling", 5)
    rng = random.Random(1)

    def finished() -> int:
        return len(list(tmp_path.glob("disturbed.partial/[0-9]*.json")))

    for size in (2, 3, 1):
        until = finished() + rng.randint(1, 3)
        workers = start(size, log, *command)
        while size > 1 and finished() < until:  # so all workers have met
            time.sleep(0.01)
        if size > 1:
            os.kill(rng.choice(workers), signal.SIGKILL)
        codes = [commands.ended(child) for child in workers]
        assert sorted(codes) == ([0] if size == 1 else [-signal.SIGKILL, *[2] * (size - 1)]), log.read_text()
        assert output.exists() == (size == 1)
    assert output.read_bytes() == settings.output.read_bytes() and not output.with_name("disturbed.partial").exists()
    assert report is not None and "Traceback" not in log.read_text()
