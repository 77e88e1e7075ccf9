"""Texts are translated chunk by chunk: copies, counts, several workers, and runs that are killed at any instant."""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_clear.errors import UserError
from fairseq_clear.preparation.back_translation import translating
from fairseq_clear.preparation.back_translation.translating import translate_file
from fairseq_clear.preparation.back_translation.translation_settings import RoundTrip
from fairseq_clear.preparation.back_translation.translator import clean_line
from fairseq_clear.shared_work import Work, Workers
from tests.conftest import Ranks
from tests.faults import commands
from tests.preparation.back_translation.toys import StandIn

LINES, CHUNKS = 14, 4


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RoundTrip:
    """A run in chunks of 4 lines, over stand-ins for both models, that notes each chunk in ``calls``."""
    text = tmp_path / "text"
    text.write_text("".join("\n" if number % 5 == 0 else f"line {number} é\n" for number in range(LINES)))
    translate_chunk = translating.translate_chunk

    def noting(settings: Any, models: Any, chunk: int, lines: Any) -> Any:
        with open(tmp_path / "calls", "a") as calls:
            calls.write(f"{chunk}\n")
        return translate_chunk(settings, models, chunk, lines)

    monkeypatch.setattr(translating, "translate_chunk", noting)
    monkeypatch.setattr(translating, "FactoryTranslator", StandIn)
    models = {"forward": "f:stand_in", "backward": "b:stand_in", "device": "cpu"}
    return RoundTrip(input=text, output=tmp_path / "out.txt", chunk_lines=4, **models)


def translated(settings: RoundTrip) -> list[int]:
    """The chunks that were translated, in this call and earlier ones."""
    calls = settings.input.with_name("calls")
    return [int(line) for line in calls.read_text().split()] if calls.exists() else []


def finished(settings: RoundTrip) -> int:
    return len(list(settings.output.with_name("out.txt.partial").glob("[0-9]*.json")))


def outputs(settings: RoundTrip) -> list[str]:
    return [path.read_text() for path in settings.files]


