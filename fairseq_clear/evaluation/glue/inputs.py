"""A prepared task: reading it, and cutting inputs that are too long."""

import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from fairseq.data import Dictionary, data_utils
from fairseq.data.indexed_dataset import make_builder

from fairseq_clear import register
from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.glue.preparing import GLUE_FORMAT, GLUE_JSON
from fairseq_clear.evaluation.glue.tasks import MAXIMUM_SCORE, GlueTask
from fairseq_clear.text.data_folders import DICTIONARY

register()

__all__ = ["TaskData", "cut_pair", "shorten"]


@dataclass(frozen=True)
class TaskData:
    """A folder that ``prepare`` wrote.

    Attributes:
        task: which.
        folder: with ``input0`` and so on in it.
        rows: split -> examples.
        content_hash: of the folder.
        vocabulary_hash: of the ``dict.txt`` that it was made with.
        files: names of GLUE's files -> SHA-256.
    """

    task: GlueTask
    folder: Path
    rows: dict[str, int]
    content_hash: str
    vocabulary_hash: str
    files: dict[str, str]

    @classmethod
    def open(cls, data: Path, task: GlueTask) -> "TaskData":
        """Open ``data/TASK``.

        Raises:
            UserError: it was not prepared.
        """
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
                f"{folder / GLUE_JSON}: of format {content.get('format')}, not {GLUE_FORMAT}; prepare it again"
            )
        rows = {name: int(split["rows"]) for name, split in content["splits"].items()}
        return cls(task, folder, rows, content["content_hash"], content["vocabulary_hash"], content["files"])

    def labelled(self) -> list[str]:
        """The splits with labels that models are not trained on, in order."""
        return [name for name in self.rows if name.startswith(("valid", "heldout"))]

    def inputs(self, split: str) -> list[list[npt.NDArray[np.int64]]]:
        """One list for each example: its one or two texts as ids, each with ``</s>`` at its end."""
        columns = []
        for column in range(len(self.task.texts)):
            folder = self.folder / f"input{column}"
            dataset = data_utils.load_indexed_dataset(str(folder / split), Dictionary.load(str(folder / DICTIONARY)))
            columns.append([dataset[index].numpy().astype(np.int64) for index in range(len(dataset))])
        return [list(row) for row in zip(*columns, strict=True)]

    def gold(self, split: str) -> npt.NDArray[np.float64] | npt.NDArray[np.int64]:
        """Class ids (N,), or STS-B's scores from 0 to 5."""
        folder = self.folder / "label"
        if self.task.is_regression:
            return MAXIMUM_SCORE * np.loadtxt(folder / f"{split}.label", np.float64, ndmin=1)
        dictionary = Dictionary.load(str(folder / DICTIONARY))
        dataset = data_utils.load_indexed_dataset(str(folder / split), dictionary)
        return np.array([int(dataset[index][0]) - dictionary.nspecial for index in range(len(dataset))], np.int64)


def input_length(texts: list[npt.NDArray[np.int64]]) -> int:
    """Tokens of ``<s> a </s>`` or ``<s> a </s> </s> b </s>``, the texts having their ``</s>``."""
    return sum(len(text) + 1 for text in texts)


def cut_pair(texts: list[npt.NDArray[np.int64]], longest: int) -> list[npt.NDArray[np.int64]]:
    """Take tokens from the end of the longer text, the first of equals, until the input has ``longest`` tokens.

    Args:
        texts: one or two texts as ids, each with ``</s>`` at its end, which is kept.
        longest: tokens of the input, special ones included; 4 or more.
    """
    lengths = [len(text) - 1 for text in texts]
    for _ in range(max(input_length(texts) - longest, 0)):
        lengths[int(np.argmax(lengths))] -= 1
    return [np.append(text[:length], text[-1]) for text, length in zip(texts, lengths, strict=True)]


def shorten(data: TaskData, longest: int, dest: Path) -> tuple[Path, int]:
    """The data with inputs of at most ``longest`` tokens: its own folder, or a copy where something had to be cut.

    fairseq's ``--shorten-method truncate`` takes the end of the pair, often the whole second text, and ties the length to
    the number of positions of the model.

    Args:
        data: prepared.
        longest: tokens of an input, special ones included.
        dest: folder of the copy; taken as it is if it exists already.

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
                builder = make_builder(str(folder / f"{split}.bin"), impl="mmap", vocab_size=size)
                for texts in rows:
                    builder.add_item(torch.from_numpy(cut_pair(texts, longest)[column]))
                builder.finalize(str(folder / f"{split}.idx"))
        try:
            copy.rename(dest)
        except OSError:  # another restart, of a Slurm array, was faster
            if not dest.is_dir():
                raise
    return dest, cut
