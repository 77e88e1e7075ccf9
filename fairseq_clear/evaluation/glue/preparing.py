"""GLUE's files to what ``sentence_prediction`` reads: TASK/{input0,input1,label}/{train,valid,...}."""

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import make_builder

from fairseq_clear import register
from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.glue.reading import Examples, find_task_folder, read_examples
from fairseq_clear.evaluation.glue.tasks import MAXIMUM_SCORE, GlueTask
from fairseq_clear.files import hash_file
from fairseq_clear.models.encoding import read_tokens
from fairseq_clear.text.data_folders import DICTIONARY
from fairseq_clear.text.tokenizers import Tokenizer

register()

__all__ = ["GLUE_FORMAT", "GLUE_JSON", "HELD_OUT", "SplitSummary", "parse_split_dev", "prepare_task"]

GLUE_JSON = "glue.json"
GLUE_FORMAT = 1
# Where --split-dev puts the greater part of the dev set: valid -> heldout, valid1 -> heldout1.
HELD_OUT = "heldout"


@dataclass
class SplitSummary:
    """What a split holds; ``dropped`` lines were malformed."""

    rows: int
    tokens: int = 0
    unknown: int = 0
    dropped: int = 0


def parse_split_dev(text: str) -> tuple[int, int]:
    """``10/90`` to (10, 90): per cent of the dev set to choose by, and to report.

    Raises:
        UserError: not two whole numbers that add up to 100.
    """
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
    """Write ``dest/TASK``; whole or not at all.

    Args:
        task: which.
        glue_dir: folder of GLUE, with a folder for each task.
        data_bin: folder with the ``dict.txt`` of the checkpoints to come.
        dest: folder to write the task's folder to.
        tokenizer: that of ``data_bin``.
        split_dev: shares of the dev set, its first examples for ``valid`` and its last for ``heldout``
            (Self-Guided A.4: 10 and 90).
        drop_malformed: see ``read_examples``.
        overwrite: replace an existing folder.

    Returns:
        Split -> what it holds.

    Raises:
        UserError: missing or malformed files, or the folder exists already.
    """
    target = dest / task.name
    if target.exists() and not overwrite:
        raise UserError(f"--dest {target}: exists already; add --overwrite to replace it, or give another folder")
    splits, hashes = _read_splits(task, find_task_folder(glue_dir, task), drop_malformed)
    if split_dev is not None:
        splits = _split_dev(splits, split_dev[0], task)
    partial = dest / f".{task.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        summaries = _write_task(task, splits, data_bin, partial, tokenizer)
        _write_manifest(partial, task, data_bin, tokenizer, split_dev, summaries, hashes)
        if target.exists():
            shutil.rmtree(target)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return summaries


def _write_manifest(
    folder: Path,
    task: GlueTask,
    data_bin: Path,
    tokenizer: Tokenizer,
    split_dev: tuple[int, int] | None,
    summaries: dict[str, SplitSummary],
    hashes: dict[str, str],
) -> None:
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
    (folder / GLUE_JSON).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _read_splits(task: GlueTask, folder: Path, drop: bool) -> tuple[dict[str, Examples], dict[str, str]]:
    """Every split that is there, and the hashes of the files; test files may be missing, others not."""
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
            raise UserError(f"--split-dev: {task.name}'s dev set has {len(examples)} example, which is not to be split")
        cut = min(max(round(len(examples) * percent / 100), 1), len(examples) - 1)
        parts[name] = examples.part(0, cut)
        parts[name.replace("valid", HELD_OUT)] = examples.part(cut, len(examples))
    return parts


def _write_task(
    task: GlueTask, splits: dict[str, Examples], data_bin: Path, folder: Path, tokenizer: Tokenizer
) -> dict[str, SplitSummary]:
    dictionary = Dictionary.load(str(data_bin / DICTIONARY))
    summaries = {name: SplitSummary(len(part), dropped=part.dropped) for name, part in splits.items()}
    for column in range(len(task.texts)):
        part = folder / f"input{column}"
        part.mkdir()
        shutil.copyfile(data_bin / DICTIONARY, part / DICTIONARY)
        for name, examples in splits.items():
            # without <s>: sentence_prediction puts it there
            rows = [read_tokens(dictionary, tokenizer, text)[1:] for text in examples.texts[column]]
            _write_rows(part / name, rows, len(dictionary))
            summaries[name].tokens += sum(len(row) for row in rows)
            summaries[name].unknown += sum(row.count(dictionary.unk()) for row in rows)
    labels = folder / "label"
    labels.mkdir()
    known = _write_label_dictionary(task, labels)
    for name, examples in splits.items():
        if examples.labels is None:
            continue
        if task.is_regression:
            scores = [f"{float(score) / MAXIMUM_SCORE!r}\n" for score in examples.labels]
            (labels / f"{name}.label").write_text("".join(scores))
        else:
            _write_rows(labels / name, [[known.index(label), known.eos()] for label in examples.labels], len(known))
    return summaries


def _write_label_dictionary(task: GlueTask, folder: Path) -> Any:
    """``label/dict.txt`` in the table's order, so that class ids do not depend on which label is frequent."""
    (folder / DICTIONARY).write_text("".join(f"{label} 1\n" for label in task.labels))
    return Dictionary.load(str(folder / DICTIONARY))


def _write_rows(prefix: Path, rows: Sequence[Sequence[int]], vocabulary: int) -> None:
    builder = make_builder(f"{prefix}.bin", impl="mmap", vocab_size=vocabulary)
    for row in rows:
        builder.add_item(torch.tensor(row, dtype=torch.int64))
    builder.finalize(f"{prefix}.idx")


def _content_hash(folder: Path) -> str:
    """SHA-256 over the names and contents of what was written, in the order of the names."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(folder).as_posix()}\n{hash_file(path)}\n".encode())
    return digest.hexdigest()
