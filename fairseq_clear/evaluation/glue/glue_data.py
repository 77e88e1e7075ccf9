"""Writes and reads the folders of GLUE data for fairseq's ``sentence_prediction``, and shortens long inputs.

A task's folder holds ``input0``, ``input1`` for pairs, ``label``, and ``glue.json``.
"""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from fairseq.data import Dictionary, data_utils
from fairseq.data.indexed_dataset import make_builder

from fairseq_clear import register
from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.glue.glue_tasks import (
    MAXIMUM_SCORE,
    Examples,
    GlueTask,
    find_task_folder,
    read_examples,
)
from fairseq_clear.files import hash_file, write_json
from fairseq_clear.models.encoding import read_tokens
from fairseq_clear.output_folder import output_folder
from fairseq_clear.text.data_folders import DICTIONARY
from fairseq_clear.text.tokenizers import Tokenizer
from fairseq_clear.text.vocabulary import load_dictionary

register()


Ids = npt.NDArray[np.int64]

GLUE_JSON = "glue.json"
GLUE_FORMAT = 1
# --split-dev writes the second part of the dev set to heldout, for valid1 to heldout1.
HELD_OUT = "heldout"


@dataclass
class SplitSummary:
    """Sizes of a split; ``dropped`` is the number of malformed lines that were left out."""

    rows: int
    tokens: int = 0
    unknown: int = 0
    dropped: int = 0


def parse_split_dev(text: str) -> tuple[int, int]:
    """Parse ``10/90``, per cent of the dev set for choosing and for the report; UserError unless the sum is 100."""
    first, _, second = text.partition("/")
    if not (first.isdigit() and second.isdigit()) or int(first) + int(second) != 100 or not int(first) * int(second):
        raise UserError(f"--split-dev {text}: give two whole numbers that add up to 100, such as 10/90")
    return int(first), int(second)


def prepare_task(
    task: GlueTask,
    glue_dir: Path,
    data_bin: Path,
    dest: Path,
    tokenizer: Tokenizer,
    *,
    split_dev: tuple[int, int] | None = None,
    drop_malformed: bool = False,
    overwrite: bool = False,
) -> dict[str, SplitSummary]:
    """Convert the files of a task to the folder ``dest/TASK``; on an error, nothing is written.

    Args:
        data_bin: folder with the ``dict.txt`` of the checkpoint.
        split_dev: per cent of the dev set whose first examples become ``valid``, and whose last become ``heldout``
            (Self-Guided A.4: 10 and 90).

    Returns:
        Split -> its sizes.

    Raises:
        UserError: missing or malformed files, or the folder exists already.
    """
    with output_folder(dest / task.name, overwrite) as folder:
        splits, hashes = _read_splits(task, find_task_folder(glue_dir, task), drop_malformed)
        if split_dev is not None:
            splits = _split_dev(splits, split_dev[0], task)
        summaries = _write_task(task, splits, data_bin, folder, tokenizer)
        content = {
            "format": GLUE_FORMAT,
            "task": task.name,
            "vocabulary_hash": hash_file(data_bin / DICTIONARY),
            "tokenizer": type(tokenizer).__name__,
            "split_dev": None if split_dev is None else "/".join(map(str, split_dev)),
            "splits": {name: asdict(summary) for name, summary in summaries.items()},
            "files": hashes,
            "content_hash": _content_hash(folder),
        }
        write_json(folder / GLUE_JSON, content, flag="--dest")
    return summaries


def _read_splits(task: GlueTask, folder: Path, drop: bool) -> tuple[dict[str, Examples], dict[str, str]]:
    """Every split and the hash of its file; only test files may be missing."""
    splits, hashes = {}, {}
    for split, name in task.splits.items():
        path = folder / name
        if not path.exists() and split.startswith("test") and task.name != "AX":
            continue
        if not path.exists():
            raise UserError(f"{path}: no such file; {task.name} needs {', '.join(task.splits.values())}")
        splits[split] = read_examples(path, task, split, drop_malformed=drop)
        hashes[name] = hash_file(path)
    return splits, hashes


