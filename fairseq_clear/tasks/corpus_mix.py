"""Reads ``--mix``, and checks that its data folders have the same vocabulary and tokenizer."""

import os
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_clear.data.mixed_dataset import MixedDataset
from fairseq_clear.errors import UserError
from fairseq_clear.files import hash_file
from fairseq_clear.text.data_folders import (
    CLEAR_JSON,
    DICTIONARY,
    check_vocabulary,
    data_folders,
    has_tokenizer,
    read_dictionary,
    recorded_tokenizer,
)

_WEIGHT = re.compile(r"\d+(\.\d*)?|\.\d+")


class Corpus(NamedTuple):
    """A corpus of a mix: its data folder and its exact weight."""

    folder: str
    weight: Fraction


def parse_mix(mix: str, data: str) -> list[Corpus]:
    """Read ``--mix FOLDER:WEIGHT,FOLDER:WEIGHT``.

    The corpora start with ``data``, the data folder of the run; without ``--mix`` there are none.

    Raises:
        UserError: the flag is malformed, names fewer than two folders, repeats a folder, or omits ``data``.
    """
    if not mix:
        return []
    corpora = [_parse_corpus(part.strip(), mix) for part in mix.split(",")]
    if os.pathsep in data and not os.path.isdir(data):
        raise UserError(f"--mix {mix}: {data} names several data folders; give one, made without --shards")
    places, own = [os.path.realpath(corpus.folder) for corpus in corpora], os.path.realpath(data)
    if own not in places:
        raise UserError(f"--mix {mix}: does not name the data folder {data}; give it a weight, as in {data}:1,{mix}")
    if len(set(places)) < max(2, len(places)):
        raise UserError(f"--mix {mix}: name two corpora or more, each once; or leave --mix out")
    # a stable sort: the others keep their order
    return sorted(corpora, key=lambda corpus: os.path.realpath(corpus.folder) != own)


def _parse_corpus(part: str, mix: str) -> Corpus:
    folder, _, weight = part.rpartition(":")
    if not folder or not _WEIGHT.fullmatch(weight) or not Fraction(weight):
        raise UserError(f"--mix {mix}: cannot read {part!r}; write FOLDER:WEIGHT,FOLDER:WEIGHT with weights above 0")
    return Corpus(folder, Fraction(weight))


def check_corpora(corpora: Sequence[Corpus]) -> None:
    """Raise UserError unless all corpora of a mix have the same ``dict.txt`` and tokenizer as the first."""
    others = [shard for corpus in corpora[1:] for shard in data_folders(corpus.folder, flag="--mix")]
    check_folders(Path(corpora[0].folder), others, "--mix ")


def check_folders(first: Path, others: Sequence[Path], flag: str = "") -> None:
    """Raise UserError unless all data folders have the ``dict.txt`` and tokenizer of the first; ``flag`` begins the message.

    Without a flag, the folders are those of ``fairseq-train A:B:C``, of which only the first needs a ``dict.txt``.
    """
    for folder in others:
        if not folder.is_dir():
            raise UserError(f"{flag}{folder}: no such folder; correct the path of the data")
        check_vocabulary(folder)
        if (flag or (folder / DICTIONARY).is_file()) and (differing := differing_file(first, folder)):
            known = f"fairseq-preprocess --srcdict {first / DICTIONARY}"
            command = f"fairseq-clear prepare --tokenizer-dir {first}" if has_tokenizer(first) else known
            what = f"its {differing} differs from the one in {first}"
            raise UserError(f"{flag}{folder}: {what}; prepare its text again with {command}")


def load_mix(corpora: Sequence[Corpus], load: Callable[[str], Any], seed: int, *, is_separate: bool) -> MixedDataset:
    """Load the training set of a mix; ``load`` returns the data set of a folder, the other arguments go to ``MixedDataset``.

    Each shard is a corpus of its own. Shards divide the weight in proportion to their numbers of texts.
    """
    names, parts, weights = list[str](), list[Any](), list[Fraction]()
    for corpus in corpora:
        folders = [str(folder) for folder in data_folders(corpus.folder)]
        own = [load(folder) for folder in folders]
        weights += [corpus.weight * Fraction(len(part), sum(map(len, own))) for part in own]
        names, parts = names + folders, parts + own
    return MixedDataset(parts, weights, seed, names=names, is_separate=is_separate)


def differing_file(first: Path, other: Path) -> str:
    """Return the vocabulary or tokenizer file that differs between two folders; empty if none differs.

    The counts of a ``dict.txt`` may differ. Tokenizers are compared if both folders record them.
    """
    if read_dictionary(first / DICTIONARY) != read_dictionary(other / DICTIONARY):
        return DICTIONARY
    if not all((folder / CLEAR_JSON).is_file() for folder in (first, other)):
        return ""
    (kind, files), (other_kind, other_files) = map(recorded_tokenizer, (first, other))
    if kind != other_kind:
        return f"tokenizer ({other_kind}, not {kind})"
    for one, two in zip(files, other_files, strict=False):
        both = first / one, other / two
        if all(path.is_file() for path in both) and hash_file(both[0]) != hash_file(both[1]):
            return f"tokenizer ({two})"
    return ""


def describe_mix(corpora: Sequence[Corpus], dataset: MixedDataset, items: str) -> str:
    """Return one line with the size, the weight and the share of an epoch of each corpus."""
    shards, parts = iter(zip(map(len, dataset.corpora), dataset.counts, strict=True)), []
    for folder, weight in corpora:
        size, count = map(sum, zip(*islice(shards, len(data_folders(folder))), strict=True))
        share = f"{count / len(dataset):.1%} of an epoch ({count:,})"
        parts.append(f"{folder}: {size:,} {items}, weight {float(weight):g}, {share}")
    return "; ".join(parts) + ("; each batch of one corpus" if dataset.is_separate else "")
