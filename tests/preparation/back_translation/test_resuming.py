"""Killed at every instant at which something reaches the disk, a run that is given again ends as if nothing had been."""

import errno
import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairseq_clear.errors import UserError
from fairseq_clear.preparation.back_translation import atomic, command, journal
from fairseq_clear.preparation.back_translation.command import REPORT_SUFFIX, back_translate, read_report
from fairseq_clear.preparation.back_translation.journal import open_journal
from fairseq_clear.preparation.back_translation.merging import merge_shards
from fairseq_clear.preparation.back_translation.report import compare
from fairseq_clear.preparation.back_translation.roundtrip import ChunkResult
from fairseq_clear.preparation.back_translation.segmentation import one_line
from fairseq_clear.preparation.back_translation.settings import BackTranslateSettings, ModelSource

LINES = 23


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BackTranslateSettings:
    """A run in chunks of 4 lines whose translation is to write in capitals, and to note each chunk in ``calls``."""
    text = tmp_path / "text"
    text.write_text("".join("\n" if number % 5 == 0 else f"line {number} é\n" for number in range(LINES)))

    def translate(settings: BackTranslateSettings, chunks: Any, show: Any, count: int) -> Iterator[ChunkResult]:
        for number, lines in sorted(chunks, key=lambda chunk: (chunk[0] % 3, chunk[0])):  # in any order
            with open(tmp_path / "calls", "a") as calls:
                calls.write(f"{number}\n")
            originals = [one_line(line) for line in lines]
            results = [line.upper() for line in originals]
            counts = Counter(lines=len(lines), blank=originals.count("")) + compare(originals, results, "en")
            yield ChunkResult(number, results, counts)

    monkeypatch.setattr(command, "translate_chunks", translate)
    monkeypatch.setattr(command, "identity", lambda settings, which: {"model.pt": which})
    return BackTranslateSettings(text, tmp_path / "out", ModelSource("f"), ModelSource("b"), chunk_lines=4)


def translated(settings: BackTranslateSettings) -> list[int]:
    calls = settings.input.with_name("calls")
    return [int(line) for line in calls.read_text().split()] if calls.exists() else []


def expected(settings: BackTranslateSettings) -> str:
    return settings.input.read_text().upper()


