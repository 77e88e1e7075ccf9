"""``prepare --text-only``: the corpus as a text file, for ``back-translate`` and for ``prepare`` again."""

import os
import tempfile
import time
from pathlib import Path

from fairseq_clear.errors import UserError
from fairseq_clear.output_folder import signals_raise
from fairseq_clear.preparation.prepare import stage_corpus
from fairseq_clear.preparation.reports import TextReport
from fairseq_clear.preparation.settings import PrepareSettings
from fairseq_clear.preparation.sources import check_outside, find_sources


def write_text(settings: PrepareSettings) -> TextReport:
    """Write the canonical text of the inputs to ``settings.dest``: a sentence a line, a blank line between documents.

    The file appears whole or not at all.

    Raises:
        UserError: anything wrong with settings, inputs or disk.
    """
    began = time.monotonic()
    settings.check()
    dest = Path(os.path.realpath(settings.dest))
    if dest.suffix != ".txt":
        raise UserError(f"--dest {settings.dest}: --text-only writes a .txt file; name it so")
    if dest.is_dir() or (dest.exists() and not settings.overwrite):
        what = "is a folder" if dest.is_dir() else "exists already"
        raise UserError(f"{settings.dest}: {what}; choose another --dest, or replace a file with --overwrite")
    source, valid = find_sources(settings)
    if valid is not None:
        raise UserError("--text-only: writes the inputs alone; leave --valid out")
    check_outside(dest, source.paths)
    try:
        with (
            signals_raise(),
            tempfile.TemporaryDirectory(prefix=f".{dest.name}.partial.", dir=dest.parent) as work,
        ):
            staged = stage_corpus(settings, source, Path(work))
            os.replace(staged.path, dest)
    except OSError as error:
        raise UserError(f"{settings.dest}: {error.strerror or error}; nothing was written") from error
    return TextReport(settings.dest, staged.lengths, time.monotonic() - began)
