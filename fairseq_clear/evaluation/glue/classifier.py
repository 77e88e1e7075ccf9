"""A fine-tuned checkpoint as a classifier: predictions in the order of the data, metrics computed from them."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fairseq_clear.data.batch import pad_rows
from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.checkpoints import load_model
from fairseq_clear.evaluation.glue.inputs import TaskData, cut_pair
from fairseq_clear.evaluation.glue.tasks import MAXIMUM_SCORE
from fairseq_clear.models.encoding import evaluating
from fairseq_clear.patches.checkpoints import read_checkpoint, save

__all__ = ["HEAD", "Classifier", "strip_checkpoint"]

HEAD = "sentence_classification_head"
_PREFIX = f"classification_heads.{HEAD}."

Ids = npt.NDArray[np.int64]
Doubles = npt.NDArray[np.float64]


class Classifier:
    """A model with its classification head, in float32 whatever it was trained in.

    Args:
        checkpoint: of fairseq-train on ``sentence_prediction``.
        data: whose ``dict.txt`` it was trained with.
        device: such as ``cpu`` or ``cuda``.

    Raises:
        UserError: no checkpoint of this kind, or another vocabulary or number of classes.
    """

    def __init__(self, checkpoint: Path, data: TaskData, device: str = "cpu") -> None:
        with _without_warnings("fairseq.models.roberta.model"):  # it says that it leaves out the head, loaded below
            loaded = load_model(checkpoint, data.folder / "input0")
        weights = read_checkpoint(str(checkpoint))["model"]
        head = {key.removeprefix(_PREFIX): value for key, value in weights.items() if key.startswith(_PREFIX)}
        if not head:
            raise UserError(f"{checkpoint}: has no classification head; give a checkpoint of fairseq-clear glue run")
        outputs, inner = head["out_proj.weight"].shape
        if outputs != data.task.outputs:
            raise UserError(f"{checkpoint}: has {outputs} outputs, but {data.task.name} needs {data.task.outputs}")
        self.model, self.dictionary, self.device = loaded.model, loaded.dictionary, device
        self.model.register_classification_head(HEAD, outputs, inner)
        self.model.classification_heads[HEAD].load_state_dict(head)
        self.model.float().to(device)

    def predict(self, data: TaskData, split: str, longest: int, batch_size: int = 32) -> Ids | Doubles:
        """Class ids (N,), or scores from 0 to 5 before they are clipped, in the order of the split.

        Args:
            data: prepared.
            split: of it.
            longest: inputs are cut to this many tokens, as in training.
            batch_size: of inference; results do not depend on it.
        """
        outputs = self.outputs(data, split, longest, batch_size)
        if data.task.is_regression:
            return MAXIMUM_SCORE * outputs[:, 0].astype(np.float64)
        ids: Ids = outputs.argmax(axis=1)
        return ids

    def outputs(self, data: TaskData, split: str, longest: int, batch_size: int = 32) -> npt.NDArray[np.float32]:
        """Logits (N, classes), or (N, 1) scores divided by 5."""
        rows = [self._row(texts, min(longest, int(self.model.max_positions()))) for texts in data.inputs(split)]
        outputs = np.empty((len(rows), data.task.outputs), np.float32)
        with evaluating(self.model):
            for batch in _batches([len(row) for row in rows], batch_size):
                tokens = pad_rows([rows[index] for index in batch], self.dictionary.pad()).to(self.device)  # (B, T)
                logits, _ = self.model(tokens, features_only=True, classification_head_name=HEAD)
                outputs[batch] = logits.float().cpu().numpy()
        return outputs

    def _row(self, texts: list[Ids], longest: int) -> Ids:
        """``<s> a </s>`` or ``<s> a </s> </s> b </s>``, as sentence_prediction joins them; with segments, which the first
        ``</s>`` ends, ``<s> a </s> b </s>``.
        """
        between = [] if self.model.args.segments > 1 else [self.dictionary.eos()]
        starts = [[self.dictionary.bos()], between]
        pieces = [np.append(start, text) for start, text in zip(starts, cut_pair(texts, longest), strict=False)]
        row: Ids = np.concatenate(pieces).astype(np.int64)
        return row


@contextmanager
def _without_warnings(name: str) -> Iterator[None]:
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _batches(lengths: list[int], batch_size: int) -> Iterator[list[int]]:
    """Indices, longest inputs first, so that little is padded."""
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    for begin in range(0, len(order), batch_size):
        yield order[begin : begin + batch_size]


def strip_checkpoint(source: Path, target: Path) -> dict[str, Any]:
    """Copy a checkpoint without its optimizer's state, two thirds of it, and return what it says of its run.

    Returns:
        ``updates`` and ``epoch`` of the checkpoint, and ``best``, what fairseq itself measured (None if it did not).
    """
    # torch's own reading: fairseq's turns the settings into a class that it could not read again
    state = torch.load(source, map_location="cpu", weights_only=True)
    state["last_optimizer_state"] = None
    beside = target.with_name(f".{target.name}.partial")
    save(state, beside)
    beside.replace(target)
    iterator = state["extra_state"]["train_iterator"]
    return {
        "updates": int(state["optimizer_history"][-1]["num_updates"]),
        # saved at the end of an epoch, it already points at the next one
        "epoch": int(iterator["epoch"]) - int(iterator["iterations_in_epoch"] == 0),
        "best": state["extra_state"].get("best"),
    }
