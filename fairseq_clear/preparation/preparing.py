"""Converts raw text to a data folder for fairseq's ``masked_lm`` and for this plugin.

Read -> canonical text -> train / valid by document -> tokenizer -> ids, dict.txt, clear.json.
"""

import hashlib
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from fairseq_clear.errors import UserError
from fairseq_clear.files import check_output_file, hash_file, versions, write_json
from fairseq_clear.output_folder import DATA_FOLDER, check_destination, check_outside, output_folder, partial_folder
from fairseq_clear.preparation.binarize import Dataset, Encoder, SplitCounts, binarize
from fairseq_clear.preparation.corpus_reading import TextSource, find_sources, warn_if_wrapped
from fairseq_clear.preparation.prepare_settings import ORIGINAL, PrepareSettings
from fairseq_clear.preparation.staging import DocumentLengths, Lines, Staged, held_out_documents, stage_rows
from fairseq_clear.preparation.tokenizer_training import check_tokenizer_files, install_tokenizer
from fairseq_clear.text.data_folders import CLEAR_FORMAT, CLEAR_JSON, DICTIONARY, TOKENIZERS
from fairseq_clear.text.vocabulary import build_dictionary, load_dictionary
from fairseq_clear.views.paraphrase_views import PARAPHRASES

BAR: dict[str, Any] = {"unit": "B", "unit_scale": True, "disable": None, "leave": False}  # only on a terminal

Texts = dict[str, Dataset]  # a text of a split and its paraphrases by name, the text itself first


@dataclass(frozen=True)
class PrepareReport:
    """Result of ``prepare``: the folder or file, lengths of the training documents, counts over all shards."""

    dest: Path
    seconds: float
    lengths: DocumentLengths
    splits: dict[str, SplitCounts] = field(default_factory=dict)
    vocabulary: int = 0

    def summary(self) -> str:
        """The summary line to print."""
        parts = [] if self.splits else [self.lengths.summary()]
        for name, counts in self.splits.items():
            rate = 100 * counts.unknown / max(counts.tokens, 1)
            parts.append(f"{name}: {counts.lengths.summary()}, {counts.tokens:,} tokens, {rate:.3f} % unknown")
        if self.vocabulary:
            parts.append(f"dict.txt: {self.vocabulary:,} symbols")
        return " | ".join([str(self.dest), *parts, f"{self.seconds:.1f} s"])


def prepare(settings: PrepareSettings) -> PrepareReport:
    """Write the data folder ``settings.dest``.

    Each folder (``dest``, or ``dest/shard0`` ...) gets the files of the tokenizer, ``dict.txt``,
    ``{train,valid}.{bin,idx}`` in fairseq's mmap format (each line is an item that ends in ``</s>``, with blank lines between
    documents), ``clear.json``, and for each paraphrase ``paraphrase/NAME``, a data folder with the same number of lines. On a
    terminal, progress bars are shown.

    Raises:
        UserError: an error in settings, inputs, tokenizer or disk; then nothing is written.
    """
    began = time.monotonic()
    settings.check()
    settings = settings.with_recorded_files()
    source, valid = find_sources(settings)
    check_destination(settings.dest, settings.overwrite, DATA_FOLDER, for_fairseq=True)
    check_outside(settings.dest, [*source.paths, *(valid.paths if valid else [])])
    check_tokenizer_files(settings)
    with output_folder(settings.dest, settings.overwrite, DATA_FOLDER) as folder:
        work = folder / "work"
        work.mkdir()
        staged = _read(source, work / "input")
        staged_valid = _read(valid, work / "valid") if valid else None
        documents = staged.lengths.total()
        held_out = 0 if staged_valid else held_out_documents(documents, settings.valid_share)
        if documents - held_out < settings.shards:
            raise UserError(f"--shards {settings.shards}: more than the {documents - held_out} training documents")
        staged = replace(staged, seed=settings.seed, held_out=held_out)
        report = _build(settings, staged, staged_valid, folder, began)
        shutil.rmtree(work)
    return report


def write_text(settings: PrepareSettings) -> PrepareReport:
    """Write the canonical text of the inputs to the file ``settings.dest``, atomically (``--text-only``).

    The text has one sentence per line and a blank line between documents.

    Raises:
        UserError: an error in settings, inputs or disk.
    """
    began = time.monotonic()
    settings.check()
    dest = Path(os.path.realpath(settings.dest))
    if dest.suffix != ".txt":
        raise UserError(f"--dest {settings.dest}: --text-only writes a text file; give a name that ends in .txt")
    check_output_file(dest, settings.overwrite, flag="--dest")
    source, valid = find_sources(settings)
    if valid is not None:
        raise UserError("--text-only: writes only the inputs; leave --valid out")
    check_outside(dest, source.paths)
    with partial_folder(dest) as (work, check_signals):
        staged = _read(source, work / "input")
        check_signals()
        os.replace(staged.paths[ORIGINAL], dest)
    return PrepareReport(settings.dest, time.monotonic() - began, staged.lengths)


def _read(source: TextSource, folder: Path) -> Staged:
    what = ", ".join(map(str, source.paths))
    with tqdm(desc="reading", total=sum(path.stat().st_size for path in source.paths), **BAR) as bar:
        rows = warn_if_wrapped(source.rows(bar.update))
        return stage_rows(rows, folder, [ORIGINAL, *source.paraphrases], what)


