"""Fine-tuned checkpoints as classifiers: predictions of dev and test sets, and the submission to GLUE's server."""

import json
import logging
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fairseq_clear.data.batch import pad_rows
from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.checkpoints import load_model
from fairseq_clear.evaluation.glue.glue_data import Ids, TaskData, cut_pair
from fairseq_clear.evaluation.glue.glue_recipes import headline
from fairseq_clear.evaluation.glue.glue_tasks import GLUE_TASKS, MAXIMUM_SCORE, GlueTask, choose_tasks
from fairseq_clear.files import write_errors, write_whole
from fairseq_clear.libraries import log_level
from fairseq_clear.models.encoding import evaluating
from fairseq_clear.patches.checkpoint_files import read_checkpoint

HEAD = "sentence_classification_head"
_PREFIX = f"classification_heads.{HEAD}."
RESULT, MODEL = "result.json", "model.pt"  # files of a finished restart
# in the order of the zip file; the server expects all of them
SUBMISSION_FILES = (
    *("CoLA.tsv", "SST-2.tsv", "MRPC.tsv", "STS-B.tsv", "MNLI-m.tsv", "MNLI-mm.tsv", "QNLI.tsv", "RTE.tsv"),
    *("WNLI.tsv", "QQP.tsv", "AX.tsv"),
)
_DATE = (1980, 1, 1, 0, 0, 0)  # a fixed date, so that equal predictions give identical zip files
Result = dict[str, Any]


class Classifier:
    """A model with its classification head, in float32.

    Args:
        checkpoint: written by fairseq-train with ``--task sentence_prediction``.
        data: prepared data with the ``dict.txt`` of the checkpoint.

    Raises:
        UserError: a checkpoint without such a head, or with another vocabulary or number of classes.
    """

    def __init__(self, checkpoint: Path, data: TaskData, device: str = "cpu") -> None:
        # The model warns that it does not load the head, which is loaded below.
        with log_level(logging.ERROR, "fairseq.models.roberta.model"):
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

    def predict(self, data: TaskData, split: str, longest: int) -> Ids | npt.NDArray[np.float64]:
        """Predict class ids (N,), or for STS-B scores (N,) on its scale of 0 to 5, not clipped, in the order of the split.

        Args:
            longest: maximum number of tokens of an input; give the value of training.
        """
        outputs = self.outputs(data, split, longest)
        return MAXIMUM_SCORE * outputs[:, 0].astype(np.float64) if data.task.is_regression else outputs.argmax(axis=1)

    def outputs(self, data: TaskData, split: str, longest: int, batch_size: int = 32) -> npt.NDArray[np.float32]:
        """Outputs of the head: logits (N, classes), or for STS-B scores divided by 5, (N, 1)."""
        rows = [self._row(texts, min(longest, int(self.model.max_positions()))) for texts in data.inputs(split)]
        outputs = np.empty((len(rows), data.task.outputs), np.float32)
        with evaluating(self.model):
            order = sorted(range(len(rows)), key=lambda index: -len(rows[index]))  # so that batches have little padding
            for begin in range(0, len(order), batch_size):
                batch = order[begin : begin + batch_size]
                tokens = pad_rows([rows[index] for index in batch], self.dictionary.pad()).to(self.device)  # (B, T)
                logits, _ = self.model(tokens, features_only=True, classification_head_name=HEAD)
                outputs[batch] = logits.float().cpu().numpy()
        return outputs

    def _row(self, texts: list[Ids], longest: int) -> Ids:
        """Join the texts of an input as sentence_prediction does in training.

        ``<s> a </s>``; ``<s> a </s> </s> b </s>``, or ``<s> a </s> b </s>`` for a model with segments.
        """
        between = [] if self.model.args.segments > 1 else [self.dictionary.eos()]
        starts = [[self.dictionary.bos()], between]
        pieces = [np.append(start, text) for start, text in zip(starts, cut_pair(texts, longest), strict=False)]
        row: Ids = np.concatenate(pieces).astype(np.int64)
        return row


def read_result(folder: Path) -> dict[str, Any] | None:
    """The result of a finished restart; None if it is not finished."""
    path = folder / RESULT
    return read_record(path) if path.is_file() and (folder / MODEL).is_file() else None


def best_restart(results: Sequence[Result], recipe: str) -> Result:
    """The result with the best score on the dev set (without a held-out part); the first one if several are equal."""
    return max(results, key=lambda result: float(result["metrics"]["valid"][headline(recipe, result["task"])]))


def read_record(path: Path) -> dict[str, Any]:
    """Read a JSON file of a restart."""
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path}: not valid JSON ({error}); remove the folder and rerun the restart") from None
    return content


class Chosen(NamedTuple):
    """A fine-tuned checkpoint, the maximum number of tokens of its inputs (None if unknown), and why it was chosen."""

    checkpoint: Path
    longest: int | None
    why: str


