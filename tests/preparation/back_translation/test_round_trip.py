"""Real models: paraphrases keep the meaning, hypotheses are those of fairseq, the real command survives kills."""

import os
import random
import re
import signal
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import pytest
import torch
from fairseq_cli import interactive

from fairseq_clear.errors import UserError
from fairseq_clear.preparation.back_translation.fairseq_translator import FairseqTranslator
from fairseq_clear.preparation.back_translation.round_trip import Outcome, back_translate, read_report
from fairseq_clear.preparation.back_translation.translating import Pass
from fairseq_clear.preparation.back_translation.translation_settings import BackTranslateSettings, Search
from tests.conftest import ROOT
from tests.faults import commands
from tests.preparation.back_translation.toys import languages, toy_settings

pytestmark = pytest.mark.slow
CPU = torch.device("cpu")


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


def round_trip(toys: Path, text: Path, folder: Path, **others: Any) -> tuple[list[str], dict[str, Any]]:
    outcome = back_translate(toy_settings(toys, text, folder / "out", **others))
    content = outcome.output.read_bytes().decode()
    assert content.endswith("\n") and len(content.splitlines()) == content.count("\n") == 100
    return content.split("\n")[:-1], outcome.report


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
        (Search(), 0.95),
        (Search(sampling="both"), 0.75),  # draws improbable words too, hence top-k and top-p
        (Search(sampling="backward", sampling_topk=3), 0.95),
        (Search(sampling="both", sampling_topp=0.9), 0.95),
        (Search(beam=3, temperature=0.7), 0.95),
    ],
    ids=["beam", "sampling", "top-k", "top-p", "temperature"],
)
def test_meaning_is_kept_and_wording_changed(
    toys: Path, text: Path, tmp_path: Path, search: Search, least: float
) -> None:
    results, report = round_trip(toys, text, tmp_path, search=search)
    originals = text.read_bytes().decode().split("\n")
    kept, changed = kept_and_changed(originals, results)
    assert kept >= least and changed >= 0.9, (kept, changed)
    assert results[10] == results[50] == results[40] == ""
    assert report["blank"] == 3 and report["identical"] == 97 - round(changed * 97)
    assert 5 < report["self_bleu"] < 50 and report["length_ratio"] == pytest.approx(1, abs=0.02)
    assert report["forward"]["unknown"] == report["kept"] == 0


def test_meaning_is_measured(text: Path) -> None:
    """The control: sentences of other lines do not mean the same."""
    originals = text.read_bytes().decode().split("\n")
    kept, changed = kept_and_changed(originals, [*originals[1:], originals[0]])
    assert kept < 0.05 and changed > 0.95
    assert kept_and_changed(originals, originals)[0] == 1


def test_samples_differ_by_seed_alone(toys: Path, text: Path, tmp_path: Path) -> None:
    texts = []
    for number, seed in enumerate((1, 1, 2)):
        (tmp_path / str(number)).mkdir()
        search = Search(sampling="both", sampling_topp=0.9)
        texts.append(round_trip(toys, text, tmp_path / str(number), search=search, seed=seed)[0])
    assert texts[0] == texts[1] != texts[2]


def test_hypotheses_are_those_of_fairseq(toys: Path, tmp_path: Path) -> None:
    """Against fairseq-interactive on the same model and text; with another beam or penalty they differ."""
    source = toys / "text.txt"
    model = toys / "gerlan-english"
    lines = [row[1] for row in languages.parallel(80, 11, ("english", "gerlan"))]
    lines[5] = " ".join(lines[5].split()[:2] + ["unheardof"] * 3)
    source = tmp_path / "source"
    source.write_text("\n".join(lines) + "\n")

    def theirs(beam: str) -> list[str]:
        length = ("--max-len-a", "1.5", "--max-len-b", "50", "--unkpen", "inf", "--beam", beam, "--max-tokens", "400")

        def work() -> int:
            sys.argv = [
                *(
                    "fairseq-interactive",
                    str(model),
                    "--path",
                    str(model / "checkpoint_last.pt"),
                    "--input",
                    str(source),
                ),
                *("--cpu", "--user-dir", str(ROOT / "fairseq_clear")),  # its settings for today's torch
                *("--source-lang", "gerlan", "--target-lang", "english", "--buffer-size", "100", *length),
            ]
            interactive.cli_main()
            return 0

        assert commands.run(work, tmp_path / beam) == 0
        shown = (tmp_path / beam).read_text()
        found = {int(number): words for number, words in re.findall(r"^H-(\d+)\t\S+\t(.*)$", shown, re.MULTILINE)}
        return [found[number] for number in range(len(lines))]

    settings = replace(toy_settings(toys, source, tmp_path / "out"), max_tokens=400)
    counts: Counter[str] = Counter()
    texts = {number: [line] for number, line in enumerate(lines)}
    (found,) = Pass(FairseqTranslator(settings, "backward", CPU), settings).translate(texts, 0, counts)
    ours = [" ".join(found[number]) for number in range(len(lines))]
    assert ours == theirs("5")
    assert ours != theirs("1")
    assert counts["backward.unknown"] == 3 and not any("<unk>" in line for line in ours)


