"""``clear_nt_xent``: CLEAR's loss, masked language modelling plus NT-Xent over the views of the batch."""

from dataclasses import dataclass, field
from typing import Any

import torch
from fairseq.criterions import register_criterion
from torch import Tensor

from fairseq_clear.criterions.contrastive import FALSE_NEGATIVES_HELP, InBatchConfig, InBatchCriterion
from fairseq_clear.distributed import Layout, all_gather_rows
from fairseq_clear.objectives.false_negatives import exclude_nearer, parse_false_negatives
from fairseq_clear.objectives.negatives import count_candidates

__all__ = ["ClearNTXentConfig", "ClearNTXentCriterion"]


@dataclass
class ClearNTXentConfig(InBatchConfig):
    """Settings of ``clear_nt_xent``."""

    false_negatives: str = field(default="none", metadata={"help": FALSE_NEGATIVES_HELP})


@register_criterion("clear_nt_xent", dataclass=ClearNTXentConfig)
class ClearNTXentCriterion(InBatchCriterion):
    """CLEAR eq. 1 to 3 (arXiv:2012.15466): L_MLM + weight * L_CL, L_CL as SimCLR's mean over the 2N views.

    The paper's eq. 2 is the sum over the batch; the mean keeps its weight independent of the batch size.
    """

    cfg: ClearNTXentConfig
    takes_hard_negatives = True

    def __init__(self, cfg: ClearNTXentConfig, task: Any) -> None:
        super().__init__(cfg, task)
        self.margin = parse_false_negatives(str(cfg.false_negatives))

    def gathered_rows(self, views: dict[str, Any]) -> dict[str, int]:
        """Both views of each text, and the hard negatives."""
        queries = {"queries": 2 * views["identity"].shape[0]}
        return {**queries, "negatives": views["negative_identity"].shape[0]} if self.has_hard_negatives else queries

    def contrast(
        self, vectors: dict[str, Tensor], views: dict[str, Any], layouts: dict[str, Layout]
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Compute symmetric NT-Xent: each anchor is contrasted with (the mean of) its positives, and the reverse.

        The hard negatives of all texts are further candidates of every query (SimCSE, arXiv:2104.08821, eq. 5).
        """
        projections = vectors["projections"]  # (N + N * P + N * H, D)
        texts, hard = views["identity"].shape[0], views["negative_identity"].shape[0]
        last = projections.shape[0] - hard
        anchors, positives, negatives = projections[:texts], projections[texts:last], projections[last:]
        if texts:
            positives = positives.view(texts, -1, positives.shape[-1]).mean(dim=1)  # (N, D), DeCLUTR section 3.1
        queries = torch.cat([anchors, positives])  # (2N, D)
        identity = views["identity"].repeat(2)  # (2N,)

        layout = layouts["queries"]
        keys, key_identity = all_gather_rows(queries, layout), all_gather_rows(identity, layout)  # (K, D), (K,)
        own = torch.arange(2 * texts, device=queries.device) + layout.offset
        if self.has_hard_negatives:
            layout = layouts["negatives"]
            keys = torch.cat([keys, all_gather_rows(negatives, layout)])
            key_identity = torch.cat([key_identity, all_gather_rows(views["negative_identity"], layout)])
        excluded, positive = self.excluded(own, identity, key_identity), own.roll(texts)
        counted = {}
        if self.margin is not None:
            others = excluded.with_own(positive)
            counted["candidates"] = count_candidates(others, len(queries), len(keys), queries.device)
            excluded = exclude_nearer(excluded, queries, keys, keys[positive], self.margin)
        loss, rows, statistics = self.objective.function(
            queries, keys, positive, temperature=self.cfg.temperature, excluded=excluded
        )
        return loss, rows, {**statistics, **counted}
