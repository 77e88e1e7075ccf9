"""Warnings that a run deserves once: views told apart too easily, batches without negatives."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["Watch"]

logger = logging.getLogger(__name__)

EASY_ACCURACY = 0.99
EARLY_SHARE = 0.01
EARLY_UPDATES = 100  # where the run has no --max-update to take a share of


class Watch:
    """Reads the summed statistics of each update and warns, each warning once.

    CLEAR section 4.2 saw substitution and reordering alone converge at once or blow up: such views are too easy to tell
    apart. An accuracy above 0.99 within the first hundredth of the updates is that.
    """

    def __init__(self) -> None:
        self.update: int | None = None
        self.said: set[str] = set()

    @property
    def is_training(self) -> bool:
        """Whether what is being logged is an update, not a validation."""
        return self.update is not None

    def begin_training(self, update: int) -> None:
        """An update of this number is being made."""
        self.update = update

    def end_training(self) -> None:
        """What comes now is validation."""
        self.update = None

    def __call__(self, logs: Sequence[Mapping[str, Any]], max_update: int) -> None:
        """Look at the logging outputs of one update (of all workers)."""
        if self.update is None or not any("queries" in log for log in logs):
            return
        queries = float(sum(log["queries"] for log in logs))
        # a queue is empty at first and fills by itself
        has_queue = any("queue_fill" in log for log in logs)
        if not has_queue and float(sum(log["without_negatives"] for log in logs)) > 0:
            self._say(
                "negatives",
                "a batch held no negatives: it trained the masked language model alone. Larger batches (--batch-size, "
                "--max-tokens), --negatives global with several workers, or less repetitive text give some",
            )
        early = EARLY_SHARE * max_update if max_update else EARLY_UPDATES
        if queries and self.update < early:
            accuracy = float(sum(log["correct"] for log in logs)) / queries
            if accuracy > EASY_ACCURACY:
                self._say(
                    "easy",
                    f"contrastive accuracy is {accuracy:.3f} at update {self.update}, so early: the views are too easy to "
                    "tell apart (CLEAR section 4.2). Delete more (del-word:ratio=0.7), chain augmentations, or "
                    "enlarge the batch",
                )

    def _say(self, kind: str, message: str) -> None:
        if kind not in self.said:
            self.said.add(kind)
            logger.warning(message)