def killed_at(instant: int, work: Callable[[], object]) -> bool:
    """Do the work in a process that kills itself just before the n-th instant; whether it was killed."""
    child = os.fork()
    if child == 0:
        try:
            _arm(instant)
            work()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def _arm(instant: int) -> None:
    """An instant is a write (half of it is done when the kill comes), a sync, a rename, a file removed."""
    passed = 0

    def tick() -> bool:
        nonlocal passed
        passed += 1
        return passed == instant

    def before(function: Callable[..., Any]) -> Callable[..., Any]:
        def armed(*args: Any, **kwargs: Any) -> Any:
            if tick():
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return armed

    def write(stream: Any, content: bytes) -> None:
        if tick():
            stream.write(content[: len(content) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        atomic.write_all(stream, content)

    journal.write_all = write
    os.fsync, os.replace, os.unlink = before(os.fsync), before(os.replace), before(os.unlink)
    shutil.rmtree = before(shutil.rmtree)


@pytest.mark.slow
def test_kill_at_every_instant(settings: BackTranslateSettings) -> None:
    instant = 0
    killed = True
    while killed:
        instant += 1
        for left in settings.output.parent.glob("*out*"):
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        settings.input.with_name("calls").unlink(missing_ok=True)
        killed = killed_at(instant, lambda: back_translate(settings))
        before = translated(settings)
        partial = journal.partial_folder(settings.output)
        recorded = (partial / "journal").read_bytes().count(b"\n") if (partial / "journal").exists() else 0
        outcome = back_translate(settings)
        assert settings.output.read_text() == expected(settings)
        # at most the one chunk that was on its way is done again
        assert len(translated(settings)) <= len(before) + 6 - recorded
        assert set(translated(settings)) == set(range(6))
        assert outcome.report["lines"] == LINES and outcome.report["blank"] == 5
        names = {"text", "calls", "out", f"out{REPORT_SUFFIX}", "out.report.txt"}
        assert {path.name for path in settings.input.parent.iterdir()} == names
    assert instant > 30


def test_kill_again_and_again(settings: BackTranslateSettings) -> None:
    kills = 0
    while killed_at(5 + kills, lambda: back_translate(settings)):
        kills += 1
    assert kills >= 5
    assert settings.output.read_text() == expected(settings)
    assert len(translated(settings)) <= 6 + kills


def test_a_journal_that_is_not_cut_off_would_repeat_lines(
    settings: BackTranslateSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: without recovery the torn text stays and the kill is seen."""

    def recover(self: Any) -> None:
        self.records = {}

    monkeypatch.setattr(journal.Journal, "_recover", recover)
    killed_at(14, lambda: back_translate(settings))
    back_translate(settings)
    assert len(translated(settings)) > 7


def test_finished_run_has_nothing_to_do(settings: BackTranslateSettings) -> None:
    assert not back_translate(settings).was_complete
    again = back_translate(settings)
    assert again.was_complete and "nothing to do" in again.summary()
    assert len(translated(settings)) == 6
    with pytest.raises(UserError, match="exists already, and not from this"):
        back_translate(replace(settings, seed=2))
    assert not back_translate(replace(settings, seed=2, overwrite=True)).was_complete


@pytest.mark.parametrize(
    ("change", "told"),
    [({"seed": 2}, "seed: 1, now 2"), ({"max_tokens": 7}, "max_tokens: 4096, now 7"), ({}, "input's text has changed")],
)
def test_other_settings_do_not_go_on(settings: BackTranslateSettings, change: dict[str, int], told: str) -> None:
    assert killed_at(20, lambda: back_translate(settings))
    if not change:
        settings.input.write_text(settings.input.read_text().replace("line", "word"))
    with pytest.raises(UserError, match=told):
        back_translate(replace(settings, **change))
    back_translate(replace(settings, overwrite=True, **change))
    assert settings.output.read_text() == expected(settings)


def test_settings_bind_only_where_something_was_done(
    settings: BackTranslateSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first try that ended with the models, before any chunk, stands in nobody's way."""

    def fail(*args: Any) -> Iterator[ChunkResult]:
        raise UserError("no such model")

    with monkeypatch.context() as patch, pytest.raises(UserError, match="no such model"):
        patch.setattr(command, "translate_chunks", fail)
        back_translate(settings)
    back_translate(replace(settings, seed=2))
    assert settings.output.read_text() == expected(settings)


def test_overwrite_goes_on_with_the_same_settings(settings: BackTranslateSettings) -> None:
    assert killed_at(20, lambda: back_translate(settings))
    before = len(translated(settings))
    back_translate(replace(settings, overwrite=True))
    assert before >= 2 and len(translated(settings)) <= 7


def test_second_process_is_refused(settings: BackTranslateSettings) -> None:
    with (
        open_journal(settings.output, {}, overwrite=False),
        pytest.raises(UserError, match=rf"process {os.getpid()} on .* is writing it"),
    ):
        back_translate(settings)


def test_full_disk_keeps_what_was_done(settings: BackTranslateSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    room = 5

    def write(stream: Any, content: bytes) -> None:
        nonlocal room
        room -= 1
        if room < 0:
            stream.write(content[:3])
            raise OSError(errno.ENOSPC, "No space left on device")
        atomic.write_all(stream, content)

    monkeypatch.setattr(journal, "write_all", write)
    with pytest.raises(UserError, match=r"No space left.*kept in .*out\.partial"):
        back_translate(settings)
    assert not settings.output.exists()
    room = 1000
    back_translate(settings)
    assert settings.output.read_text() == expected(settings)
    assert len(translated(settings)) == 7


def test_damaged_text_is_not_written_out(settings: BackTranslateSettings) -> None:
    assert killed_at(20, lambda: back_translate(settings))
    lines = journal.partial_folder(settings.output) / "lines"
    lines.write_bytes(b"X" + lines.read_bytes()[1:])
    with pytest.raises(UserError, match="is damaged; remove"):
        back_translate(settings)
    assert not settings.output.exists()


@pytest.mark.parametrize("shards", [2, 4, 11])
def test_shards_join_to_what_one_call_writes(settings: BackTranslateSettings, shards: int) -> None:
    alone = back_translate(settings).report
    settings.output.unlink()
    sharded = replace(settings, num_shards=shards)
    for shard in range(shards):
        back_translate(replace(sharded, shard_id=shard))
    parts = sorted(settings.output.parent.glob(f"out.*of{shards}"))
    assert "".join(part.read_text() for part in parts) == expected(settings)
    merged = merge_shards(sharded).report
    assert settings.output.read_text() == expected(settings)
    assert merged["sums"] == alone["sums"] and merged["self_bleu"] == alone["self_bleu"]
    assert read_report(settings.output) == merged


def test_shards_that_do_not_belong_together_are_not_joined(settings: BackTranslateSettings) -> None:
    sharded = replace(settings, num_shards=2)
    back_translate(sharded)
    with pytest.raises(UserError, match="out.1of2 is not there"):
        merge_shards(sharded)
    back_translate(replace(sharded, shard_id=1, seed=9))
    with pytest.raises(UserError, match="out.1of2 was made from"):
        merge_shards(sharded)
    back_translate(replace(sharded, shard_id=1, overwrite=True))
    part = settings.output.with_name("out.1of2")
    part.write_text(part.read_text() + "one more\n")
    with pytest.raises(UserError, match="24 lines, not 23"):
        merge_shards(sharded)
    assert not settings.output.exists()
    with pytest.raises(UserError, match="needs the --num-shards"):
        merge_shards(settings)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"output": "no/out"}, "make it first"),
        ({"output": ""}, "is a folder"),
        ({"output": "text"}, "is the input"),
        ({"input": "nothing"}, "no such file"),
        ({"device": "tpu9"}, "--device tpu9"),
        ({"shard_id": 1}, "--shard-id 1"),
        ({"fp16": True, "device": "cpu"}, "needs a GPU"),
    ],
)
def test_mistakes_are_found_before_anything_is_written(
    settings: BackTranslateSettings, change: dict[str, Any], told: str
) -> None:
    folder = settings.input.parent
    change = {name: folder / value if name in ("output", "input") else value for name, value in change.items()}
    with pytest.raises(UserError, match=told):
        back_translate(replace(settings, **change))
    assert [path.name for path in folder.iterdir()] == ["text"]