def test_lines_that_are_too_long_are_split_or_copied(toys: Path, tmp_path: Path) -> None:
    sentences = [row[0] for row in languages.parallel(12, 5, ("english",))]
    long = ". ".join(["The", *sentences][i] if i == 0 else sentences[i].capitalize() for i in range(12)) + "."
    path = tmp_path / "text"
    path.write_text(f"{sentences[0]}\n{long}\n\n{'the ' * 100}\n")
    report = back_translate(toy_settings(toys, path, tmp_path / "split")).report
    assert (report["forward"]["split"], report["forward"]["copied"], report["kept"]) == (1, 1, 1)
    lines = (tmp_path / "split").read_text().split("\n")
    assert lines[2] == lines[4] == "" and lines[3] == ("the " * 100).strip() and lines[1] not in ("", long)
    report = back_translate(toy_settings(toys, path, tmp_path / "copy", too_long="copy")).report
    assert (report["forward"]["split"], report["forward"]["copied"]) == (0, 2)
    assert (tmp_path / "copy").read_text().split("\n")[1] == long


SAMPLING = Search(sampling="both", sampling_topk=5)


@pytest.fixture(scope="module")
def quiet(toys: Path, text: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """A run that nothing disturbs, in one process."""
    output = tmp_path_factory.mktemp("quiet") / "out"
    return back_translate(toy_settings(toys, text, output, chunk_lines=8, search=SAMPLING))


def start(settings: BackTranslateSettings, workers: int) -> tuple[int, TextIO]:
    """The command in a process of its own, and what it and its workers write."""
    files = ("--input", settings.input, "--output", settings.output, "--workers", workers)
    models = ("--forward", settings.forward.path, "--backward", settings.backward.path)
    flags = ("--chunk-lines", 8, "--threads", 1, "--device", "cpu", "--sampling", "--sampling-topk", 5)
    return commands.fork_piped(
        lambda: commands.fairseq_clear_command("back-translate", *files, *models, *flags, "--log-interval", 0)
    )


@pytest.mark.parametrize("workers", [1, 2])
def test_kill_of_the_command_at_random(toys: Path, text: Path, quiet: Outcome, tmp_path: Path, workers: int) -> None:
    """Killed after a random line of progress, the workers end too; the final text is that of a quiet run of one process."""
    settings = toy_settings(toys, text, tmp_path / "disturbed")
    rng = random.Random(workers)
    kills, wanted = 0, 3 - workers
    while not settings.output.exists():
        child, shown = start(settings, workers)
        for _ in range(rng.randint(2, 5)):
            if not shown.readline() or kills == wanted:
                break
        else:
            os.kill(child, signal.SIGKILL)
        rest = shown.read()  # ends when the last of the processes that hold the pipe has ended
        code = commands.ended(child)
        assert code in (0, -signal.SIGKILL), rest
        kills += code == -signal.SIGKILL
    assert kills == wanted
    assert settings.output.read_bytes() == quiet.output.read_bytes()
    report = read_report(settings.output)
    assert report is not None and report["sums"] == quiet.report["sums"]
    assert not settings.output.with_name("disturbed.partial").exists()


def test_models_must_undo_each_other(toys: Path, text: Path, tmp_path: Path) -> None:
    settings = toy_settings(toys, text, tmp_path / "out")
    with pytest.raises(UserError, match="the second must undo"):
        back_translate(replace(settings, backward=settings.forward))
    assert not (tmp_path / "out").exists()
