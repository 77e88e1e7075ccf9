"""``clear_moco``: CERT's loss, which contrasts queries with a queue of keys from a momentum encoder."""

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from fairseq.criterions import register_criterion
from omegaconf import II
from torch import Tensor

from fairseq_clear.criterions.contrastive import MaskingConfig, MaskingCriterion, data_parallel_group, mean_of_positives
from fairseq_clear.data.batch import Views
from fairseq_clear.distributed import Layout, all_gather_rows, world_size
from fairseq_clear.modules.key_queue import KeyQueue
from fairseq_clear.modules.momentum_encoder import MomentumEncoder
from fairseq_clear.objectives.exclusion import Exclusion
from fairseq_clear.objectives.false_negatives import exclude_nearer
from fairseq_clear.objectives.negatives import Result, count_candidates
from fairseq_clear.settings import setting
from fairseq_clear.views.view_table import count_hashes

# Micro-batches between two checks that all workers hold the same queue.
CHECK_EVERY = 1_000


@dataclass
class ClearMocoConfig(MaskingConfig):
    """CERT's settings as defaults."""

    objective: str = setting("contrastive loss over the queue: info-nce (CERT eq. 2)", "info-nce")
    temperature: float = setting("tau > 0 divides the cosine (CERT: 0.07)", 0.07)
    queue_size: int = setting("K, number of keys in the queue; may be smaller than a batch (CERT: 96,606)", 96_606)
    symmetric: bool = setting("let each of the two views be the query once; in CERT and MoCo only the anchor is", False)
    keep_duplicates: bool = setting("let older keys of the query's own text be its negatives, as MoCo does", False)
    mlm_weight: float = setting("weight of an additional masked language model loss (CERT: none)", 0.0)
    amp: bool = II("common.amp")


@register_criterion("clear_moco", dataclass=ClearMocoConfig)
class ClearMocoCriterion(MaskingCriterion):
    """CERT section 4 (Fang et al. 2020, arXiv:2005.12766): the anchor is the query, its positive is encoded as the key.

    The queue is empty at first. Places that were never written are not candidates, so the queries of the first micro-batch are
    not counted. In training, the keys of all workers enter every worker's queue after the logits are computed. If an update
    overflows, the key encoder does not change. Its keys stay in the queue with --fp16, which continues with the next batch, and
    are removed with --amp, which repeats the batch.
    """

    cfg: ClearMocoConfig
    key_encoder = "momentum"
    candidates = "queue"

    def __init__(self, cfg: ClearMocoConfig, task: Any) -> None:
        super().__init__(cfg, task)
        self.batches = 0
        self.needs = replace(self.needs, one_positive=cfg.symmetric)

    def attach(self, model: Any) -> None:
        """Add the key encoder and the queue to the model, unless there is no contrastive term."""
        super().attach(model)
        if not self.needs.views:
            return
        momentum = model.args.key_momentum
        encoder = MomentumEncoder(model.backbone, model.projection_head, momentum, model.args.pooling)
        # With --amp, fairseq repeats a batch that overflows, so its keys must be removed again.
        guided = 0 if self.guide is None else self.guide.width
        width = model.projection_head.output_dim
        hashes = count_hashes(self.task.cfg.views)
        queue = KeyQueue(self.cfg.queue_size, width, hashes=hashes, guide_width=guided, undoable=self.cfg.amp)
        model.key_encoder, model.key_queue = encoder, queue
        # In a list, so that the queue's buffers are not registered as the criterion's too.
        self._held = [queue]

    def view_inputs(self, views: Views) -> dict[str, Any]:
        """Anchors go to the query encoder, positives to the key encoder; with ``symmetric``, both go to both."""
        tokens, lengths, anchors = views.tokens, views.lengths, views.anchors
        keys, key_lengths = tokens[anchors:], lengths[anchors:]
        queries, query_lengths = tokens[:anchors], lengths[:anchors]
        if self.cfg.symmetric:
            keys, key_lengths = torch.cat([keys, queries]), key_lengths + query_lengths
            queries, query_lengths = tokens, lengths
        return {"views": queries, "view_lengths": query_lengths, "key_texts": keys, "key_lengths": key_lengths}

    def gathered_rows(self, views: Views) -> dict[str, int]:
        """The keys, in training only: validation does not change the queue."""
        return {"keys": views.anchors * (1 + self.cfg.symmetric)} if self.training else {}

    def contrast(self, vectors: dict[str, Tensor], views: Views, layouts: dict[str, Layout]) -> Result:
        """Compute InfoNCE against the queue, then enqueue the keys of all workers."""
        queue = self._held[0]
        queries, keys = vectors["projections"], vectors["keys"]  # (Q, D), (Q * P, D)
        identity = torch.cat([views.identity] * (1 + self.cfg.symmetric))  # (Q,) or (Q, I)
        keys = mean_of_positives(keys, len(queries))  # (Q, D)
        judged, judged_keys, judged_queue = queries, keys, queue.keys
        if self.guide is not None:
            judged, judged_keys = self._guided(vectors["view_guides"], views.anchors)  # (Q, G) each
            judged_queue = queue.guides
        same_text = None if self.cfg.keep_duplicates else (identity, queue.identities)
        excluded = Exclusion(identities=same_text, absent=~queue.is_written)
        number = {}
        if self.margin is not None:
            number["candidates"] = count_candidates(excluded, len(queries), queue.size, queries.device)
            excluded = exclude_nearer(excluded, judged, judged_queue, judged_keys, self.margin)
        loss, counted, statistics = self.objective.function(
            queries, keys, queue.keys, temperature=self.cfg.temperature, excluded=excluded
        )
        statistics |= number
        statistics["queue_fill"], statistics["queue_readings"] = queue.fill.float(), torch.ones_like(counted)
        if self.training:
            rows = (keys.detach(), identity, *(() if self.guide is None else (judged_keys,)))
            queue.enqueue(*(all_gather_rows(self._by_text(some), layouts["keys"]) for some in rows))
            self._check_now_and_then(queue)
        return loss, counted, statistics

    def _by_text(self, rows: Tensor) -> Tensor:
        """Order the keys of both directions by their texts, so that they enter the queue as those of one worker do."""
        if not self.cfg.symmetric:
            return rows
        return rows.unflatten(0, (2, len(rows) // 2)).transpose(0, 1).flatten(0, 1)

    def _guided(self, vectors: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Select the guide's vectors of queries and of keys, (Q, G) each, from its vectors of all views, (N + N * P, G)."""
        anchors, positives = vectors[:count], vectors[count:]
        if self.cfg.symmetric:
            return vectors, torch.cat([positives, anchors])
        return anchors, mean_of_positives(positives, count)

    def _check_now_and_then(self, queue: KeyQueue) -> None:
        group, self.batches = data_parallel_group(), self.batches + 1
        if self.batches % CHECK_EVERY == 1 and world_size(group) > 1:
            mine = queue.checksum()
            all_of_them = [torch.empty_like(mine) for _ in range(world_size(group))]
            dist.all_gather(all_of_them, mine, group=group)
            if any(not torch.equal(mine, other) for other in all_of_them):
                raise RuntimeError(
                    "the workers' queues differ: they started from different checkpoints, or the data were gathered differently"
                )