def remove_outputs(settings: RoundTrip) -> None:
    for path in settings.output.parent.glob("*out*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    settings.input.with_name("calls").unlink(missing_ok=True)


def test_round_trip_keeps_lines_and_counts(settings: RoundTrip) -> None:
    report = translate_file(settings)
    assert report is not None and outputs(settings) == [settings.input.read_text().upper()]
    assert (report["lines"], report["blank"], report["kept"], report["unchanged"]) == (LINES, 3, 0, 0)
    assert report == json.loads(translating.report_file(settings).read_text()) == translate_file(settings)
    assert len(translated(settings)) == CHUNKS  # nothing is translated again
    with pytest.raises(UserError, match="exists already"):
        translate_file(replace(settings, seed=2))
    assert sorted(os.listdir(settings.input.parent)) == ["calls", "out.txt", "out.txt.report.json", "text"]


def test_lines_that_cannot_be_translated_keep_their_text(settings: RoundTrip, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StandIn, "max_source", 9)
    settings.input.write_text("a  b\n\nfails!\n__\nc~ d?\nmuch too long\n")
    report = translate_file(settings)
    assert report is not None and outputs(settings) == ["A B\n\nfails!\n__\nC~ D?\nmuch too long\n"]
    assert (report["kept"], report["unchanged"], report["length_ratio"]) == (3, 3, 1)
    assert report["forward"] == {"failed": 3, "cut": 1, "unknown": 1}
    assert report["backward"] == {"failed": 0, "cut": 1, "unknown": 1}


def test_copies_are_independent_samples(settings: RoundTrip) -> None:
    drawn = replace(settings, copies=3, sampling=0)
    translate_file(drawn)
    copies = outputs(drawn)
    assert len(set(copies)) == 3
    translate_file(replace(settings, sampling=0))
    assert outputs(settings) == copies[:1]
    translate_file(replace(settings, sampling=0, seed=2, overwrite=True))
    assert outputs(settings) != copies[:1]


def work(rank: int, settings: RoundTrip, size: int, killed_after: int | None = None) -> None:
    """A worker's part; ``killed_after`` chunks of it, the worker is killed."""
    own = 0
    translate_chunk = translating.translate_chunk

    def limited(*arguments: Any) -> Any:
        nonlocal own
        own += 1
        if killed_after is not None and own > killed_after:
            os.kill(os.getpid(), signal.SIGKILL)
        return translate_chunk(*arguments)

    translating.translate_chunk = limited
    report = translate_file(settings, Workers(rank, size))
    assert (report is None) == (rank > 0)


@pytest.mark.slow
def test_any_number_of_workers_gives_the_same_bytes(settings: RoundTrip, ranks: Ranks) -> None:
    """Samples, with 1, 2 and 3 workers; and after workers were killed, with another number of them."""
    settings = replace(settings, copies=2, sampling=0)
    translate_file(settings)
    expected, report = outputs(settings), translating.report_file(settings).read_text()
    for size in (2, 3):
        remove_outputs(settings)
        ranks(size, work, settings, size)
        assert outputs(settings) == expected and sorted(translated(settings)) == list(range(CHUNKS))
        assert translating.report_file(settings).read_text() == report
        remove_outputs(settings)
        with pytest.raises(torch.multiprocessing.ProcessExitedException):
            ranks(size, work, settings, size, 1)
        kept = finished(settings)
        assert kept >= 1 and not settings.files[0].exists()
        before = len(translated(settings))
        ranks(5 - size, work, settings, 5 - size)
        assert outputs(settings) == expected and len(translated(settings)) == before + CHUNKS - kept


def killed_at(instant: int, settings: RoundTrip) -> bool:
    """Translate in a process that kills itself just before the n-th change of the disk; whether it was killed."""

    def work() -> int:
        commands.PART = 1  # every write counts
        translate_file(settings)
        return 0

    return commands.run(work, Path(os.devnull), arm=commands.Instants(settings.input.parent, instant)) < 0


@pytest.mark.slow
def test_kill_at_every_instant(settings: RoundTrip, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rerun ends like an undisturbed run, and translates at most the chunk again that was being written."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # slow, and a killed process leaves the same files without it
    settings = replace(settings, copies=2, sampling=0)
    translate_file(settings)
    expected = outputs(settings)
    instant, killed = 0, True
    while killed:
        instant += 1
        remove_outputs(settings)
        killed = killed_at(instant, settings)
        before, kept = len(translated(settings)), finished(settings)
        were_written = all(path.exists() for path in settings.files)
        report = translate_file(settings)
        assert outputs(settings) == expected and report is not None and report["lines"] == LINES
        assert len(translated(settings)) == before + (0 if were_written else CHUNKS - kept)
        assert kept >= before - 1 or were_written
        names = ["calls", "out.0.txt", "out.1.txt", "out.txt.report.json", "text"]
        assert sorted(os.listdir(settings.input.parent)) == names
    assert instant > 18


@pytest.mark.parametrize(
    "change", [{"seed": 2}, {"max_tokens": 7}, {"backward": "c:stand_in"}, {"input": "other"}], ids=str
)
def test_other_settings_do_not_resume(settings: RoundTrip, change: dict[str, Any]) -> None:
    assert killed_at(20, settings) and finished(settings)
    if "input" in change:
        settings.input.write_text(settings.input.read_text().replace("line", change["input"]))
    else:
        settings = replace(settings, **change)
    with pytest.raises(UserError, match=f"{next(iter(change))}.*--overwrite"):
        translate_file(settings)
    translate_file(replace(settings, overwrite=True))
    assert outputs(settings) == [settings.input.read_text().upper()]


def test_a_text_that_was_changed_or_removed_is_not_complete_and_records_are_no_text(settings: RoundTrip) -> None:
    translate_file(settings)
    before = outputs(settings)
    settings.output.write_text("mine")
    with pytest.raises(UserError, match="out.txt: exists already"):
        translate_file(settings)
    assert settings.output.read_text() == "mine"
    settings.output.unlink()
    translate_file(settings)
    assert outputs(settings) == before
    records = settings.input.rename(settings.input.with_name("text.jsonl.gz"))
    with pytest.raises(UserError, match="is JSON; write its text with fairseq-clear prepare --text-only"):
        translate_file(replace(settings, input=records))


def test_what_is_replaced_stays_until_the_new_text_is_whole(settings, monkeypatch) -> None:
    translate_file(settings)
    before, again = outputs(settings), replace(settings, seed=2, overwrite=True)

    def damaged(work: Work) -> Iterator[Any]:
        yield {"counts": {}, "copies": [["new"]]}
        raise UserError("0.json: damaged")

    with monkeypatch.context() as patch, pytest.raises(UserError, match="damaged"):
        patch.setattr(Work, "results", damaged)
        translate_file(again)
    assert outputs(settings) == before and translating.report_file(settings).is_file()
    report = translate_file(again)
    assert report is not None and report["settings"]["seed"] == 2


def test_a_clean_line_is_one_line() -> None:
    assert clean_line(" a\rb\0c\u2028d\x85e\x0cf\t \tg\r") == "a b c d e f g" and clean_line(" \t") == ""
