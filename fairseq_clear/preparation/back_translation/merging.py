"""Finished shards to one output, as a single call would have written it."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairseq_clear.errors import UserError
from fairseq_clear.preparation.back_translation.command import Outcome, prepare_run, read_report, write_output
from fairseq_clear.preparation.back_translation.journal import remove_partial
from fairseq_clear.preparation.back_translation.report import build_report
from fairseq_clear.preparation.back_translation.settings import BackTranslateSettings, shard_path

__all__ = ["merge_shards"]

BLOCK_BYTES = 1 << 20


def merge_shards(settings: BackTranslateSettings) -> Outcome:
    """Write ``settings.output`` from its shards, and one report over them; the shards stay.

    Raises:
        UserError: a shard is missing, unfinished, or of other settings or input.
    """
    began = time.monotonic()
    if settings.num_shards < 2:
        raise UserError(f"--merge: needs the --num-shards of the shards to join, not {settings.num_shards}")
    if settings.output.exists() and not settings.overwrite:
        raise UserError(f"--output {settings.output}: exists already; add --overwrite to replace it")
    text, deciding = prepare_run(replace(settings, shard_id=0))
    counts: Counter[str] = Counter()
    shards = [shard_path(settings.output, shard, settings.num_shards) for shard in range(settings.num_shards)]
    for shard, path in enumerate(shards):
        counts.update(_sums(path, deciding | {"shard_id": shard}))
    if counts["lines"] != text.lines:
        raise UserError(f"--merge: the shards hold {counts['lines']:,} lines, the input {text.lines:,}; make them anew")
    report = build_report(counts, {**deciding, "num_shards": 1}, time.monotonic() - began, 0)
    try:
        write_output(settings.output, _checked(_blocks(shards), text.lines), report)
    except OSError as error:
        raise UserError(f"--output {settings.output}: cannot write it ({error.strerror or error})") from None
    remove_partial(settings.output)
    return Outcome(settings.output, report, was_complete=False)


def _sums(path: Path, deciding: dict[str, Any]) -> dict[str, int]:
    if not path.is_file():
        raise UserError(f"--merge: {path} is not there; run its shard to the end first")
    report = read_report(path)
    if report is None or report.get("settings") != deciding:
        raise UserError(f"--merge: {path} was made from another input, other models or settings; make it anew")
    sums: dict[str, int] = report["sums"]
    return sums


def _blocks(paths: list[Path]) -> Iterator[bytes]:
    for path in paths:
        with open(path, "rb") as stream:
            while block := stream.read(BLOCK_BYTES):
                yield block


def _checked(blocks: Iterable[bytes], lines: int) -> Iterator[bytes]:
    """The blocks, and an error at their end unless they hold that many lines: then nothing is written."""
    found = 0
    for block in blocks:
        found += block.count(b"\n")
        yield block
    if found != lines:
        raise UserError(f"--merge: the shards hold {found:,} lines, not {lines:,}; one was changed since it was made")
