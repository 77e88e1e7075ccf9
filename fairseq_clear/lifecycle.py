"""What the task, the model and the criterion of a run call on each other, and what fairseq's patches call on them.

The order of a run:

1. The settings are checked: ``check_run`` of the model, the task and the criterion.
2. The model and the criterion are built; ``attach`` and ``complete`` prepare the model for the criterion's ``needs``.
3. A checkpoint is checked (``check_checkpoint``) and loaded; the run begins: ``begin`` of the task, which calls the model's.
4. Each micro-batch is one forward pass of the model. Each update ends with ``after_update``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

register: Callable[[], None]
"""``fairseq_clear.register``, which is called when fairseq imports a ``--user-dir``; set when the package is imported."""


@dataclass(frozen=True)
class Needs:
    """What a criterion needs of the data and of the model. By default, what ``masked_lm`` needs.

    Attributes:
        mlm: masked texts and the MLM head.
        views: views of the texts and the projection head.
        joint_anchors: the anchors that are embedded are masked, see ``--anchor-mlm joint``.
        one_positive: each anchor has one positive.
        hard_negatives: whether the criterion uses the hard negatives of view sources.
        guide: value of ``--guide``, an encoder that the task loads for the criterion; None without a guide.
        max_update: number of updates of the run; 0 if it is not limited.
    """

    mlm: bool = True
    views: bool = False
    joint_anchors: bool = False
    one_positive: bool = False
    hard_negatives: bool = False
    guide: str | None = None
    max_update: int = 0


@runtime_checkable
class CheckedPart(Protocol):
    """A model, task or criterion of the plugin. The settings of a run without one, of stock fairseq, are not checked."""

    @classmethod
    def check_run(cls, cfg: Any) -> None:
        """Check, and complete, the settings of a run before anything is read or written; UserError for the first wrong one."""


@runtime_checkable
class RunTask(CheckedPart, Protocol):
    """A task whose runs the patches check. fairseq's own tasks are left alone."""

    def check_checkpoint(self, trainer: Any, path: str, state: dict[str, Any], *, resumes: bool) -> None:
        """Check a checkpoint from which the run is about to resume, or only to start from its weights; else UserError."""

    def begin(self, trainer: Any) -> None:
        """Called once, after a checkpoint was loaded and before the first update of this process."""


@runtime_checkable
class RunCriterion(CheckedPart, Protocol):
    """A criterion of the plugin. Another one, such as ``masked_lm``, has the default ``Needs``."""

    needs: Needs

    def attach(self, model: Any) -> None:
        """Add to the model what the loss is computed with, such as the projection head, key encoder and queue."""


@runtime_checkable
class ContrastiveModel(CheckedPart, Protocol):
    """A model that contrastive criterions train."""

    def complete(self, needs: Needs) -> None:
        """Freeze what the criterion does not use, and compile; called when the criterion has attached its parts."""

    def begin(self) -> None:
        """Copy the weights to the key encoders; called once for a run, after its start was loaded."""

    def after_update(self, *, overflowed: bool = False) -> None:
        """Update the key encoders; called after each optimizer update, also if it ``overflowed`` and changed nothing."""
