"""Base classes of the contrastive criterions: the MLM term, the contrastive term, the regulariser, and false negatives.

The trainer sums gradients over workers and micro-batches and divides them by the summed ``sample_size``. With an MLM term,
``sample_size`` is the number of masked tokens of this worker, as in masked_lm, and the contrastive sum is multiplied by T / N:
T masked tokens and N queries of all workers in this micro-batch. Without an MLM term, ``sample_size`` is the number of queries
of this worker. Several workers thus make the same update as a single worker would on the same global batch.
"""

import logging
from dataclasses import dataclass, replace
from typing import Any, Optional

import torch
from fairseq.criterions import FairseqCriterion
from fairseq.criterions.masked_lm import MaskedLmConfig, MaskedLmLoss
from fairseq.dataclass import ChoiceEnum
from fairseq.distributed import utils as distributed_utils
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.tasks import TASK_REGISTRY
from omegaconf import II
from torch import Tensor

from fairseq_clear.criterions.figures import log_numbers, record_figures
from fairseq_clear.data.batch import Batch, Views
from fairseq_clear.distributed import Layout, agree_on_counts, all_reduce_sum
from fairseq_clear.errors import UserError
from fairseq_clear.lifecycle import ContrastiveModel, Needs, RunTask
from fairseq_clear.modules.chunking import has_parts
from fairseq_clear.modules.frozen_encoder import FrozenEncoder
from fairseq_clear.objectives import Candidates, find_objective
from fairseq_clear.objectives.exclusion import Exclusion
from fairseq_clear.objectives.false_negatives import parse_false_negatives
from fairseq_clear.objectives.matryoshka import at_dimensions, parse_dimensions
from fairseq_clear.objectives.negatives import Result
from fairseq_clear.settings import setting

logger = logging.getLogger(__name__)

ANCHOR_MLM = ChoiceEnum(["separate", "joint"])
VECTORS = ("projections", "layers", "keys")  # outputs of TextModel.forward that have one row per text


@dataclass
class ContrastiveConfig(MaskedLmConfig):
    """Settings of all contrastive criterions: the weights of the terms, and the objective."""

    contrastive_weight: float = setting(
        "weight of the contrastive term (CLEAR eq. 3: 1); 0 is masked_lm, without views", 1.0
    )
    mlm_weight: float = setting("weight of the masked language model loss (CLEAR eq. 3: 1); 0 leaves it out", 1.0)
    regularizer_weight: float = setting(
        "lambda: adds lambda times the squared distance between the encoder's weights and their values at the "
        "start of training, summed over all weights (Self-Guided section 3.1: 0.1)",
        0.0,
    )
    frozen_layers: int = setting(
        "number of lowest layers that are not trained: 1 freezes the embeddings (layer 0; Self-Guided), 2 also block 1",
        0,
    )
    anchor_mlm: ANCHOR_MLM = setting(  # type: ignore[valid-type]
        "with --views span and an MLM: joint masks the anchors that are embedded, in one pass, as DeCLUTR's code "
        "does; separate masks copies of them. The paper only says that the losses are summed (section 3.2)",
        "separate",
    )
    objective: str = setting("contrastive loss, one of fairseq_clear.objectives.OBJECTIVES", "nt-xent")
    matryoshka: str = setting(
        "ascending dimensions such as 64,128,256: the contrastive term is its mean over the first 64, 128 and 256 "
        "dimensions of the vectors, each scaled to length 1, so that vectors can be truncated (Kusupati et al. 2022); name "
        "the full width to include it. With hydra quote it twice: 'criterion.matryoshka=\"64,128,256\"'",
        "",
    )
    max_update: int = II("optimization.max_update")


def data_parallel_group() -> Any:
    """The process group over which fairseq sums gradients; None if ``torch.distributed`` is not in use."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return None
    return distributed_utils.get_data_parallel_group()


def mean_of_positives(vectors: Tensor, anchors: int) -> Tensor:
    """The mean (N, ...) of each anchor's positives, whose vectors (N * P, ...) are given anchor by anchor (DeCLUTR 3.1)."""
    return vectors.view(anchors, -1, *vectors.shape[1:]).mean(dim=1) if anchors else vectors