def _split_dev(splits: dict[str, Examples], percent: int, task: GlueTask) -> dict[str, Examples]:
    parts: dict[str, Examples] = {}
    for name, examples in splits.items():
        if not name.startswith("valid"):
            parts[name] = examples
            continue
        if len(examples) < 2:
            raise UserError(f"--split-dev: {task.name}'s dev set has {len(examples)} example, which cannot be split")
        cut = min(max(round(len(examples) * percent / 100), 1), len(examples) - 1)
        parts[name] = examples.part(0, cut)
        parts[name.replace("valid", HELD_OUT)] = examples.part(cut, len(examples))
    return parts


def _write_task(
    task: GlueTask, splits: dict[str, Examples], data_bin: Path, folder: Path, tokenizer: Tokenizer
) -> dict[str, SplitSummary]:
    dictionary = load_dictionary(data_bin / DICTIONARY)
    summaries = {name: SplitSummary(len(part), dropped=part.dropped) for name, part in splits.items()}
    for column in range(len(task.texts)):
        part = folder / f"input{column}"
        part.mkdir()
        shutil.copyfile(data_bin / DICTIONARY, part / DICTIONARY)
        for name, examples in splits.items():
            # without <s>, which sentence_prediction adds
            rows = [read_tokens(dictionary, tokenizer, text)[1:] for text in examples.texts[column]]
            _write_rows(part / name, rows, len(dictionary))
            summaries[name].tokens += sum(len(row) for row in rows)
            summaries[name].unknown += sum(row.count(dictionary.unk()) for row in rows)
    labels = folder / "label"
    labels.mkdir()
    # in the order of the table, so that class ids do not depend on the frequency of the labels
    (labels / DICTIONARY).write_text("".join(f"{label} 1\n" for label in task.labels))
    known = Dictionary.load(str(labels / DICTIONARY))
    for name, examples in splits.items():
        if examples.labels is None:
            continue
        if task.is_regression:
            scores = [f"{float(score) / MAXIMUM_SCORE!r}\n" for score in examples.labels]
            (labels / f"{name}.label").write_text("".join(scores))
        else:
            _write_rows(labels / name, [[known.index(label), known.eos()] for label in examples.labels], len(known))
    return summaries


def _write_rows(prefix: Path, rows: Sequence[Sequence[int]], vocabulary: int) -> None:
    builder = make_builder(f"{prefix}.bin", impl="mmap", vocab_size=vocabulary)
    for row in rows:
        builder.add_item(torch.tensor(row, dtype=torch.int64))
    builder.finalize(f"{prefix}.idx")


