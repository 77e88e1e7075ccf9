"""Writes and opens the folders of GLUE data for fairseq's ``sentence_prediction``.

A task's folder holds ``input0``, ``input1`` for pairs, ``label`` and ``glue.json``.
"""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import make_builder

from fairseq_clear import patches
from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.glue.glue_tasks import MAXIMUM_SCORE, GlueTask, read_examples
from fairseq_clear.files import hash_file, write_json
from fairseq_clear.models.encoding import read_tokens
from fairseq_clear.output_folder import output_folder
from fairseq_clear.text.data_folders import DICTIONARY
from fairseq_clear.text.tokenizers import Tokenizer
from fairseq_clear.text.vocabulary import load_dictionary

patches.apply()

GLUE_JSON = "glue.json"


def prepare_task(
    task: GlueTask,
    glue_dir: Path,
    data_bin: Path,
    dest: Path,
    tokenizer: Tokenizer,
    *,
    max_length: int = 512,
    drop_malformed: bool = False,
    overwrite: bool = False,
) -> dict[str, dict[str, int]]:
    """Convert the files of a task to the folder ``dest/TASK``, with the dictionary of ``data_bin``.

    Inputs of more than ``max_length`` tokens are cut, see ``cut_pair``. On an error, nothing is written.

    Returns:
        Split -> numbers of its examples (``rows``), tokens, unknown tokens, cut inputs, malformed lines (``dropped``), and the
        length of its longest input.

    Raises:
        UserError: missing or malformed files, or the folder exists already.
    """
    dictionary = load_dictionary(data_bin / DICTIONARY)
    splits: dict[str, dict[str, int]] = {}
    with output_folder(dest / task.name, overwrite) as folder:
        *inputs, answers = (folder / name for name in [*("input0", "input1")[: len(task.texts)], "label"])
        for part in (*inputs, answers):
            part.mkdir()
            shutil.copyfile(data_bin / DICTIONARY, part / DICTIONARY)
        # in the order of the table, so that class ids do not depend on the frequency of the labels
        (answers / DICTIONARY).write_text("".join(f"{label} 1\n" for label in task.labels))
        known = Dictionary.load(str(answers / DICTIONARY))
        for split in task.splits:
            texts, labels, dropped = read_examples(glue_dir, task, split, drop_malformed=drop_malformed)
            # without <s>, which sentence_prediction adds
            encoded = [[read_tokens(dictionary, tokenizer, text)[1:] for text in column] for column in texts]
            whole = list(zip(*encoded, strict=True))
            rows = [cut_pair(row, max_length) for row in whole]
            for part, column in zip(inputs, zip(*rows, strict=True), strict=True):
                _write_rows(part / split, column, len(dictionary))
            if task.labels:
                _write_rows(answers / split, [[known.index(label), known.eos()] for label in labels], len(known))
            else:  # scores of a regression, as fairseq's task reads them
                scores = [f"{float(score) / MAXIMUM_SCORE!r}\n" for score in labels]
                (answers / f"{split}.label").write_text("".join(scores))
            splits[split] = {
                "rows": len(rows),
                "tokens": sum(map(input_length, rows)),
                "unknown": sum(text.count(dictionary.unk()) for row in rows for text in row),
                "cut": sum(input_length(row) > max_length for row in whole),
                "dropped": dropped,
                "longest": max(map(input_length, rows)),
            }
        content = {
            "max_length": max_length,
            "vocabulary_hash": hash_file(data_bin / DICTIONARY),
            "tokenizer": type(tokenizer).__name__,
            "splits": splits,
            "files": {name: hash_file(glue_dir / task.name / name) for name in task.splits.values()},
        }
        write_json(folder / GLUE_JSON, content, flag="--dest")
    return splits


def input_length(texts: Sequence[Sequence[int]]) -> int:
    """Number of tokens of ``<s> a </s>`` or ``<s> a </s> </s> b </s>``; the texts end with ``</s>``."""
    return sum(len(text) + 1 for text in texts)


def cut_pair(texts: Sequence[list[int]], longest: int) -> list[list[int]]:
    """Drop tokens from the end of the longer text (the first, if equal) until the input has ``longest`` tokens, 4 or more.

    fairseq's own ``--shorten-method truncate`` drops the end of a pair, often the whole second text.
    """
    lengths = [len(text) - 1 for text in texts]
    for _ in range(input_length(texts) - longest):
        lengths[lengths.index(max(lengths))] -= 1
    return [[*text[:length], text[-1]] for text, length in zip(texts, lengths, strict=True)]


def _write_rows(prefix: Path, rows: Sequence[Sequence[int]], vocabulary: int) -> None:
    builder = make_builder(f"{prefix}.bin", impl="mmap", vocab_size=vocabulary)
    for row in rows:
        builder.add_item(torch.tensor(row, dtype=torch.int64))
    builder.finalize(f"{prefix}.idx")


@dataclass(frozen=True)
class TaskData:
    """A folder that ``prepare_task`` wrote."""

    task: GlueTask
    folder: Path
    record: dict[str, Any]  # glue.json

    @classmethod
    def open(cls, data: Path, task: GlueTask) -> "TaskData":
        """Open ``data/TASK``; UserError if it was not prepared."""
        path = data / task.name / GLUE_JSON
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            record["splits"]["train"]["longest"], record["files"]  # noqa: B018 (are missing in other files)
            return cls(task, path.parent, record)
        except (OSError, ValueError, LookupError, TypeError):
            what = f"--data {data}: has no {task.name} of this version"
            raise UserError(f"{what}; run fairseq-clear glue prepare --tasks {task.name} --dest {data}") from None
