"""``prepare``: raw text to a folder that stock ``masked_lm`` and this plugin train on.

read -> canonical text -> train / valid by document -> tokenizer -> fairseq's binarizer -> dict.txt, clear.json
"""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from fairseq_clear.errors import UserError
from fairseq_clear.output_folder import check_destination, output_folder
from fairseq_clear.preparation.binarize import binarize_parts, count_ids
from fairseq_clear.preparation.manifest import content_hash, write_manifests
from fairseq_clear.preparation.paraphrases import (
    aligned_splits,
    complete_folders,
    describe,
    link,
    make_parts,
    total_counts,
)
from fairseq_clear.preparation.reports import PrepareReport, SplitCounts
from fairseq_clear.preparation.settings import PrepareSettings
from fairseq_clear.preparation.sources import TextSource, check_outside, find_sources
from fairseq_clear.preparation.staging import (
    Sample,
    Staged,
    TextParts,
    choose_exactly,
    deal_out,
    held_out_documents,
    sample_sentences,
    stage_lines,
)
from fairseq_clear.preparation.tokenizer_training import check_tokenizer_files, install_tokenizer
from fairseq_clear.text.data_folders import TOKENIZERS
from fairseq_clear.text.vocabulary import build_dictionary, keeps_mapping, load_dictionary

HOLD_OUT_STREAM, SAMPLE_STREAM, SUBSET_STREAM = 0, 1, 2  # independent random streams of one seed
MIN_PART_BYTES, MAX_PART_BYTES = 1 << 18, 1 << 26
PARTS_PER_WORKER = 4


@dataclass(frozen=True)
class Texts:
    """Canonical text, dealt out: a target for each shard, one for validation, the tokenizer's sample."""

    train: list[TextParts]
    valid: TextParts
    sample: Path | None


def prepare(settings: PrepareSettings) -> PrepareReport:
    """Make ``settings.dest``.

    Each of the folders it makes (``dest``, or ``dest/shard0`` ...) holds the tokenizer's files, ``dict.txt``,
    ``{train,valid}.{bin,idx}`` in fairseq's mmap format (a line an item with its ``</s>``, blank lines between
    documents) and ``clear.json``; with paraphrases also ``paraphrase/NAME``, data folders of as many lines. Progress bars
    appear on a terminal.

    Returns:
        Counts over all shards.

    Raises:
        UserError: anything wrong with settings, inputs, tokenizer or disk; then nothing is left written.
    """
    began = time.monotonic()
    source, valid = check(settings)
    try:
        with output_folder(settings.dest, settings.overwrite) as folder:
            work = folder / "work"
            work.mkdir()
            texts = _stage(settings, source, valid, work)
            report = _build(settings, texts, folder, work, began)
            shutil.rmtree(work)
    except OSError as error:
        where = error.filename or settings.dest
        raise UserError(f"{where}: {error.strerror or error}; nothing was kept, mend it and run again") from error
    return report


def check(settings: PrepareSettings) -> tuple[TextSource, TextSource | None]:
    """Find every mistake that can be found without reading the corpus."""
    settings.check()
    source, valid = find_sources(settings)
    check_destination(settings.dest, settings.overwrite)
    check_outside(settings.dest, [*source.paths, *(valid.paths if valid else [])])
    check_tokenizer_files(settings)
    return source, valid


def stage_corpus(settings: PrepareSettings, source: TextSource, work: Path) -> Staged:
    """Read a corpus into canonical text on disk, or the sample of it that is asked for."""
    staged = _read(source, work / "input.txt")
    if settings.sample is None:
        return staged
    sampled = sample_sentences(staged, settings.sample, work / "sampled.txt", _random(settings.seed, SUBSET_STREAM))
    staged.path.unlink()
    return sampled


