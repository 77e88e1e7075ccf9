"""Adam with weight decay that leaves biases and LayerNorms alone, in one pass over the weights."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from fairseq.dataclass import FairseqDataclass
from fairseq.optim import FairseqOptimizer, register_optimizer
from fairseq.optim.adam import FairseqAdam
from omegaconf import II
from torch import nn
from torch.optim import AdamW

__all__ = ["ClearAdamW", "ClearAdamWConfig"]


@dataclass
class ClearAdamWConfig(FairseqDataclass):
    """Names and defaults of fairseq's adam."""

    adam_betas: Any = field(default=(0.9, 0.999), metadata={"help": "betas of the two moments"})
    adam_eps: float = field(default=1e-8, metadata={"help": "added to the root of the second moment"})
    weight_decay: float = field(default=0.0, metadata={"help": "decoupled from the gradient"})
    decay_vectors: bool = field(
        default=False,
        metadata={"help": "let biases and LayerNorms decay too; otherwise --fp16 needs --fp16-no-flatten-grads"},
    )
    lr: list[float] = II("optimization.lr")


@register_optimizer("clear_adamw", dataclass=ClearAdamWConfig)
class ClearAdamW(FairseqOptimizer):
    """torch's fused AdamW: on CPUs, and on GPUs without apex, faster than fairseq's adam, which makes a pass an operation.

    Weights of two dimensions and more decay, vectors do not, as in BERT's code and DeCLUTR's; ``--decay-vectors`` is as
    fairseq's adam and the papers' words have it. eps is added after the correction of the moments, in fairseq's before it.
    """

    optimizer_config = FairseqAdam.optimizer_config

    def __init__(self, cfg: ClearAdamWConfig, params: Iterable[nn.Parameter]) -> None:
        super().__init__(cfg)
        params = list(params)
        groups: list[dict[str, Any]] = [{"params": params}]
        if not cfg.decay_vectors:
            matrices = [p for p in params if p.dim() >= 2]
            groups = [{"params": matrices}, {"params": [p for p in params if p.dim() < 2], "weight_decay": 0.0}]
        self._optimizer = AdamW([g for g in groups if g["params"]], fused=True, **self.optimizer_config)

    @property
    def supports_flat_params(self) -> bool:
        """False: a flat vector of all weights does not show which are biases. fairseq then names the flag to give."""
        return bool(self.cfg.decay_vectors)

    def load_state_dict(self, state_dict: dict[str, Any], optimizer_overrides: dict[str, Any] | None = None) -> None:
        """fairseq's; ``--optimizer-overrides`` lets no exempt vector decay."""
        super().load_state_dict(state_dict, optimizer_overrides)
        for group in self.param_groups:
            if not self.cfg.decay_vectors and group["params"][0].dim() < 2:
                group["weight_decay"] = 0.0