def _build(
    settings: PrepareSettings, staged: Staged, staged_valid: Staged | None, folder: Path, began: float
) -> PrepareReport:
    """Make tokenizer, data sets, dictionary and ``clear.json`` in ``folder`` from the staged text."""
    folders = [folder] if settings.shards == 1 else [folder / f"shard{shard}" for shard in range(settings.shards)]
    names = list(staged.paths)
    for shard in folders:
        for name in names:
            _place(shard, name).mkdir(parents=True, exist_ok=True)
    kind, files = install_tokenizer(settings, folders[0], staged)
    tokenizer: Any = TOKENIZERS[kind](*(folders[0] / file for file in files))
    given = settings.given_dictionary
    dictionary = load_dictionary(given) if given else build_dictionary(tokenizer)
    counts = np.zeros(len(dictionary), np.int64)
    encoder = Encoder(tokenizer, dictionary)

    def datasets(shard: Path, split: str, counts: NDArray[np.int64] | None) -> Texts:
        places = {name: _place(shard, name) / split for name in names}
        return {name: Dataset(place, encoder, counts if name == ORIGINAL else None) for name, place in places.items()}

    train = [datasets(shard, "train", counts) for shard in folders]
    valid = datasets(folders[0], "valid", None)
    size = staged.size + (staged_valid.size if staged_valid else 0)
    with tqdm(desc="binarizing", total=size, **BAR) as bar:
        binarize(_assign(staged, staged_valid, train, valid), encoder, size, settings.workers, bar.update)
    if given:
        shutil.copyfile(given, folders[0] / DICTIONARY)
    else:
        if kind != "hf":  # the dictionary of an imported tokenizer does not depend on the text
            dictionary.count = counts.tolist()
        dictionary.save(str(folders[0] / DICTIONARY))
    _link_shared(folders, names, files)
    seconds = time.monotonic() - began
    common = {
        "format": CLEAR_FORMAT,
        "tokenizer": {"kind": kind, "files": files},
        "vocabulary_hash": hash_file(folders[0] / DICTIONARY),
        "settings": asdict(settings),
        "versions": versions(),
        "seconds": round(seconds, 3),
    }
    total = sum((one[ORIGINAL].counts for one in train), SplitCounts())
    splits = {"train": total, "valid": valid[ORIGINAL].counts}
    contents = {shard: _describe(one, valid) for shard, one in zip(folders, train, strict=True)}
    _write_manifests(folder, common, contents, splits)
    return PrepareReport(settings.dest, seconds, total.lengths, splits, len(dictionary))


def _assign(
    staged: Staged, staged_valid: Staged | None, train: Sequence[Texts], valid: Texts
) -> Iterator[tuple[Sequence[Dataset], Iterator[Lines]]]:
    """Yield each document with its data sets: ``valid`` if it is held out, else the first shard with the least text."""
    for is_held_out, rows in staged.documents():
        texts = valid if is_held_out else min(train, key=lambda texts: texts[ORIGINAL].size)
        yield list(texts.values()), rows
    for _, rows in staged_valid.documents() if staged_valid else ():
        yield list(valid.values()), rows


def _write_manifests(
    folder: Path, common: dict[str, Any], contents: dict[Path, dict[str, Any]], splits: dict[str, SplitCounts]
) -> None:
    """Write ``clear.json`` of each data folder, and of the folder that holds them if there are several."""
    if len(contents) > 1:
        hashes = "\n".join(content["content_hash"] for content in contents.values())
        contents[folder] = {
            "shards": [shard.name for shard in contents],
            "content_hash": hashlib.sha256(hashes.encode()).hexdigest(),
            "splits": {split: one.as_json() for split, one in splits.items()},
        }
    for place, content in contents.items():
        write_json(place / CLEAR_JSON, {**common, **content})


def _place(folder: Path, name: str) -> Path:
    """The data folder of a text: ``folder``, or a paraphrase's folder in it."""
    return folder if name == ORIGINAL else folder / PARAPHRASES / name


def _link_shared(folders: Sequence[Path], names: Sequence[str], tokenizer_files: Sequence[str]) -> None:
    """Link the files that shards and paraphrases share, so that each is a complete data folder."""
    for shard in folders:
        for name in names:
            place = _place(shard, name)
            if place != folders[0]:
                _link(folders[0] / DICTIONARY, place / DICTIONARY)
            if shard != folders[0]:
                for file in ("valid.bin", "valid.idx", *(tokenizer_files if name == ORIGINAL else ())):
                    _link(_place(folders[0], name) / file, place / file)


def _link(source: Path, copy: Path) -> None:
    """Hard-link a file; copy it if the file system has no hard links."""
    try:
        os.link(source, copy)
    except OSError:
        shutil.copyfile(source, copy)


def _describe(train: Texts, valid: Texts) -> dict[str, Any]:
    """Describe a data folder for ``clear.json``: content hash, splits and paraphrases.

    The content hash is the SHA-256 of four lines: ``train``, SHA-256 of its text, ``valid``, SHA-256 of its text. The text is
    canonical, so the hash does not depend on the format of the inputs or on the tokenizer.
    """
    described = {}
    for name in train:
        splits = {"train": train[name], "valid": valid[name]}
        digests = "".join(f"{split}\n{text.digest.hexdigest()}\n" for split, text in splits.items())
        described[name] = {
            "content_hash": hashlib.sha256(digests.encode()).hexdigest(),
            "splits": {split: text.counts.as_json(name) for split, text in splits.items()},
        }
    original = described.pop(ORIGINAL)
    return {**original, "paraphrases": described} if described else original
