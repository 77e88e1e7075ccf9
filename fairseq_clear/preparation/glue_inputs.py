"""The texts of a task of GLUE as a corpus, without their labels: what CERT section 4 trains on.

Every text is a document of its own, also one that occurs again: nothing is left out but blank ones. Of a pair the texts
are two documents, or joined by a space in one line.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.glue.reading import find_task_folder, read_examples
from fairseq_clear.evaluation.glue.tasks import GLUE_TASKS, GlueTask
from fairseq_clear.preparation.corpus import Unit, canonical_lines

_NO_TEXT = re.compile(r"[\0\r]")


@dataclass
class GlueInputs:
    """One task's texts.

    Args:
        folder: of the task's files.
        task: what they are called.
        splits: fairseq's names of the splits to read.
        is_joined: whether a pair is one line.
        drop_malformed: leave malformed lines out and count them; otherwise they are an error.
        dropped: how many were left out, after ``lines``.
    """

    folder: Path
    task: GlueTask
    splits: Sequence[str]
    is_joined: bool
    drop_malformed: bool
    dropped: int = field(default=0, init=False)

    @property
    def paths(self) -> list[Path]:
        """The files."""
        return [self.folder / self.task.splits[split] for split in self.splits]

    def lines(self, progress: Callable[[int], object]) -> Iterator[str]:
        """Yield the canonical lines; ``progress`` is called with the size of each file that is read.

        Raises:
            UserError: a missing file or column, a malformed line.
        """
        return canonical_lines(self._units(progress))

    def _units(self, progress: Callable[[int], object]) -> Iterator[Unit]:
        for split, path in zip(self.splits, self.paths, strict=True):
            examples = read_examples(path, self.task, split, drop_malformed=self.drop_malformed)
            self.dropped += examples.dropped
            for row in zip(*examples.texts, strict=True):
                for text in [" ".join(row)] if self.is_joined else row:
                    yield _NO_TEXT.sub(" ", text).strip()
                    yield None
            progress(path.stat().st_size)


def find_glue_inputs(
    glue_dir: Path, name: str, splits: Sequence[str], *, is_joined: bool, drop_malformed: bool
) -> GlueInputs:
    """Find a task's files.

    Args:
        glue_dir: with a folder for each task in it.
        name: of the task; upper and lower case do not matter.
        splits: ``train``, ``dev`` (of MNLI, both).
        is_joined: whether a pair is one line.
        drop_malformed: leave malformed lines out and count them.

    Raises:
        UserError: no such task, or none of its files.
    """
    tasks = {known.lower(): task for known, task in GLUE_TASKS.items()}
    task = tasks.get(name.lower())
    if task is None or "train" not in task.splits:
        trained = ", ".join(task.name for task in tasks.values() if "train" in task.splits)
        raise UserError(f"--glue-task {name}: no task of GLUE with training data; choose from {trained}")
    try:
        folder = find_task_folder(glue_dir, task)
    except UserError as error:
        raise UserError(f"--glue-task {task.name}: {str(error).removeprefix('--glue-dir ')}") from None
    prefixes = {"train": "train", "dev": "valid"}
    wanted = [known for split in dict.fromkeys(splits) for known in task.splits if known.startswith(prefixes[split])]
    return GlueInputs(folder, task, wanted, is_joined, drop_malformed)
