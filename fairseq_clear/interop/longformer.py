"""Hugging Face's Longformer: what it has beside RoBERTa, which is a window and second projections for global attention.

``<s>`` has global attention in clear_roberta always, in their model where the caller says so: ``global_attention_mask``. Their
second projections begin as copies of the first, and here they are one: the same weights are written to both.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_clear.errors import UserError
from fairseq_clear.modules.window_attention import is_covered

__all__ = ["LONGFORMER", "copy_to_global", "global_attention", "merge_global", "read_window", "window_of"]

LONGFORMER = "longformer"
PROJECTIONS = ("query", "key", "value")


def window_of(model: Any) -> int:
    """W of a clear_roberta; 0 for full attention, which a window is that every text it reads lies within."""
    window = int(getattr(model.args, "attention_window", 0) or 0)
    return 0 if is_covered(int(model.max_positions()), window) else window


def copy_to_global(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Their weights and, of each query, key and value, the same again for tokens with global attention."""
    return weights | {_global(name): value.clone() for name, value in weights.items() if _is_projection(name)}


def merge_global(weights: dict[str, Tensor], source: Path) -> dict[str, Tensor]:
    """Their weights without the second projections.

    Raises:
        UserError: those are others than the first.
    """
    second = {_global(name): name for name in weights if _is_projection(name)}
    for name, first in second.items():
        if name in weights and not torch.equal(weights[name], weights[first]):
            raise UserError(
                f"{source}: {name} differs from {first.rpartition('.')[0]}; clear_roberta has one projection for window and "
                "global attention, so only a Longformer with equal ones, as exported from it, can be imported exactly"
            )
    return {name: value for name, value in weights.items() if name not in second}


def read_window(config: dict[str, Any], path: Path) -> int:
    """W of a configuration of theirs, the same in each layer.

    Raises:
        UserError: another window in another layer, or none that is a number.
    """
    stated = config.get("attention_window", 512)
    windows = set(stated) if isinstance(stated, list) else {stated}
    if len(windows) != 1 or not all(isinstance(window, int) and window > 0 for window in windows):
        raise UserError(f"{path}: attention_window {stated}: clear_roberta has one for all layers")
    return int(windows.pop())


def global_attention(model: Any, ids: Tensor) -> dict[str, Tensor]:
    """What a model of theirs must be told beside (B, T) ids so that it computes what clear_roberta does: ``<s>`` is global."""
    if model.config.model_type != LONGFORMER:
        return {}
    return {"global_attention_mask": (torch.arange(ids.shape[1]) == 0).long().expand(ids.shape[0], -1)}


def _is_projection(name: str) -> bool:
    return any(f".attention.self.{part}." in name for part in PROJECTIONS)


def _global(name: str) -> str:
    layer, _, part = name.rpartition(".")
    return f"{layer}_global.{part}"
