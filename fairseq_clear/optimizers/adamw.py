"""AdamW as a fused kernel, without weight decay for biases and LayerNorms."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fairseq.dataclass import FairseqDataclass
from fairseq.optim import FairseqOptimizer, register_optimizer
from fairseq.optim.adam import FairseqAdam
from omegaconf import II
from torch import nn
from torch.optim import AdamW

from fairseq_clear.settings import setting


@dataclass
class ClearAdamWConfig(FairseqDataclass):
    """Settings of ``clear_adamw``, with the names and defaults of fairseq's adam."""

    adam_betas: Any = setting("decay rates of the two moments", (0.9, 0.999))
    adam_eps: float = setting("added to the square root of the second moment", 1e-8)
    weight_decay: float = setting("weight decay, decoupled from the gradient", 0.0)
    decay_vectors: bool = setting(
        "apply weight decay to biases and LayerNorms too; without this flag, --fp16 needs --fp16-no-flatten-grads",
        False,
    )
    lr: list[float] = II("optimization.lr")


@register_optimizer("clear_adamw", dataclass=ClearAdamWConfig)
class ClearAdamW(FairseqOptimizer):
    """torch's fused AdamW.

    It is faster than fairseq's adam on CPUs, and on GPUs without apex, because fairseq's adam makes one pass over the weights
    for each operation. Weight decay applies to weights of two or more dimensions and not to vectors, as in the code of BERT and
    DeCLUTR. ``--decay-vectors`` includes vectors, as in fairseq's adam and in the text of the papers. eps is added after the
    bias correction of the moments; fairseq's adam adds it before.
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
        """Whether ``--fp16`` may flatten weights: only with ``--decay-vectors``, as biases are not marked in a flat vector."""
        return bool(self.cfg.decay_vectors)

    def load_state_dict(self, state_dict: dict[str, Any], optimizer_overrides: dict[str, Any] | None = None) -> None:
        """Load the state as fairseq does; ``--optimizer-overrides`` does not change the weight decay of vectors."""
        super().load_state_dict(state_dict, optimizer_overrides)
        for group in self.param_groups:
            if not self.cfg.decay_vectors and group["params"][0].dim() < 2:
                group["weight_decay"] = 0.0
