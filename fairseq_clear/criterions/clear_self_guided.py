"""``clear_self_guided``: sentence vectors guided by the hidden layers of a frozen copy of the encoder."""

from dataclasses import dataclass
from typing import Any

import torch
from fairseq.criterions import register_criterion
from fairseq.dataclass import ChoiceEnum
from torch import Tensor

from fairseq_clear.criterions.contrastive import InBatchConfig, InBatchCriterion, mean_of_positives
from fairseq_clear.data.batch import Views
from fairseq_clear.distributed import Layout, all_gather_rows
from fairseq_clear.errors import UserError
from fairseq_clear.modules.frozen_encoder import GUIDE_POOLINGS, FrozenEncoder
from fairseq_clear.objectives.negatives import Result
from fairseq_clear.settings import setting


@dataclass
class ClearSelfGuidedConfig(InBatchConfig):
    """Settings of the paper's appendix A.1 as defaults."""

    objective: str = setting(
        "sg: NT-Xent; opt1, opt2, opt3: its three simplifications (section 3.2); sg-opt is opt3", "sg-opt"
    )
    guide_pooling: ChoiceEnum(GUIDE_POOLINGS) = setting(  # type: ignore[valid-type]
        "p: pooling of the frozen encoder's hidden states to one vector per layer (for SentEval: mean)", "max"
    )
    guide_layers: str = setting(
        "layers of the frozen encoder, 0 being the embeddings: all, or such as 4-6 or 0,3-5 (for SentEval: the upper ones)",
        "all",
    )
    guide_dropout: bool = setting("use dropout in the frozen encoder too, as the paper's public code does", False)
    temperature: float = setting("tau > 0 divides the cosine (paper: 0.01)", 0.01)
    mlm_weight: float = setting("weight of an additional masked language model loss (paper: none)", 0.0)
    regularizer_weight: float = setting(
        "lambda: weight of the squared distance between the encoder's and the frozen encoder's weights (paper: 0.1)",
        0.1,
    )
    frozen_layers: int = setting(
        "number of lowest layers that are not trained: 1 freezes layer 0, the embeddings (paper); 0 none", 1
    )


@register_criterion("clear_self_guided", dataclass=ClearSelfGuidedConfig)
class ClearSelfGuidedCriterion(InBatchCriterion):
    """Self-Guided learning (Kim, Yoo and Lee 2021, arXiv:2106.07345): BERT_T is tuned, guided by the layers of a frozen BERT_F.

    BERT_T encodes the anchor of a pair, and BERT_F its positives. With ``--views same`` both read the same text. With
    ``--views paraphrase:original,bt`` BERT_F reads the back-translation (section 6 and Table 7), with bt,original BERT_T does.
    """

    cfg: ClearSelfGuidedConfig
    key_encoder = "frozen"
    candidates = "layers"

    def attach(self, model: Any) -> None:
        """Add the frozen encoder, even if lambda is 0."""
        layers = parse_layers(self.cfg.guide_layers, model.args.encoder_layers)
        if self.needs.views:
            pooling = str(self.cfg.guide_pooling)
            model.frozen_encoder = FrozenEncoder(model.backbone, pooling, layers, self.cfg.guide_dropout)
        super().attach(model)

    def view_inputs(self, views: Views) -> dict[str, Any]:
        """Anchors go to the tuned encoder, positives to the frozen one."""
        tokens, lengths, anchors = views.tokens, views.lengths, views.anchors
        inputs: dict[str, Any] = {"views": tokens[:anchors], "view_lengths": lengths[:anchors]}
        inputs |= {"frozen_texts": tokens[anchors:], "frozen_lengths": lengths[anchors:]}
        if not self.objective.every_layer:
            inputs["layer_draw"] = views.draw.repeat_interleave(inputs["frozen_texts"].shape[0] // anchors)
        return inputs

    def gathered_rows(self, views: Views) -> dict[str, int]:
        """One sentence vector, one vector of each layer, and one identity per text."""
        return {"sentences": views.anchors}

    def contrast(self, vectors: dict[str, Tensor], views: Views, layouts: dict[str, Layout]) -> Result:
        """Compute one of the objectives of section 3, over the sentences of this worker or of all workers."""
        sentences = vectors["projections"]  # (N, D)
        count = sentences.shape[0]
        layers = mean_of_positives(vectors["layers"], count)  # (N, L, D)
        layout = layouts["sentences"]
        all_sentences = all_gather_rows(sentences, layout)  # (K, D)
        all_layers = all_gather_rows(layers, layout)  # (K, L, D)
        key_identity = all_gather_rows(views.identity, layout)
        own = torch.arange(count, device=sentences.device) + layout.offset
        excluded = self.excluded(own, views.identity, key_identity)
        return self.objective.function(
            sentences, layers, all_sentences, all_layers, own, temperature=self.cfg.temperature, excluded=excluded
        )


def parse_layers(text: str, blocks: int) -> list[int]:
    """Return the layers that ``--guide-layers`` names: ``all``, or numbers and ranges joined by commas.

    Layer 0 is the embeddings; the encoder has ``blocks`` more.

    Raises:
        UserError: the text is malformed, or there is no such layer.
    """
    if text == "all":
        return list(range(blocks + 1))
    layers: set[int] = set()
    for part in str(text).split(","):
        first, dash, last = (number.strip() for number in part.partition("-"))
        last = last if dash else first
        if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last) <= blocks):
            raise UserError(
                f"--guide-layers {text}: give all, or layers from 0 (embeddings) to {blocks} such as 0,2-{blocks}"
            )
        layers |= set(range(int(first), int(last) + 1))
    return sorted(layers)
