"""``clear_nt_xent``: CLEAR's loss, masked language modelling plus NT-Xent over the views of the batch."""

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.criterions import register_criterion
from fairseq.dataclass import ChoiceEnum
from torch import Tensor

from fairseq_clear.criterions.contrastive import (
    InBatchConfig,
    InBatchCriterion,
    MaskingConfig,
    MaskingCriterion,
    mean_of_positives,
)
from fairseq_clear.data.batch import Views
from fairseq_clear.distributed import Layout, all_gather_rows
from fairseq_clear.objectives.false_negatives import exclude_nearer
from fairseq_clear.objectives.negatives import Result, count_candidates
from fairseq_clear.settings import setting

DIRECTIONS = ChoiceEnum(["both", "one"])


@dataclass
class ClearNTXentConfig(MaskingConfig, InBatchConfig):
    """Settings of ``clear_nt_xent``."""

    directions: DIRECTIONS = setting(  # type: ignore[valid-type]
        "both: every view is a query, and all other views of the batch are its candidates (SimCLR, CLEAR: 2N - 2 "
        "negatives); one: only the anchors are queries, and only the positives are candidates (SimCSE eq. 1: N - 1 "
        "negatives)",
        "both",
    )


@register_criterion("clear_nt_xent", dataclass=ClearNTXentConfig)
class ClearNTXentCriterion(MaskingCriterion, InBatchCriterion):
    """CLEAR eq. 1 to 3 (arXiv:2012.15466): L_MLM + weight * L_CL, where L_CL is SimCLR's mean over the 2N views.

    The paper's eq. 2 is the sum over the batch. With the mean, the weight does not depend on the batch size.

    ``--directions`` chooses queries and candidates together, as in the papers. With ``both``, the 2N views are queries, and
    all views are candidates, including the query's own side (SimCLR, CLEAR). With ``one``, the N anchors are queries, and
    the N positives are candidates: SimCSE's loss (arXiv:2104.08821), eq. 1 and 4. CLIP's loss, two directions without
    candidates from the query's own side, is not available.
    """

    cfg: ClearNTXentConfig
    takes_hard_negatives = True

    def __init__(self, cfg: ClearNTXentConfig, task: Any) -> None:
        super().__init__(cfg, task)
        self.sides = 1 if str(cfg.directions) == "one" else 2  # queries per text, and candidates per text

    def gathered_rows(self, views: Views) -> dict[str, int]:
        """Return the number of queries (as many as candidates), and the number of hard negatives."""
        hard = views.negative_identity.shape[0]
        return {"queries": self.sides * views.anchors, **({"negatives": hard} if hard else {})}

    def _layouts(self, views: Views, is_empty: bool) -> dict[str, Layout]:
        """As in the base class, but in one collective: a text has as many hard negatives on every worker."""
        queries = 0 if is_empty else self.gathered_rows(views)["queries"]
        layouts = {"queries": self.layout(queries, views.tokens.device)}
        if hard := views.negative_identity.shape[0] // max(views.anchors, 1):  # of a text
            counts = tuple(count // self.sides * hard for count in layouts["queries"].counts)
            layouts["negatives"] = replace(layouts["queries"], counts=counts)
        return layouts

    def contrast(self, vectors: dict[str, Tensor], views: Views, layouts: dict[str, Layout]) -> Result:
        """Compute NT-Xent from each anchor to (the mean of) its positives, and with ``both`` also in reverse.

        The hard negatives of all texts are also candidates of every query (SimCSE, arXiv:2104.08821, eq. 5).
        """
        queries, keys = self.candidates_of(vectors["projections"], views, layouts)  # (Q, D), (K, D)
        anchors, layout = views.anchors, layouts["queries"]
        identity = torch.cat([views.identity] * self.sides)  # (Q,) or (Q, I), Q = 2N or N
        key_identity = all_gather_rows(identity, layout)  # (K,) or (K, I)
        own = torch.arange(self.sides * anchors, device=queries.device) + layout.offset
        absent = None
        if "negatives" in layouts:
            hard_identity, absent = self._hard_negatives(views, layouts["negatives"])
            key_identity = torch.cat([key_identity, hard_identity])
            absent = F.pad(absent, (len(keys) - len(absent), 0))
        excluded = replace(self.excluded(own, identity, key_identity), absent=absent)
        positive = own.roll(anchors)  # with one side, own is the positive
        counted = {}
        if self.margin is not None:
            others = excluded.with_own(positive)
            counted["candidates"] = count_candidates(others, len(queries), len(keys), queries.device)
            judged, judged_keys = queries, keys
            if self.guide is not None:
                judged, judged_keys = self.candidates_of(vectors["view_guides"], views, layouts)  # (Q, G), (K, G)
            excluded = exclude_nearer(excluded, judged, judged_keys, judged_keys[positive], self.margin)
        loss, rows, statistics = self.objective.function(
            queries, keys, positive, temperature=self.cfg.temperature, excluded=excluded
        )
        return loss, rows, {**statistics, **counted}

    def _hard_negatives(self, views: Views, layout: Layout) -> tuple[Tensor, Tensor]:
        """Return the hashes of the hard negatives of all workers, and which of them are blank: (H,) bool. A collective.

        A blank hard negative was replaced by its text, whose hash is the first. It is a candidate of no query; otherwise its
        text would be two negatives of each other text.
        """
        hashes = views.negative_identity
        texts, own = (some if some.dim() == 1 else some[:, 0] for some in (views.identity, hashes))
        is_blank = own == texts.repeat_interleave(len(own) // max(views.anchors, 1))
        found = all_gather_rows(torch.column_stack([hashes, is_blank]), layout)
        return found[:, :-1].reshape(-1, *hashes.shape[1:]), found[:, -1].bool()

    def candidates_of(self, vectors: Tensor, views: Views, layouts: dict[str, Layout]) -> tuple[Tensor, Tensor]:
        """Return the queries of this worker (Q, D) and the keys of all workers (K, D). A collective.

        With ``both``, the queries are anchors and then (means of) positives, and the keys are the queries of all workers. With
        ``one``, the queries are the anchors, and the keys are the (means of) positives of all workers. The last keys are the
        hard negatives of all workers. ``vectors`` (N + N * P + N * H, D) has one for each row of the views.
        """
        count, hard = views.anchors, views.negative_identity.shape[0]
        last = vectors.shape[0] - hard
        anchors, negatives = vectors[:count], vectors[last:]
        positives = mean_of_positives(vectors[count:last], count)  # (N, D)
        queries, candidates = anchors, positives
        if self.sides == 2:
            queries = candidates = torch.cat([anchors, positives])  # (2N, D)
        keys = all_gather_rows(candidates, layouts["queries"])
        if "negatives" in layouts:
            keys = torch.cat([keys, all_gather_rows(negatives, layouts["negatives"])])
        return queries, keys
