"""Base class of criterions with in-batch negatives: the other texts of this worker's or of all workers' batch."""

from dataclasses import dataclass, field

import torch
from fairseq.dataclass import ChoiceEnum
from torch import Tensor

from fairseq_clear.criterions.contrastive import ContrastiveConfig, ContrastiveCriterion
from fairseq_clear.distributed import Layout
from fairseq_clear.objectives.exclusion import Exclusion

__all__ = ["InBatchConfig", "InBatchCriterion"]

NEGATIVES = ChoiceEnum(["batch", "global"])


@dataclass
class InBatchConfig(ContrastiveConfig):
    """Settings of the contrastive term."""

    temperature: float = field(
        default=0.1,
        metadata={
            "help": "tau > 0 divides the cosine (CLEAR eq. 1; CLEAR states no value, this is ours; SimCSE, DeCLUTR: 0.05)"
        },
    )
    negatives: NEGATIVES = field(
        default="global", metadata={"help": "contrast with the views of this worker's batch, or of all workers'"}
    )
    keep_duplicates: bool = field(
        default=False,
        metadata={"help": "let views of the same text, met twice in a batch, be negatives of each other"},
    )


class InBatchCriterion(ContrastiveCriterion):
    """A contrastive criterion without a queue."""

    cfg: InBatchConfig

    def layout(self, rows: int, device: torch.device) -> Layout:
        """The number of such rows on each worker that takes part in the contrast."""
        return Layout((rows,)) if str(self.cfg.negatives) == "batch" else super().layout(rows, device)

    def excluded(self, own: Tensor, identity: Tensor, key_identity: Tensor) -> Exclusion:
        """Exclude a query's own row, given by index, and duplicates of its text."""
        return Exclusion(own.unsqueeze(1), None if self.cfg.keep_duplicates else (identity, key_identity))
