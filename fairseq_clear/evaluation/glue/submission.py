"""The zip file that GLUE's test server takes."""

import io
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.glue.inputs import TaskData
from fairseq_clear.evaluation.glue.tasks import MAXIMUM_SCORE, GlueTask

__all__ = ["SUBMISSION_FILES", "format_predictions", "majority", "write_submission"]

# in the zip's own order; the server wants every one of them
SUBMISSION_FILES = (
    *("CoLA.tsv", "SST-2.tsv", "MRPC.tsv", "STS-B.tsv", "MNLI-m.tsv", "MNLI-mm.tsv", "QNLI.tsv", "RTE.tsv"),
    *("WNLI.tsv", "QQP.tsv", "AX.tsv"),
)
_DATE = (1980, 1, 1, 0, 0, 0)  # so that the same predictions make the same file


def format_predictions(task: GlueTask, predicted: npt.NDArray[np.generic]) -> str:
    """``index<TAB>prediction`` lines under that header: labels as GLUE writes them, scores from 0 to 5.

    Args:
        task: which.
        predicted: (N,) class ids, or scores.
    """
    if task.is_regression:
        cells: Sequence[str] = [f"{score:.3f}" for score in np.clip(predicted.astype(np.float64), 0, MAXIMUM_SCORE)]
    else:
        cells = [task.labels[int(index)] for index in predicted]
    return "index\tprediction\n" + "".join(f"{number}\t{cell}\n" for number, cell in enumerate(cells))


def majority(data: TaskData, rows: int) -> npt.NDArray[np.float64] | npt.NDArray[np.int64]:
    """The most frequent label of the training split for every row, or STS-B's mean score: (rows,)."""
    gold = data.gold("train")
    if data.task.is_regression:
        return np.full(rows, gold.mean())
    return np.full(rows, int(np.bincount(gold.astype(np.int64)).argmax()), np.int64)


def write_submission(path: Path, contents: Mapping[str, str]) -> list[str]:
    """Write the zip, whole or not at all; return the names of files that the server wants and that are not in it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in sorted(contents, key=SUBMISSION_FILES.index):
            entry = zipfile.ZipInfo(name, _DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, contents[name])
    beside = path.with_name(f".{path.name}.partial")
    try:
        beside.write_bytes(buffer.getvalue())
        beside.replace(path)
    except OSError as error:
        raise UserError(f"--output {path}: cannot write it ({error.strerror or error})") from None
    return [name for name in SUBMISSION_FILES if name not in contents]
