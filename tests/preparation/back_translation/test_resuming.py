"""A run that is killed at any instant at which something reaches the disk, and rerun, ends like an undisturbed one."""

import errno
import gc
import json
import os
import shutil
import signal
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairseq_clear import files
from fairseq_clear.errors import UserError
from fairseq_clear.preparation.back_translation import finished_chunks, round_trip
from fairseq_clear.preparation.back_translation.finished_chunks import open_chunks, partial_folder
from fairseq_clear.preparation.back_translation.round_trip import (
    REPORT_SUFFIX,
    back_translate,
    merge_shards,
    read_report,
)
from fairseq_clear.preparation.back_translation.translating import ChunkResult
from fairseq_clear.preparation.back_translation.translation_report import compare
from fairseq_clear.preparation.back_translation.translation_settings import BackTranslateSettings, ModelSource
from fairseq_clear.preparation.back_translation.translator import clean_line

LINES, CHUNKS = 14, 4


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BackTranslateSettings:
    """A run in chunks of 4 lines whose translation is to write in capitals, and to note each chunk in ``calls``."""
    text = tmp_path / "text"
    text.write_text("".join("\n" if number % 5 == 0 else f"line {number} é\n" for number in range(LINES)))

    def translate(settings: BackTranslateSettings, chunks: Any, show: Any, count: int) -> Iterator[ChunkResult]:
        for number, lines in sorted(chunks, key=lambda chunk: (chunk[0] % 3, chunk[0])):  # in any order
            with open(tmp_path / "calls", "a") as calls:
                calls.write(f"{number}\n")
            originals = [clean_line(line) for line in lines]
            results = [line.upper() for line in originals]
            counts = Counter(lines=len(lines), blank=originals.count("")) + compare(originals, results, "en")
            yield ChunkResult(number, results, counts)

    monkeypatch.setattr(round_trip, "translate_chunks", translate)
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # slow, and a killed process leaves the same files without it
    monkeypatch.setattr(round_trip, "identity", lambda settings, which: {"model.pt": getattr(settings, which).path})
    monkeypatch.setattr(round_trip, "check_flags", lambda settings: None)
    return BackTranslateSettings(
        input=text, output=tmp_path / "out", forward=ModelSource("f"), backward=ModelSource("b"), chunk_lines=4
    )


def translated(settings: BackTranslateSettings) -> list[int]:
    calls = settings.input.with_name("calls")
    return [int(line) for line in calls.read_text().split()] if calls.exists() else []


def expected(settings: BackTranslateSettings) -> str:
    return settings.input.read_text().upper()


def killed_at(instant: int, work: Callable[[], object]) -> bool:
    """Do the work in a process that kills itself just before the n-th instant; whether it was killed."""
    gc.collect()  # a child that takes a translator of CTranslate2 apart waits for threads that it does not have
    child = os.fork()
    if child == 0:
        try:
            _arm(instant)
            work()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def _arm(instant: int) -> None:
    """An instant is a sync (half of the file is written when the kill comes), a rename, a file or folder removed."""
    passed = 0

    def before(function: Callable[..., Any]) -> Callable[..., Any]:
        def armed(*args: Any, **kwargs: Any) -> Any:
            nonlocal passed
            passed += 1
            if passed == instant:
                if isinstance(args[0], int) and stat.S_ISREG(os.fstat(args[0]).st_mode):
                    os.ftruncate(args[0], os.fstat(args[0]).st_size // 2)
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return armed

    os.fsync, os.replace, os.unlink = before(os.fsync), before(os.replace), before(os.unlink)
    shutil.rmtree = before(shutil.rmtree)


def finished(settings: BackTranslateSettings) -> int:
    """Number of chunks that are on disk."""
    return len(list(partial_folder(settings.output).glob("chunk*")))


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
        before, kept = len(translated(settings)), finished(settings)
        was_written = settings.output.exists()
        outcome = back_translate(settings)
        assert settings.output.read_text() == expected(settings)
        # at most the one chunk that was being written is translated again
        assert len(translated(settings)) == before + (0 if was_written else CHUNKS - kept)
        assert kept >= before - 1 or was_written
        assert set(translated(settings)) == set(range(CHUNKS))
        assert outcome.report["lines"] == LINES and outcome.report["blank"] == 3
        names = {"text", "calls", "out", f"out{REPORT_SUFFIX}", "out.report.txt"}
        assert {path.name for path in settings.input.parent.iterdir()} == names
    assert instant > 18


@pytest.mark.slow
def test_kill_again_and_again(settings: BackTranslateSettings) -> None:
    kills = 0
    while killed_at(5 + kills, lambda: back_translate(settings)):
        kills += 1
    assert kills >= 5
    assert settings.output.read_text() == expected(settings)
    assert len(translated(settings)) <= CHUNKS + kills


@pytest.mark.parametrize("is_checked", [True, False])
def test_a_torn_chunk_is_seen_by_its_hash(
    settings: BackTranslateSettings, monkeypatch: pytest.MonkeyPatch, is_checked: bool
) -> None:
    """The control: a reader that does not compare the hash writes the torn text out."""
    assert killed_at(9, lambda: back_translate(settings))
    chunk = min(partial_folder(settings.output).glob("chunk*"))
    chunk.write_bytes(chunk.read_bytes()[:-4])
    before, kept = len(translated(settings)), finished(settings)
    if not is_checked:

        def trusting(path: Path) -> Any:
            head, _, text = path.read_bytes().partition(b"\n")
            return Counter(json.loads(head)["counts"]), text

        monkeypatch.setattr(finished_chunks, "_read_chunk", trusting)
    back_translate(settings)
    assert (settings.output.read_text() == expected(settings)) == is_checked
    assert len(translated(settings)) == before + CHUNKS - kept + is_checked


def test_finished_run_has_nothing_to_do(settings: BackTranslateSettings) -> None:
    assert not back_translate(settings).was_complete
    again = back_translate(settings)
    assert again.was_complete and "nothing was translated" in again.summary()
    assert len(translated(settings)) == CHUNKS
    with pytest.raises(UserError, match="exists already, and not from this"):
        back_translate(replace(settings, seed=2))
    assert not back_translate(replace(settings, seed=2, overwrite=True)).was_complete


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"seed": 2}, "seed: 1, now 2"),
        ({"max_tokens": 7}, "max_tokens: 4096, now 7"),
        ({"backward": ModelSource("other")}, "backward: other model.pt"),
        ({}, "input's text has changed"),
    ],
)
def test_other_settings_do_not_go_on(settings: BackTranslateSettings, change: dict[str, Any], told: str) -> None:
    assert killed_at(9, lambda: back_translate(settings))
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
        patch.setattr(round_trip, "translate_chunks", fail)
        back_translate(settings)
    back_translate(replace(settings, seed=2))
    assert settings.output.read_text() == expected(settings)