def _stage(settings: PrepareSettings, source: TextSource, valid: TextSource | None, work: Path) -> Texts:
    """Read the inputs into canonical text on disk and deal its documents out."""
    staged = stage_corpus(settings, source, work)
    staged_valid = _read(valid, work / "valid.txt") if valid else None
    held_out: Iterator[bool] = repeat(False)
    documents = training_documents = staged.lengths.documents
    if staged_valid is None:
        chosen = held_out_documents(documents, settings.valid_share)
        training_documents -= chosen
        held_out = choose_exactly(chosen, documents, _random(settings.seed, HOLD_OUT_STREAM))
    if training_documents < settings.shards:
        raise UserError(f"--shards {settings.shards}: more than the {training_documents} training documents")
    total = staged.size + (staged_valid.size if staged_valid else 0)
    size = min(max(total // (settings.workers * PARTS_PER_WORKER), MIN_PART_BYTES), MAX_PART_BYTES)
    names = list(dict.fromkeys(name for name, _ in settings.paraphrase))
    train = [make_parts(work, f"train{shard}", size, names) for shard in range(settings.shards)]
    target = make_parts(work, "valid", size, names)
    sample = None
    if settings.trains_tokenizer:
        budget = settings.spm_sample_mb * 1e6
        sample = Sample(work / "sample.txt", staged.size, budget, _random(settings.seed, SAMPLE_STREAM))
    deal_out(staged, train, target, held_out, sample)
    staged.path.unlink()
    if staged_valid is not None:
        deal_out(staged_valid, [target], None, repeat(False), None)
        staged_valid.path.unlink()
    return Texts(train, target, sample.path if sample else None)


def _read(source: TextSource, path: Path) -> Staged:
    names = ", ".join(map(str, source.paths))
    with _progress_bar("reading", sum(one.stat().st_size for one in source.paths if one.is_file())) as progress:
        return stage_lines(source.lines(progress), path, names)


def _build(settings: PrepareSettings, texts: Texts, folder: Path, work: Path, began: float) -> PrepareReport:
    """Make tokenizer, datasets, dictionary and manifest in ``folder`` from dealt-out text."""
    folders = [folder] if settings.shards == 1 else [folder / f"shard{shard}" for shard in range(settings.shards)]
    for shard in folders:
        shard.mkdir(exist_ok=True)
    kind, names = install_tokenizer(settings, folders[0], texts.sample)
    tokenizer = TOKENIZERS[kind]([str(folders[0] / name) for name in names])
    given = settings.given_dictionary
    dictionary = load_dictionary(given) if given else build_dictionary(tokenizer)
    hashes = [content_hash(train, texts.valid) for train in texts.train]
    splits = {shard / "train": train.parts for shard, train in zip(folders, texts.train, strict=True)}
    splits[folders[0] / "valid"] = texts.valid.parts
    splits |= aligned_splits(folders, texts.train, texts.valid)
    text_bytes = sum(part.stat().st_size for parts in splits.values() for part in parts)
    with _progress_bar("binarizing", text_bytes) as progress:
        binarize_parts(splits, tokenizer, dictionary, settings.workers, progress)

    ids = [count_ids(shard / "train", len(dictionary)) for shard in folders]
    valid_ids = count_ids(folders[0] / "valid", len(dictionary))
    if given:
        shutil.copyfile(given, folders[0] / "dict.txt")
    elif kind == "hf":  # the same file for every text, so that it is the imported checkpoint's
        dictionary.save(str(folders[0] / "dict.txt"))
    else:
        dictionary.count = np.sum(ids, axis=0).tolist()
        dictionary.save(str(folders[0] / "dict.txt"))
    for shard in folders[1:]:
        for name in [*names, "dict.txt", "valid.bin", "valid.idx"]:
            link(folders[0] / name, shard / name)

    complete_folders(folders, list(texts.valid.paraphrases))
    aligned = [
        describe(shard, train, texts.valid, dictionary) for shard, train in zip(folders, texts.train, strict=True)
    ]
    unknown = dictionary.unk()
    valid_counts = _counts(texts.valid, valid_ids, unknown)
    counts = [_counts(train, found, unknown) for train, found in zip(texts.train, ids, strict=True)]
    tokenizer_entry = {"kind": kind, "files": names, "id_offset": 1 if keeps_mapping(tokenizer, dictionary) else None}
    seconds = time.monotonic() - began
    total = write_manifests(folder, folders, settings, tokenizer_entry, hashes, counts, valid_counts, seconds, aligned)
    paraphrases = total_counts(texts.train, texts.valid)
    return PrepareReport(settings.dest, total, len(dictionary), seconds, paraphrases)


def _counts(text: TextParts, ids: NDArray[np.int64], unknown: int) -> SplitCounts:
    return SplitCounts(text.lengths, int(ids.sum()), int(ids[unknown]))


def _random(seed: int, stream: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence([seed, stream]))


@contextmanager
def _progress_bar(what: str, size: int) -> Iterator[Callable[[int], object]]:
    """A bar over bytes, on a terminal only."""
    with tqdm(total=size, desc=what, unit="B", unit_scale=True, disable=None, leave=False) as bar:
        yield bar.update