class ContrastiveCriterion(FairseqCriterion):
    """Masked language modelling plus a contrastive term that subclasses define.

    Attributes:
        key_encoder: encoder of the positives: ``shared``, ``momentum`` or ``frozen``.
        candidates: kind of the objectives that this criterion offers, see ``objectives.Objective``.
        takes_hard_negatives: whether the criterion supports hard negatives.
    """

    key_encoder = "shared"
    candidates: Candidates = "batch"
    takes_hard_negatives = False

    def __init__(self, cfg: ContrastiveConfig, task: Any) -> None:
        super().__init__(task)
        if not cfg.contrastive_weight and not cfg.mlm_weight:
            raise UserError("--contrastive-weight 0 and --mlm-weight 0 leave nothing to learn: set one of them above 0")
        if getattr(getattr(task, "cfg", None), "hard_negatives", None) and not self.takes_hard_negatives:
            raise UserError("--hard-negatives: only --criterion clear_nt_xent supports them; leave the flag out")
        self.cfg = cfg
        self.objective = find_objective(str(cfg.objective), self.candidates)
        self.dimensions = parse_dimensions(str(cfg.matryoshka))
        if self.dimensions and not cfg.contrastive_weight:
            raise UserError(
                f"--matryoshka {cfg.matryoshka}: needs the contrastive term, which --contrastive-weight 0 leaves out"
            )
        if self.dimensions:
            function = at_dimensions(self.objective.function, self.dimensions)
            self.objective = replace(self.objective, function=function)
        self.masked_lm = MaskedLmLoss(cfg, task)
        is_joint = str(cfg.anchor_mlm) == "joint"
        self.needs = Needs(
            cfg.mlm_weight > 0,
            cfg.contrastive_weight > 0,
            is_joint,
            hard_negatives=self.takes_hard_negatives,
            max_update=cfg.max_update,
        )

    @classmethod
    def check_run(cls, cfg: Any) -> None:
        """Check that the task makes the views that the criterion needs, and that the model embeds them.

        Raises:
            UserError: the task or the model is one of stock fairseq.
        """
        name, contrasts = cfg.criterion._name, cfg.criterion.contrastive_weight > 0
        needed = f"which --criterion {name} needs"
        if contrasts and not issubclass(TASK_REGISTRY[cfg.task._name], RunTask):
            raise UserError(f"--task {cfg.task._name}: makes no views of the texts, {needed}; give --task clear_lm")
        is_own = issubclass(ARCH_MODEL_REGISTRY[cfg.model._name], ContrastiveModel)
        if contrasts and not is_own:
            raise UserError(
                f"--arch {cfg.model._name}: does not embed texts, {needed}; give --arch clear_roberta_base or another clear_*"
            )
        for flag in ("--regularizer-weight", "--frozen-layers"):
            value = cfg.criterion[flag[2:].replace("-", "_")]
            if value and not (is_own and issubclass(TASK_REGISTRY[cfg.task._name], RunTask)):
                raise UserError(f"{flag} {value}: needs --task clear_lm and an --arch clear_*; give {flag} 0")

    def attach(self, model: Any) -> None:
        """Add the parts of the model that this criterion needs; called before the model's weights are loaded.

        Raises:
            UserError: ``--key-encoder`` belongs to another criterion, or the model has fewer layers than are to be frozen.
        """
        chosen = getattr(model.args, "key_encoder", None)
        if chosen not in (None, self.key_encoder):
            raise UserError(
                f"--key-encoder {chosen}: this criterion's is {self.key_encoder}; leave the flag out, or choose the criterion "
                "(clear_nt_xent: shared, clear_moco: momentum, clear_self_guided: frozen)"
            )
        self._check_dimensions(model)
        model.freeze_lowest(self.cfg.frozen_layers)
        if self.cfg.regularizer_weight and model.frozen_encoder is None:
            model.frozen_encoder = FrozenEncoder(model.backbone)

    def _check_dimensions(self, model: Any) -> None:
        """Raise UserError for dimensions that the vectors do not have; warn if those vectors are only used in training."""
        flag, width = f"--matryoshka {self.cfg.matryoshka}", model.projection_head.output_dim
        if self.dimensions and self.dimensions[-1] > width:
            raise UserError(f"{flag}: the vectors have {width} dimensions; give none above {width}")
        if self.dimensions and model.args.projection_layers:
            logger.warning(
                "%s: truncates the output of the projection head, which embed and export leave out; --projection-layers 0 "
                "trains the text vectors themselves",
                flag,
            )

    def view_inputs(self, views: Views) -> dict[str, Any]:
        """Return the arguments of the model's forward pass that make it encode the inputs of ``contrast``."""
        return {"views": views.tokens, "view_lengths": views.lengths}

    def gathered_rows(self, views: Views) -> dict[str, int]:
        """Return the number of rows on this worker of each tensor that ``contrast`` gathers from all workers, by name."""
        raise NotImplementedError

    def layout(self, rows: int, device: torch.device) -> Layout:
        """Return how many rows each worker has of a tensor that is gathered; this worker has ``rows``."""
        return agree_on_counts(rows, device, data_parallel_group())

    def contrast(self, vectors: dict[str, Tensor], views: Views, layouts: dict[str, Layout]) -> Result:
        """Return the contrastive sum, the number of queries, and statistics of this worker. A collective.

        Args:
            vectors: outputs of the model for ``view_inputs``, (R, ...) each; R is 0 if this worker has run out of data.
            views: the batch's views.
            layouts: row counts of all workers for each name in ``gathered_rows``.
        """
        raise NotImplementedError

    def forward(self, model: Any, sample: dict[str, Any], reduce: bool = True) -> tuple[Tensor, Any, dict[str, Any]]:
        """Return loss, sample_size and logging output of one micro-batch."""
        batch = Batch.of(sample)
        views = batch.views if self.needs.views else None
        # Before the encoder runs, because gathering the counts synchronises with the GPU.
        layouts = {} if views is None else self._layouts(views, batch.is_empty)
        inputs = {} if views is None else self.view_inputs(views)
        inputs |= {"with_distance": True} if self.cfg.regularizer_weight else {}
        call = _ModelCall(model, inputs)
        found: dict[str, Any] = {"ntokens": batch.tokens, "nsentences": batch.sentences}
        loss: Any  # a Tensor at the end
        if self.needs.mlm:
            mlm_loss, sample_size = self._mlm(call, batch, sample)
            loss = mlm_loss if self.cfg.mlm_weight == 1 else self.cfg.mlm_weight * mlm_loss
            found |= {"mlm_loss": mlm_loss, "masked_tokens": sample_size}
        else:
            call()
            loss, sample_size = 0.0, None
        if views is not None:
            vectors = self._vectors(call.extra, views)
            if batch.is_empty:
                # This worker contributes no keys and no queries, but joins every collective and builds the same graph.
                vectors, views = {name: rows[:0] for name, rows in vectors.items()}, views.empty()
            term, queries, statistics = self._contrastive_term(vectors, views, sample_size, layouts)
            loss = loss + self.cfg.contrastive_weight * term
            sample_size = queries if sample_size is None else sample_size
            found |= statistics
        if "distance" in call.extra:
            # Multiplied by the local sample_size, because the trainer divides by the sum over workers.
            loss = loss + self.cfg.regularizer_weight * call.extra["distance"] * sample_size
            found |= {"distance": call.extra["distance"] * sample_size, "distance_rows": sample_size}
        return loss, sample_size, record_figures(found | {"loss": loss, "sample_size": sample_size}, loss.device)

    def _vectors(self, extra: dict[str, Any], views: Views) -> dict[str, Tensor]:
        """Select what ``contrast`` gets of the outputs of the model."""
        return {name: extra[name] for name in VECTORS if name in extra}

    def _mlm(self, call: "_ModelCall", batch: Batch, sample: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Return the MLM loss, summed, and the number of masked tokens."""
        target = batch.views.target if batch.views is not None else None  # of --anchor-mlm joint
        if target is not None:
            _, extra = call(view_target=target)
        elif self._reads_in_parts(call.model, batch):
            target = batch.target
            _, extra = call(**batch.net_input, target=target, text_lengths=batch.lengths)
        else:
            loss, sample_size, _ = self.masked_lm(call, sample)
            return loss, sample_size
        assert target is not None
        return extra["mlm_loss"], target.ne(self.padding_idx).int().sum()

    def _reads_in_parts(self, model: Any, batch: Batch) -> bool:
        """Whether the model computes the MLM loss in parts: in chunks, or by length to save padding.

        Without views and chunks there are no parts: they draw other dropout masks, and the loss must equal masked_lm's to
        the bit.
        """
        if getattr(getattr(model, "args", None), "encode_chunk_size", 0):
            return True
        if not self.needs.views or batch.lengths is None or batch.target is None:
            return False
        return has_parts(batch.lengths, batch.target.device)

    def _layouts(self, views: Views, is_empty: bool) -> dict[str, Layout]:
        rows = self.gathered_rows(views).items()
        return {name: self.layout(0 if is_empty else count, views.tokens.device) for name, count in rows}

    def _contrastive_term(
        self, vectors: dict[str, Tensor], views: Views, masked_tokens: Tensor | None, layouts: dict[str, Layout]
    ) -> tuple[Tensor, Tensor, dict[str, Any]]:
        loss, queries, statistics = self.contrast(vectors, views, layouts)
        ours = torch.stack([queries, queries if masked_tokens is None else masked_tokens.to(queries)])
        total_queries, total_masked = all_reduce_sum(ours.double(), data_parallel_group()).unbind()
        # T / N. If no worker has a query, the sum is 0 and any finite factor is right.
        scale = 1.0 if masked_tokens is None else (total_masked / total_queries.clamp(min=1)).float()
        log = {"contrastive_loss": loss, "queries": queries, "without_negatives": (total_queries == 0).float()}
        return loss * scale, queries, {**log, **statistics, **views.counts}

    @staticmethod
    def reduce_metrics(logging_outputs: list[dict[str, Any]]) -> None:
        """Log averages over all workers and micro-batches: each sum is divided by the sum of its count."""
        log_numbers(logging_outputs)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        """True: every logged value is a sum or a count."""
        return True


class _ModelCall:
    """Stands in for the model in MaskedLmLoss: one call encodes masked texts and views, whose outputs stay in ``extra``."""

    def __init__(self, model: Any, inputs: dict[str, Any]) -> None:
        self.model, self.inputs = model, inputs
        self.extra: dict[str, Any] = {}

    def __call__(self, **net_input: Any) -> tuple[Any, dict[str, Any]]:
        output, self.extra = self.model(**net_input, **self.inputs)
        return output, self.extra

    def get_targets(self, sample: dict[str, Any], output: Any) -> Tensor:
        return self.model.get_targets(sample, output)


NEGATIVES = ChoiceEnum(["batch", "global"])


@dataclass
class InBatchConfig(ContrastiveConfig):
    """Settings of criterions whose negatives come from the batch."""

    temperature: float = setting(
        "tau > 0 divides the cosine (CLEAR eq. 1; CLEAR states no value, this is ours; SimCSE, DeCLUTR: 0.05)", 0.1
    )
    negatives: NEGATIVES = setting(  # type: ignore[valid-type]
        "which texts are negatives: batch, the texts of this worker's batch; global, the texts of all workers", "global"
    )
    keep_duplicates: bool = setting("if a text occurs twice in a batch, its copies are negatives of each other", False)


class InBatchCriterion(ContrastiveCriterion):
    """A contrastive criterion whose negatives come from the batch of this worker, or of all workers."""

    cfg: InBatchConfig

    def layout(self, rows: int, device: torch.device) -> Layout:
        """Return the row counts of the workers whose texts are contrasted: of this one, or of all."""
        return Layout((rows,)) if str(self.cfg.negatives) == "batch" else super().layout(rows, device)

    def excluded(self, own: Tensor, identity: Tensor, key_identity: Tensor) -> Exclusion:
        """Return which keys (K,) are excluded for each query (Q,): its own row, number ``own``, and duplicates of its text."""
        return Exclusion(own.unsqueeze(1), None if self.cfg.keep_duplicates else (identity, key_identity))


@dataclass
class MaskingConfig(ContrastiveConfig):
    """Settings that mask false negatives."""

    false_negatives: str = setting(
        "guide:margin=0.0 masks a candidate if its cosine with the query, by the guide, is above the positive's cosine "
        "minus the margin (GISTEmbed, arXiv:2402.16829); strategy=relative multiplies the margin by the positive's "
        "cosine; the guide is the trained model itself, or --guide; none masks nothing",
        "none",
    )
    guide: Optional[str] = setting(  # noqa: UP045  (fairseq makes no flag of "str | None")
        "with --false-negatives guide, a frozen encoder as the guide: a folder of fairseq-clear import, or a "
        "checkpoint, with the vocabulary of the data; its size and pooling may differ. It is not saved with the model: "
        "give it again to resume",
        None,
    )


class MaskingCriterion(ContrastiveCriterion):
    """A criterion that uses the vectors of the trained model or of a separate guide to mask false negatives.

    Attributes:
        margin: the margin and its strategy (see ``objectives.false_negatives``); None if nothing is masked.
        guide: the encoder of ``--guide``, which the task loads before ``attach``; None for the trained model itself.
    """

    cfg: MaskingConfig

    def __init__(self, cfg: MaskingConfig, task: Any) -> None:
        super().__init__(cfg, task)
        self.margin = parse_false_negatives(str(cfg.false_negatives))
        self.guide: Any = None
        if cfg.guide and self.margin is None:
            raise UserError(
                f"--guide {cfg.guide}: only decides what --false-negatives masks; add --false-negatives guide"
            )
        self.needs = replace(self.needs, guide=cfg.guide if self.needs.views else None)

    def _vectors(self, extra: dict[str, Any], views: Views) -> dict[str, Tensor]:
        """Add ``view_guides`` (R, G), the guide's vectors of all views, to the vectors for ``contrast``."""
        vectors = super()._vectors(extra, views)
        if self.guide is not None:
            vectors["view_guides"] = self.guide(views.tokens, views.lengths, like=vectors["projections"])
        return vectors