def predict_tests(
    checkpoints: Sequence[str],
    data: Path,
    recipe: str,
    by_majority: Sequence[str],
    device: str,
    max_length: int | None = None,
) -> tuple[dict[str, str], list[str]]:
    """Predict every test set for which there is a checkpoint; the model of MNLI predicts AX.

    Args:
        checkpoints: output folders of ``glue run``, or ``TASK=FILE``; for a task that occurs twice, the last one counts.
        data: output folder of ``glue prepare``.
        recipe: its metric chooses the best restart.
        by_majority: tasks for which to predict the most frequent training label.
        max_length: maximum number of tokens of an input (default: as in training).

    Returns:
        Name of a submission file -> its content; and one line per file that says which checkpoint made it.

    Raises:
        UserError: no checkpoint, or a test set that is not prepared.
    """
    chosen: dict[str, Chosen] = {}
    for name in checkpoints:
        chosen |= _single(name) if "=" in name and not Path(name).is_dir() else _best_of(Path(name), recipe)
    majorities = {task.name for task in choose_tasks(by_majority)}
    contents: dict[str, str] = {}
    lines: list[str] = []
    for task in GLUE_TASKS.values():
        if task.evaluated_as not in chosen and task.name not in majorities:
            continue
        if task.name != task.evaluated_as and not (data / task.name).is_dir():
            continue  # AX is not prepared; the command lists missing files at the end
        opened = TaskData.open(data, task)
        by = None if task.name in majorities else chosen[task.evaluated_as]
        classifier = None if by is None else Classifier(by.checkpoint, opened, device)
        for file, split in task.submission.items():
            if split not in opened.rows:
                raise UserError(
                    f"--data {data}: {task.name} was prepared without its {task.splits[split]}; put the file into GLUE's "
                    "folder and rerun glue prepare with --overwrite"
                )
            rows = opened.rows[split]
            if by is None or classifier is None:
                predicted: Any = majority(opened, rows)
            else:
                longest = max_length or by.longest or int(classifier.model.max_positions())
                predicted = classifier.predict(opened, split, longest)
            contents[file] = format_predictions(task, predicted)
            lines.append(f"{file}: {rows:,} predictions, {'most frequent label' if by is None else by.why}")
    return contents, lines


def _single(argument: str) -> dict[str, Chosen]:
    name, _, file = argument.partition("=")
    task = choose_tasks([name])[0]
    if not Path(file).is_file():
        raise UserError(f"--checkpoints {argument}: there is no file {file}")
    return {task.evaluated_as: Chosen(Path(file), None, file)}


def _best_of(folder: Path, recipe: str) -> dict[str, Chosen]:
    chosen = {}
    for name in GLUE_TASKS:
        paths = sorted((folder / name).glob(f"seed*/{RESULT}"))
        results = {path.parent: result for path in paths if (result := read_result(path.parent)) is not None}
        if results:
            best = best_restart(list(results.values()), recipe)
            home = next(path for path, result in results.items() if result is best)
            why = f"{home / MODEL}, best of {len(results)} on dev"
            chosen[name] = Chosen(home / MODEL, int(best["max_length"]), why)
    if not chosen:
        raise UserError(
            f"--checkpoints {folder}: holds no finished restart; give the --output of glue run, or TASK=FILE"
        )
    return chosen


def format_predictions(task: GlueTask, predicted: npt.NDArray[np.generic]) -> str:
    """Format (N,) class ids or scores as a submission file: a header, then ``index<TAB>LABEL`` or ``index<TAB>SCORE``."""
    if task.is_regression:
        cells: Sequence[str] = [f"{score:.3f}" for score in np.clip(predicted.astype(np.float64), 0, MAXIMUM_SCORE)]
    else:
        cells = [task.labels[int(index)] for index in predicted]
    return "index\tprediction\n" + "".join(f"{number}\t{cell}\n" for number, cell in enumerate(cells))


def majority(data: TaskData, rows: int) -> npt.NDArray[np.float64] | npt.NDArray[np.int64]:
    """Predict the most frequent training label for every row, or the mean training score for STS-B: (rows,)."""
    gold = data.gold("train")
    if data.task.is_regression:
        return np.full(rows, gold.mean())
    return np.full(rows, int(np.bincount(gold.astype(np.int64)).argmax()), np.int64)


def write_submission(path: Path, contents: Mapping[str, str]) -> list[str]:
    """Write the zip file atomically; return the names of the files that the server expects and that are missing."""
    with write_errors(path), write_whole(path) as stream, zipfile.ZipFile(stream, "w") as archive:
        for name in sorted(contents, key=SUBMISSION_FILES.index):
            entry = zipfile.ZipInfo(name, _DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, contents[name])
    return [name for name in SUBMISSION_FILES if name not in contents]
