"""Texts aligned to the corpus, such as back-translations: line n of each says what line n of the input says.

An original and its paraphrases are one line, parted by a character that no text holds, from reading until ``TextParts``
writes them to files of their own: whatever moves a sentence (blank lines, hold-out, shards, samples) moves all of it.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from itertools import groupby, zip_longest
from pathlib import Path
from re import Pattern
from typing import TYPE_CHECKING, Any

from fairseq_clear.errors import UserError
from fairseq_clear.files import CorpusFile, corpus_file, read_lines
from fairseq_clear.preparation.binarize import count_ids
from fairseq_clear.preparation.corpus import Unit, canonical_lines, document_pattern, is_visible
from fairseq_clear.preparation.manifest import content_hash
from fairseq_clear.preparation.reports import ParaphraseCounts
from fairseq_clear.preparation.settings import PrepareSettings
from fairseq_clear.preparation.staging import SEPARATOR, TextParts
from fairseq_clear.views.paraphrase_views import PARAPHRASES

if TYPE_CHECKING:
    from fairseq.data import Dictionary

Progress = Callable[[int], object]
_SEPARATOR = SEPARATOR.decode("ascii")


def aligned_files(
    pairs: Sequence[tuple[str, Path]], inputs: Sequence[CorpusFile], *, flag: str
) -> dict[str, list[CorpusFile]]:
    """Return for each name its files, one for each input, in order.

    Raises:
        UserError: an input or a paraphrase that is not .txt, a missing file, more or fewer files than inputs.
    """
    found: dict[str, list[CorpusFile]] = {}
    for name, path in pairs:
        found.setdefault(name, []).append(corpus_file(path))
    if found:
        for file in [*inputs, *(file for files in found.values() for file in files)]:
            if file.is_jsonl:
                raise UserError(
                    f"{file.path}: {flag} aligns lines of .txt files, not records; convert it, one text a line"
                )
    for name, files in found.items():
        if len(files) != len(inputs):
            raise UserError(
                f"{flag}: {len(files)} files for {name}, but {len(inputs)} inputs; give {name}=FILE once for each, in "
                "their order"
            )
    return found


def aligned_lines(
    inputs: Sequence[CorpusFile],
    paraphrases: dict[str, list[CorpusFile]],
    settings: PrepareSettings,
    progress: Progress | None = None,
) -> Iterator[str]:
    """Yield the canonical lines of the inputs, each with its paraphrases.

    Raises:
        UserError: whatever is wrong with a file; files of unequal numbers of lines.
    """
    pattern = document_pattern(settings.document_start)

    def units() -> Iterator[Unit]:
        for file, *others in zip(inputs, *paraphrases.values(), strict=True):
            yield from aligned_units(file, others, pattern, progress)
            yield None

    return canonical_lines(units())


def aligned_units(
    file: CorpusFile,
    others: Sequence[CorpusFile],
    document_start: Pattern[str] | None,
    progress: Progress | None = None,
) -> Iterator[Unit]:
    """Yield what ``corpus.text_units`` yields for the first file, each visible line with those of the others.

    A line ends with LF or CRLF, as ``back-translate`` counts lines; a CR inside is a space.
    """
    readers = [_whole_lines(one, progress) for one in (file, *others)]
    for number, row in enumerate(zip_longest(*readers)):
        if None in row:
            counts = [
                number + (line is not None) + sum(1 for _ in reader) for line, reader in zip(row, readers, strict=True)
            ]
            _refuse([file, *others], counts)
        line, *paraphrases = row
        if document_start is not None and document_start.search(line):
            yield None
        text = line.strip()
        if is_visible(text):
            yield _SEPARATOR.join([text, *(one.strip() if is_visible(one) else "" for one in paraphrases)])
        else:
            yield text if text or document_start is not None else None


def _whole_lines(file: CorpusFile, progress: Progress | None) -> Iterator[str]:
    for _, parts in groupby(read_lines(file, progress), key=lambda part: part[0]):
        yield " ".join(text for _, text in parts)


def _refuse(files: Sequence[CorpusFile], counts: Sequence[int]) -> None:
    other = next(index for index, count in enumerate(counts) if count != counts[0])
    raise UserError(
        f"{files[other].path}: {counts[other]:,} lines, but {files[0].path} has {counts[0]:,}; line n of one must say what "
        "line n of the other says"
    )


def make_parts(folder: Path, name: str, part_bytes: int, paraphrases: Sequence[str]) -> TextParts:
    """Return where a split goes, with the place of each of its paraphrases."""
    aligned = {one: TextParts(folder / PARAPHRASES / one / name, part_bytes) for one in paraphrases}
    return TextParts(folder / name, part_bytes, aligned)


def aligned_splits(folders: Sequence[Path], train: Sequence[TextParts], valid: TextParts) -> dict[Path, list[Path]]:
    """Make ``FOLDER/paraphrase/NAME`` in every folder; return data set prefix -> text parts, ``valid`` for the first alone."""
    splits = {}
    for folder, parts in zip(folders, train, strict=True):
        for name, aligned in parts.paraphrases.items():
            (folder / PARAPHRASES / name).mkdir(parents=True)
            splits[folder / PARAPHRASES / name / "train"] = aligned.parts
    for name, aligned in valid.paraphrases.items():
        splits[folders[0] / PARAPHRASES / name / "valid"] = aligned.parts
    return splits


def complete_folders(folders: Sequence[Path], names: Sequence[str]) -> None:
    """Give every ``FOLDER/paraphrase/NAME`` the dictionary and the validation data, so that it is a data folder."""
    for name in names:
        first = folders[0] / PARAPHRASES / name
        for folder in folders:
            link(folder / "dict.txt", folder / PARAPHRASES / name / "dict.txt")
        for folder in folders[1:]:
            for file in ("valid.bin", "valid.idx"):
                link(first / file, folder / PARAPHRASES / name / file)


def describe(folder: Path, train: TextParts, valid: TextParts, dictionary: "Dictionary") -> dict[str, Any]:
    """Return what ``clear.json`` says of the aligned texts of a folder: by name, counts and a hash of the text."""
    described = {}
    for name in train.paraphrases:
        splits = {}
        both = {"train": train.paraphrases[name], "valid": valid.paraphrases[name]}
        for split, parts in both.items():
            ids = count_ids(folder / PARAPHRASES / name / split, len(dictionary))
            tokens, unknown = int(ids.sum()), int(ids[dictionary.unk()])
            splits[split] = asdict(ParaphraseCounts(parts.sentences, parts.blank, tokens, unknown))
        described[name] = {"content_hash": content_hash(both["train"], both["valid"]), "splits": splits}
    return described


def total_counts(train: Sequence[TextParts], valid: TextParts) -> dict[str, tuple[int, int]]:
    """Return for each name (sentences, blank ones) over all shards and ``valid``."""
    totals = {}
    for name in valid.paraphrases:
        parts = [*(one.paraphrases[name] for one in train), valid.paraphrases[name]]
        totals[name] = (sum(one.sentences for one in parts), sum(one.blank for one in parts))
    return totals


def link(source: Path, copy: Path) -> None:
    """Have one more name for a file, or a copy of it where a file system has no hard links."""
    try:
        os.link(source, copy)
    except OSError:
        shutil.copyfile(source, copy)
