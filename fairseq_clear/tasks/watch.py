"""Warnings during training, each logged once: batches without negatives, and views that are too easy."""

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["Watch"]

logger = logging.getLogger(__name__)

EASY_ACCURACY = 0.99
WINDOW = 20  # updates
CANDIDATES = 32  # per query, the positive included
EARLY_SHARE = 0.01
EARLY_UPDATES = 100


class Watch:
    """Watches the statistics of updates, and logs each warning once.

    In CLEAR section 4.2, training with only substitution or reordering converges at once or diverges, because matching such
    views is too easy. The warning is logged if the accuracy over the last 20 updates is above 0.99 with at least 32 candidates
    per query on average, within the first hundredth of the updates or the first 100.

    Args:
        dropout_only: views differ only by dropout, as in SimCSE. A high accuracy is then expected and not warned about.
    """

    def __init__(self, *, dropout_only: bool = False) -> None:
        self.dropout_only = dropout_only
        self.update: int | None = None
        self.said: set[str] = set()
        self.recent: deque[tuple[float, float, float]] = deque(maxlen=WINDOW)  # correct, queries, negatives

    @property
    def is_training(self) -> bool:
        """Whether the next statistics are those of an update rather than a validation."""
        return self.update is not None

    def begin_training(self, update: int) -> None:
        """Treat the next statistics as those of this update."""
        self.update = update

    def end_training(self) -> None:
        """Treat the next statistics as those of a validation."""
        self.update = None

    def __call__(self, logs: Sequence[Mapping[str, Any]], max_update: int) -> None:
        """Check the logging outputs of one update, of all workers."""
        if self.update is None or not any("queries" in log for log in logs):
            return
        # an empty queue needs no warning, because it fills in the first updates
        has_queue = any("queue_fill" in log for log in logs)
        if not has_queue and _total(logs, "without_negatives") > 0:
            self._say(
                "negatives",
                "a batch held no negatives: it only trained the masked language model. Larger batches (--batch-size, "
                "--max-tokens), --negatives global with several workers, or less repetitive text give some",
            )
        # with --false-negatives harder candidates than the positive are masked, so a high accuracy is expected
        is_masked = any("candidates" in log for log in logs)
        if not self.dropout_only and not is_masked and self.update < max(EARLY_SHARE * max_update, EARLY_UPDATES):
            self._look_for_easy_views(logs)

    def _look_for_easy_views(self, logs: Sequence[Mapping[str, Any]]) -> None:
        self.recent.append((_total(logs, "correct"), _total(logs, "queries"), _total(logs, "negatives")))
        correct, queries, negatives = (sum(numbers) for numbers in zip(*self.recent, strict=True))
        is_enough = len(self.recent) == WINDOW and queries and 1 + negatives / queries >= CANDIDATES
        if is_enough and correct / queries > EASY_ACCURACY:
            self._say(
                "easy",
                f"contrastive accuracy is {correct / queries:.3f} over the {WINDOW} updates up to {self.update}: the views "
                "are too easy to tell apart (CLEAR section 4.2). Delete more (del-word:ratio=0.7), chain augmentations, or "
                "enlarge the batch",
            )

    def _say(self, kind: str, message: str) -> None:
        if kind not in self.said:
            self.said.add(kind)
            logger.warning(message)


def _total(logs: Sequence[Mapping[str, Any]], name: str) -> float:
    return float(sum(log.get(name, 0) for log in logs))
