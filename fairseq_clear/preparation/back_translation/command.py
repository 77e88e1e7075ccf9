"""``back_translate``: a text file there and back, resumable, by one or several processes."""

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_clear.errors import UserError
from fairseq_clear.preparation.back_translation.atomic import remove_leftovers, write_atomically
from fairseq_clear.preparation.back_translation.files import identity
from fairseq_clear.preparation.back_translation.journal import Journal, open_journal, remove_partial
from fairseq_clear.preparation.back_translation.pool import translate_chunks
from fairseq_clear.preparation.back_translation.progress import Progress
from fairseq_clear.preparation.back_translation.reading import InputText, read_chunks, scan
from fairseq_clear.preparation.back_translation.report import as_json, build_report, report_text
from fairseq_clear.preparation.back_translation.roundtrip import choose_device
from fairseq_clear.preparation.back_translation.settings import PASSES, BackTranslateSettings
from fairseq_clear.preparation.back_translation.translating import check_splitter

__all__ = ["REPORT_SUFFIX", "Outcome", "back_translate", "prepare_run", "read_report", "shard_chunks", "write_output"]

REPORT_SUFFIX, TEXT_SUFFIX = ".report.json", ".report.txt"


@dataclass(frozen=True)
class Outcome:
    """What a call did: the file, its report, and whether it was there already."""

    output: Path
    report: dict[str, Any]
    was_complete: bool

    def summary(self) -> str:
        """The closing report."""
        if self.was_complete:
            return f"{self.output}: complete already, from the same input, models and settings; nothing to do"
        return f"{report_text(self.report)}\nwrote {self.output}, {self.output.name}{REPORT_SUFFIX} and {TEXT_SUFFIX}"


def back_translate(settings: BackTranslateSettings) -> Outcome:
    """Write ``settings.shard_output``, its report as JSON and as text.

    Chunks that an earlier call finished are not translated again. The output and the report appear whole, at the end.

    Raises:
        UserError: anything wrong with settings, input, models or disk; finished chunks are kept for the next call.
    """
    began = time.monotonic()
    text, deciding = prepare_run(settings)
    output = settings.shard_output
    done = _finished(output, deciding)
    if done is not None and not settings.overwrite:
        remove_partial(output)
        return Outcome(output, done, was_complete=True)
    if output.exists() and not settings.overwrite:
        raise UserError(
            f"--output {output}: exists already, and not from this input, models and settings; give another name, or "
            "replace it with --overwrite"
        )
    first, end = shard_chunks(settings, text)
    with open_journal(output, deciding, settings.overwrite) as journal:
        before = journal.counts["lines"]
        _translate(settings, text, journal, range(first, end))
        report = build_report(journal.counts, deciding, time.monotonic() - began, journal.counts["lines"] - before)
        write_output(output, journal.texts(range(first, end)), report)
        remove_partial(output)
    return Outcome(output, report, was_complete=False)


def prepare_run(settings: BackTranslateSettings) -> tuple[InputText, dict[str, Any]]:
    """Check everything that can be checked before a model is loaded; return the input and what decides the output.

    Raises:
        UserError: whatever is wrong.
    """
    settings.check()
    output = settings.shard_output
    if not output.parent.is_dir():
        raise UserError(f"--output {output}: there is no folder {output.parent}; make it first")
    if output.is_dir():
        raise UserError(f"--output {output}: is a folder; give the name of a file")
    if settings.input.exists() and output.exists() and output.samefile(settings.input):
        raise UserError(f"--output {output}: is the input; give another name")
    check_splitter(settings)
    choose_device(settings.device, settings.fp16)
    models = {which: identity(settings, which) for which in PASSES}
    text = scan(settings.input)
    deciding = settings.deciding() | models | {"input": text.digest, "input_lines": text.lines}
    return text, json.loads(json.dumps(deciding))


def shard_chunks(settings: BackTranslateSettings, text: InputText) -> tuple[int, int]:
    """First chunk of this shard, and the first after it; shards are contiguous and of equal size but for one chunk."""
    chunks = -(-text.lines // settings.chunk_lines)
    shard, shards = settings.shard_id, settings.num_shards
    return chunks * shard // shards, chunks * (shard + 1) // shards


def write_output(output: Path, parts: Iterable[bytes], report: dict[str, Any]) -> None:
    """Write the report, then the output: where the output is, its report is too."""
    told = {TEXT_SUFFIX: report_text(report) + "\n", REPORT_SUFFIX: as_json(report)}
    files: list[tuple[Path, Iterable[bytes]]] = [
        (output.with_name(output.name + suffix), [content.encode("utf-8")]) for suffix, content in told.items()
    ]
    for path, content in [*files, (output, parts)]:
        remove_leftovers(path)
        write_atomically(path, content)


def read_report(output: Path) -> dict[str, Any] | None:
    """The report beside an output; None if there is none that can be read."""
    try:
        report = json.loads(output.with_name(output.name + REPORT_SUFFIX).read_bytes())
    except (OSError, ValueError):
        return None
    return report if isinstance(report, dict) else None


def _finished(output: Path, deciding: dict[str, Any]) -> dict[str, Any] | None:
    """The report of an output that these very settings made."""
    report = read_report(output) if output.is_file() else None
    return report if report is not None and report.get("settings") == deciding else None


def _translate(settings: BackTranslateSettings, text: InputText, journal: Journal, chunks: range) -> None:
    """Translate the chunks that are not in the journal."""
    missing = [chunk for chunk in chunks if chunk not in journal.records]
    if not missing:
        return
    lines = min(chunks.stop * settings.chunk_lines, text.lines) - chunks.start * settings.chunk_lines
    todo = ((chunk, part) for chunk, part in _read(settings, missing) if chunk not in journal.records)
    with Progress(lines, journal.counts["lines"], settings.log_interval) as progress:
        for result in translate_chunks(settings, todo, progress.show, len(missing)):
            journal.append(result)


def _read(settings: BackTranslateSettings, missing: list[int]) -> Iterable[tuple[int, list[str]]]:
    return read_chunks(settings.input, settings.chunk_lines, missing[0], missing[-1] + 1)
