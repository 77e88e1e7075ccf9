"""The tasks of GLUE (Wang et al. 2018, arXiv:1804.07461) in one table: files, columns, labels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fairseq_clear.errors import UserError

__all__ = ["GLUE_TASKS", "MAXIMUM_SCORE", "GlueTask", "choose_tasks"]

# Scores of STS-B are 0 to 5; models are trained on a fifth of them, as fairseq's preprocess_GLUE_tasks.sh does.
MAXIMUM_SCORE = 5.0

_SPLITS = {"train": "train.tsv", "valid": "dev.tsv", "test": "test.tsv"}
_MNLI_SPLITS = {
    "train": "train.tsv",
    "valid": "dev_matched.tsv",
    "valid1": "dev_mismatched.tsv",
    "test": "test_matched.tsv",
    "test1": "test_mismatched.tsv",
}
_ENTAILMENT = ("entailment", "not_entailment")
_BINARY = ("0", "1")


@dataclass(frozen=True)
class GlueTask:
    """One task.

    Attributes:
        name: as GLUE's leaderboard writes it.
        texts: names of the columns of the one or two texts.
        label: name of the column of the label.
        labels: in the order of their class ids; none where a score is predicted.
        splits: fairseq's name of a split -> file; ``valid1`` and ``test1`` are MNLI's mismatched ones.
        headless: splits whose file has no header, with the columns that it has instead.
        renamed: column -> what it is called in files without labels.
        folders: where its files lie in the folder of GLUE.
        submission: file of the submission -> split.
        evaluated_as: the task whose model predicts it, where it has no training data.
    """

    name: str
    texts: tuple[str, ...]
    label: str
    labels: tuple[str, ...]
    splits: Mapping[str, str]
    headless: Mapping[str, tuple[str, ...]]
    folders: tuple[str, ...]
    submission: Mapping[str, str]
    evaluated_as: str

    @property
    def is_regression(self) -> bool:
        """Whether it predicts a score (STS-B)."""
        return not self.labels

    @property
    def outputs(self) -> int:
        """Width of the classification head."""
        return len(self.labels) or 1


def _task(
    name: str,
    texts: tuple[str, ...],
    label: str,
    labels: tuple[str, ...],
    *,
    splits: Mapping[str, str] = _SPLITS,
    headless: Mapping[str, tuple[str, ...]] | None = None,
    folders: tuple[str, ...] = (),
    submission: Mapping[str, str] | None = None,
    evaluated_as: str = "",
) -> GlueTask:
    files = submission or {f"{name}.tsv": "test"}
    return GlueTask(name, texts, label, labels, splits, headless or {}, folders or (name,), files, evaluated_as or name)


_PAIR = ("sentence1", "sentence2")
_COLA = ("source", "label", "mark", "sentence")
_NLI = ("contradiction", "entailment", "neutral")

GLUE_TASKS: dict[str, GlueTask] = {
    task.name: task
    for task in (
        _task("CoLA", ("sentence",), "label", _BINARY, headless={"train": _COLA, "valid": _COLA}),
        _task("SST-2", ("sentence",), "label", _BINARY),
        _task("MRPC", ("#1 String", "#2 String"), "Quality", _BINARY),
        _task("STS-B", _PAIR, "score", ()),
        _task("QQP", ("question1", "question2"), "is_duplicate", _BINARY),
        _task(
            "MNLI", _PAIR, "gold_label", _NLI,
            splits=_MNLI_SPLITS, submission={"MNLI-m.tsv": "test", "MNLI-mm.tsv": "test1"},
        ),
        _task("QNLI", ("question", "sentence"), "label", _ENTAILMENT),
        _task("RTE", _PAIR, "label", _ENTAILMENT),
        _task("WNLI", _PAIR, "label", _BINARY),
        # the diagnostic set: no training data, no labels; MNLI's model predicts it
        _task(
            "AX", _PAIR, "", _NLI,
            splits={"test": "diagnostic.tsv"}, folders=("AX", "diagnostic"), evaluated_as="MNLI",
        ),
    )
}  # fmt: skip


def choose_tasks(names: Sequence[str]) -> list[GlueTask]:
    """The tasks of these names, in the table's order; upper and lower case do not matter.

    Raises:
        UserError: no such task.
    """
    known = {name.lower(): name for name in GLUE_TASKS}
    for name in names:
        if name.lower() not in known:
            raise UserError(f"--tasks {name}: no such task of GLUE; valid are {', '.join(GLUE_TASKS)}")
    wanted = {known[name.lower()] for name in names}
    return [task for name, task in GLUE_TASKS.items() if name in wanted]