def _content_hash(folder: Path) -> str:
    """SHA-256 over names and contents of all files, in the order of the names."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(folder).as_posix()}\n{hash_file(path)}\n".encode())
    return digest.hexdigest()


@dataclass(frozen=True)
class TaskData:
    """A folder that ``prepare_task`` wrote."""

    task: GlueTask
    folder: Path  # the folder, which holds ``input0``, ``label`` and so on
    rows: dict[str, int]  # split -> number of examples
    content_hash: str  # hash over the files of the folder
    files: dict[str, str]  # names of GLUE's files -> SHA-256

    @classmethod
    def open(cls, data: Path, task: GlueTask) -> "TaskData":
        """Open ``data/TASK``; UserError if it was not prepared."""
        folder = data / task.name
        try:
            content: dict[str, Any] = json.loads((folder / GLUE_JSON).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise UserError(
                f"--data {data}: has no {task.name} prepared; run fairseq-clear glue prepare --tasks {task.name} "
                f"--dest {data}"
            ) from None
        if content.get("format") != GLUE_FORMAT:
            raise UserError(
                f"{folder / GLUE_JSON}: has format {content.get('format')}, not {GLUE_FORMAT}; prepare it again"
            )
        rows = {name: int(split["rows"]) for name, split in content["splits"].items()}
        return cls(task, folder, rows, content["content_hash"], content["files"])

    def labelled(self) -> list[str]:
        """The splits with labels, except train."""
        return [name for name in self.rows if name.startswith(("valid", "heldout"))]

    def inputs(self, split: str) -> list[list[Ids]]:
        """Return the one or two texts of each example as ids; each text ends with ``</s>``."""
        columns = []
        for column in range(len(self.task.texts)):
            folder = self.folder / f"input{column}"
            dataset = data_utils.load_indexed_dataset(str(folder / split), Dictionary.load(str(folder / DICTIONARY)))
            columns.append([dataset[index].numpy().astype(np.int64) for index in range(len(dataset))])
        return [list(row) for row in zip(*columns, strict=True)]

    def gold(self, split: str) -> npt.NDArray[np.float64] | Ids:
        """Return the class ids (N,), or STS-B's scores from 0 to 5."""
        folder = self.folder / "label"
        if self.task.is_regression:
            return MAXIMUM_SCORE * np.loadtxt(folder / f"{split}.label", np.float64, ndmin=1)
        dictionary = Dictionary.load(str(folder / DICTIONARY))
        dataset = data_utils.load_indexed_dataset(str(folder / split), dictionary)
        return np.array([int(dataset[index][0]) - dictionary.nspecial for index in range(len(dataset))], np.int64)


def input_length(texts: list[Ids]) -> int:
    """Number of tokens of ``<s> a </s>`` or ``<s> a </s> </s> b </s>``; the texts end with ``</s>``."""
    return sum(len(text) + 1 for text in texts)


def cut_pair(texts: list[Ids], longest: int) -> list[Ids]:
    """Drop tokens from the end of the longer text (the first, if equal) until the input has ``longest`` tokens.

    Args:
        texts: one or two texts as ids, each with ``</s>`` at its end, which stays.
        longest: maximum number of tokens of the input, special ones included; 4 or more.
    """
    lengths = [len(text) - 1 for text in texts]
    for _ in range(max(input_length(texts) - longest, 0)):
        lengths[int(np.argmax(lengths))] -= 1
    return [np.append(text[:length], text[-1]) for text, length in zip(texts, lengths, strict=True)]


def shorten(data: TaskData, longest: int, dest: Path) -> tuple[Path, int]:
    """Return a folder with inputs of at most ``longest`` tokens: that of ``data``, or a shortened copy if any is longer.

    fairseq's ``--shorten-method truncate`` is not used: it drops the end of a pair, often the whole second text, and always
    cuts to the number of positions of the model.

    Args:
        data: a prepared task.
        longest: maximum number of tokens of an input, special ones included.
        dest: folder of the copy; reused if it exists.

    Returns:
        The folder to train on, and how many training and validation inputs were cut.
    """
    splits = [name for name in data.rows if name == "train" or name.startswith("valid")]
    inputs = {split: data.inputs(split) for split in splits}
    cut = sum(input_length(texts) > longest for rows in inputs.values() for texts in rows)
    if not cut or dest.is_dir():
        return (dest if cut else data.folder), cut
    dest.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=dest.parent, prefix=f".{dest.name}.") as temporary:
        copy = Path(temporary) / dest.name
        shutil.copytree(data.folder / "label", copy / "label")
        for column in range(len(data.task.texts)):
            folder = copy / f"input{column}"
            folder.mkdir()
            shutil.copyfile(data.folder / folder.name / DICTIONARY, folder / DICTIONARY)
            size = len(Dictionary.load(str(folder / DICTIONARY)))
            for split, rows in inputs.items():
                _write_rows(folder / split, [cut_pair(texts, longest)[column].tolist() for texts in rows], size)
        try:
            copy.rename(dest)
        except OSError:  # another restart of a Slurm array wrote it first
            if not dest.is_dir():
                raise
    return dest, cut