def test_overwrite_goes_on_with_the_same_settings(settings: BackTranslateSettings) -> None:
    assert killed_at(9, lambda: back_translate(settings))
    before = len(translated(settings))
    back_translate(replace(settings, overwrite=True))
    assert before >= 2 and len(translated(settings)) <= CHUNKS + 1


def test_second_process_is_refused(settings: BackTranslateSettings) -> None:
    with (
        open_chunks(settings.output, {}, overwrite=False),
        pytest.raises(UserError, match=rf"process {os.getpid()} on .* is writing it"),
    ):
        back_translate(settings)


def test_full_disk_keeps_what_was_done(settings: BackTranslateSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    sync = os.fsync
    left = 6

    def full(handle: int) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            os.ftruncate(handle, 3)
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(handle)

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(UserError, match=r"No space left.*kept in .*out\.partial"):
        back_translate(settings)
    assert not settings.output.exists()
    kept, left = finished(settings), 1000
    back_translate(settings)
    assert settings.output.read_text() == expected(settings)
    assert kept == 2 and len(translated(settings)) == CHUNKS + 1


def test_text_that_changes_while_it_is_joined_is_not_written_out(
    settings: BackTranslateSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = finished_chunks.FinishedChunks.add

    def damaged(self: Any, chunk: int, *others: Any) -> None:
        add(self, chunk, *others)
        with open(self.folder / f"chunk{chunk}", "ab") as stream:
            stream.write(b"X")

    monkeypatch.setattr(finished_chunks.FinishedChunks, "add", damaged)
    with pytest.raises(UserError, match="chunk0: was damaged after it was written; rerun"):
        back_translate(settings)
    assert not settings.output.exists()


@pytest.mark.parametrize("shards", [2, 7])
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


def test_shards_that_do_not_belong_together_are_not_joined(
    settings: BackTranslateSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    sharded = replace(settings, num_shards=2)
    back_translate(sharded)
    with pytest.raises(UserError, match="out.1of2 does not exist"):
        merge_shards(sharded)
    back_translate(replace(sharded, shard_id=1, seed=9))
    with pytest.raises(UserError, match="out.1of2 was made from"):
        merge_shards(sharded)
    with monkeypatch.context() as patch:  # counts of an older version, which cannot be added up with these
        patch.setattr(round_trip, "COUNTS_FORMAT", 1)
        back_translate(replace(sharded, shard_id=1, overwrite=True))
    with pytest.raises(UserError, match="out.1of2 was made from"):
        merge_shards(sharded)
    back_translate(replace(sharded, shard_id=1, overwrite=True))
    part = settings.output.with_name("out.1of2")
    part.write_text(part.read_text() + "one more\n")
    with pytest.raises(UserError, match="15 lines, not 14"):
        merge_shards(sharded)
    assert not settings.output.exists()
    with pytest.raises(UserError, match="give the --num-shards"):
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
