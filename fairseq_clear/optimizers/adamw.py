"""Adam with weight decay that leaves biases and LayerNorms alone."""

from collections.abc import Iterable
from typing import Any

from fairseq.optim import register_optimizer
from fairseq.optim.adam import FairseqAdam, FairseqAdamConfig
from torch import nn

from fairseq_clear.errors import UserError

__all__ = ["ClearAdamW"]


@register_optimizer("clear_adamw", dataclass=FairseqAdamConfig)
class ClearAdamW(FairseqAdam):
    """fairseq's Adam in two groups: weights with two dimensions or more decay, vectors do not (DeCLUTR's code, BERT's).

    ``--optimizer clear_adamw --weight-decay 0.1`` and Adam's other flags; under ``--fp16`` also ``--fp16-no-flatten-grads``.

    Raises:
        UserError: the weights are one flat vector.
    """

    def __init__(self, cfg: FairseqAdamConfig, params: Iterable[nn.Parameter]) -> None:
        params = list(params)
        if not all(isinstance(p, nn.Parameter) for p in params):
            raise UserError(
                "--optimizer clear_adamw: in the one flat vector that --fp16 makes of all weights no bias can be told apart; "
                "give --fp16-no-flatten-grads"
            )
        vectors = [p for p in params if p.dim() < 2]
        groups = [{"params": [p for p in params if p.dim() >= 2]}, {"params": vectors, "weight_decay": 0.0}]
        super().__init__(cfg, [group for group in groups if group["params"]])

    def load_state_dict(self, state_dict: dict[str, Any], optimizer_overrides: dict[str, Any] | None = None) -> None:
        """fairseq's; ``--optimizer-overrides`` gives vectors no decay either."""
        super().load_state_dict(state_dict, optimizer_overrides)
        for group in self.param_groups:
            if group["params"][0].dim() < 2:
                group["weight_decay"] = 0.0
