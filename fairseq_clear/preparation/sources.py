"""The text that ``prepare`` reads: files, and other files aligned to them. All are checked before any is read."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fairseq_clear.errors import UserError
from fairseq_clear.files import CorpusFile, corpus_files
from fairseq_clear.preparation.corpus import corpus_lines, document_pattern
from fairseq_clear.preparation.paraphrases import aligned_files, aligned_lines
from fairseq_clear.preparation.sentences import sentence_splitter
from fairseq_clear.preparation.settings import PrepareSettings


@dataclass(frozen=True)
class TextSource:
    """Files, and by name those aligned to them."""

    files: list[CorpusFile]
    settings: PrepareSettings
    paraphrases: dict[str, list[CorpusFile]] = field(default_factory=dict)

    @property
    def paths(self) -> list[Path]:
        """Every file that it reads."""
        return [file.path for file in [*self.files, *(one for files in self.paraphrases.values() for one in files)]]

    def lines(self, progress: Callable[[int], object]) -> Iterator[str]:
        """Yield its canonical lines, with paraphrases as ``aligned_lines`` does."""
        if self.paraphrases:
            return aligned_lines(self.files, self.paraphrases, self.settings, progress)
        return corpus_lines(self.files, self.settings, progress)


def find_sources(settings: PrepareSettings) -> tuple[TextSource, TextSource | None]:
    """Return the corpus and the validation text, if there is any.

    Raises:
        UserError: every mistake that can be found without reading them.
    """
    if not settings.inputs:
        raise UserError("no input; name .txt or .jsonl files, or folders of them")
    files = corpus_files(settings.inputs)
    valid_files = corpus_files(settings.valid)
    for file in valid_files:
        if any(os.path.samefile(file.path, other.path) for other in files):
            raise UserError(f"{file.path}: is both input and --valid; validation text must not be trained on")
    document_pattern(settings.document_start)
    if settings.split_sentences is not None:
        sentence_splitter(settings.language)
    source = TextSource(files, settings, aligned_files(settings.paraphrase, files, flag="--paraphrase"))
    if not valid_files:
        return source, None
    aligned = aligned_files(settings.valid_paraphrase, valid_files, flag="--valid-paraphrase")
    # in the order of the names of the inputs' paraphrases, which every line has
    aligned = {name: aligned[name] for name, _ in settings.paraphrase}
    return source, TextSource(valid_files, settings, aligned)


def check_outside(dest: Path, paths: list[Path]) -> None:
    """UserError for a file that writing ``dest`` would replace."""
    place = Path(os.path.realpath(dest))
    for path in paths:
        real = Path(os.path.realpath(path))
        if place == real or place in real.parents:
            raise UserError(f"{path}: lies in --dest {dest}, which would be replaced; move it")
