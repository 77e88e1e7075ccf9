"""``--false-negatives`` and ``--guide`` of the criterions that mask false negatives."""

from dataclasses import dataclass, replace
from typing import Any, Optional

from torch import Tensor

from fairseq_clear.criterions.contrastive import ContrastiveConfig, ContrastiveCriterion
from fairseq_clear.data.batch import Views
from fairseq_clear.errors import UserError
from fairseq_clear.objectives.false_negatives import parse_false_negatives
from fairseq_clear.settings import setting


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
