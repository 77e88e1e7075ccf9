"""``clear_nt_xent``: CLEAR's loss, NT-Xent over the views of the global batch beside the masked language model."""

from dataclasses import dataclass, field
from typing import Any

import torch
from fairseq.criterions import register_criterion
from fairseq.dataclass import ChoiceEnum
from torch import Tensor

from fairseq_clear.criterions.contrastive import ContrastiveConfig, ContrastiveCriterion, data_parallel_group
from fairseq_clear.distributed import all_gather_ragged
from fairseq_clear.errors import UserError
from fairseq_clear.objectives import nt_xent

__all__ = ["ClearNTXentConfig", "ClearNTXentCriterion"]

NEGATIVES = ChoiceEnum(["batch", "global"])


@dataclass
class ClearNTXentConfig(ContrastiveConfig):
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


@register_criterion("clear_nt_xent", dataclass=ClearNTXentConfig)
class ClearNTXentCriterion(ContrastiveCriterion):
    """CLEAR eq. 1 to 3 (arXiv:2012.15466): L_MLM + weight * L_CL, L_CL as SimCLR's mean over the 2N views.

    The paper's eq. 2 is the sum over the batch; the mean keeps its weight independent of the batch size.
    """

    cfg: ClearNTXentConfig

    def __init__(self, cfg: ClearNTXentConfig, task: Any) -> None:
        super().__init__(cfg, task)
        if not cfg.temperature > 0:
            raise UserError(f"--temperature {cfg.temperature}: it divides the cosine and must be above 0")

    def contrast(self, projections: Tensor, views: dict[str, Any]) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Symmetric NT-Xent: anchors against (the mean of) their positives and the reverse."""
        identity = views["identity"]  # (N,)
        texts = identity.shape[0]
        anchors, positives = projections[:texts], projections[texts:]
        if texts:
            positives = positives.view(texts, -1, positives.shape[-1]).mean(dim=1)  # (N, D), DeCLUTR section 3.1
        queries = torch.cat([anchors, positives])  # (2N, D)
        identity = torch.cat([identity, identity])  # (2N,)

        keys, key_identity, offset = queries, identity, 0
        if str(self.cfg.negatives) == "global":
            keys, offset = all_gather_ragged(queries, data_parallel_group())  # (K, D)
            key_identity, _ = all_gather_ragged(identity, data_parallel_group())
        own = torch.arange(2 * texts, device=queries.device) + offset
        positive = own.roll(texts)
        excluded = torch.zeros(2 * texts, keys.shape[0], dtype=torch.bool, device=queries.device)
        excluded.scatter_(1, own.unsqueeze(1), True)
        if not self.cfg.keep_duplicates:
            excluded |= identity.unsqueeze(1) == key_identity.unsqueeze(0)
        return nt_xent(queries, keys, positive, temperature=self.cfg.temperature, excluded=excluded)
