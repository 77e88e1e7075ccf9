"""Test sets predicted by fine-tuned checkpoints."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.glue.classifier import Classifier
from fairseq_clear.evaluation.glue.inputs import TaskData
from fairseq_clear.evaluation.glue.restarts import MODEL, RESULT, read_result
from fairseq_clear.evaluation.glue.submission import format_predictions, majority
from fairseq_clear.evaluation.glue.summary import best_restart
from fairseq_clear.evaluation.glue.tasks import GLUE_TASKS, GlueTask, choose_tasks

__all__ = ["predict_tests"]


@dataclass(frozen=True)
class _Chosen:
    """A fine-tuned checkpoint, the length that its inputs were cut to (None: not known), and why it was taken."""

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
    """Predict every test set for which there is a checkpoint; AX by MNLI's.

    Args:
        checkpoints: folders of ``glue run``, or ``TASK=FILE``; later ones win.
        data: what ``glue prepare`` wrote.
        recipe: whose metric chooses among restarts.
        by_majority: tasks to predict by the most frequent training label instead.
        device: such as ``cpu``.
        max_length: in place of that of training.

    Returns:
        File of the submission -> its content, and a line for each saying where it comes from.

    Raises:
        UserError: nothing to predict with, or a test set that is not prepared.
    """
    chosen: dict[str, _Chosen] = {}
    for name in checkpoints:
        chosen |= _single(name) if "=" in name and not Path(name).is_dir() else _best_of(Path(name), recipe)
    majorities = {task.name for task in choose_tasks(by_majority)}
    contents: dict[str, str] = {}
    lines: list[str] = []
    for task in GLUE_TASKS.values():
        if task.evaluated_as not in chosen and task.name not in majorities:
            continue
        if task.name != task.evaluated_as and not (data / task.name).is_dir():
            continue  # AX was not prepared: MNLI may well be wanted alone; what is missing is named at the end
        opened = TaskData.open(data, task)
        by = None if task.name in majorities else chosen[task.evaluated_as]
        classifier = None if by is None else Classifier(by.checkpoint, opened, device)
        for file, split in task.submission.items():
            rows = _rows(opened, split, data)
            if by is None or classifier is None:
                predicted: Any = majority(opened, rows)
            else:
                longest = max_length or by.longest or int(classifier.model.max_positions())
                predicted = classifier.predict(opened, split, longest)
            contents[file] = format_predictions(task, predicted)
            lines.append(f"{file}: {rows:,} predictions, {'most frequent label' if by is None else by.why}")
    return contents, lines


def _single(argument: str) -> dict[str, _Chosen]:
    name, _, file = argument.partition("=")
    task: GlueTask = choose_tasks([name])[0]
    if not Path(file).is_file():
        raise UserError(f"--checkpoints {argument}: there is no file {file}")
    return {task.evaluated_as: _Chosen(Path(file), None, file)}


def _best_of(folder: Path, recipe: str) -> dict[str, _Chosen]:
    chosen = {}
    for name in GLUE_TASKS:
        paths = sorted((folder / name).glob(f"seed*/{RESULT}"))
        results = {path.parent: result for path in paths if (result := read_result(path.parent)) is not None}
        if results:
            best = best_restart(list(results.values()), recipe)
            home = next(path for path, result in results.items() if result is best)
            why = f"{home / MODEL}, best of {len(results)} on dev"
            chosen[name] = _Chosen(home / MODEL, int(best["max_length"]), why)
    if not chosen:
        raise UserError(
            f"--checkpoints {folder}: no finished restart in it; give an --output of glue run, or TASK=FILE"
        )
    return chosen


def _rows(data: TaskData, split: str, folder: Path) -> int:
    if split not in data.rows:
        file = data.task.splits[split]
        raise UserError(
            f"--data {folder}: {data.task.name} was prepared without its {file}; put it into GLUE's folder and run glue "
            "prepare --overwrite"
        )
    return data.rows[split]
