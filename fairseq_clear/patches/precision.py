"""Corrections of fairseq's mixed precision: ``--amp``, ``--fp16`` and ``--bf16``."""

import logging
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import torch
from fairseq.dataclass.configs import CommonConfig
from fairseq.optim.dynamic_loss_scaler import DynamicLossScaler

from fairseq_clear.patches import AMP, FP16, MEMORY_EFFICIENT, original

logger = logging.getLogger(__name__)

MASTERS, SCALER = "clear_fp32_masters", "clear_loss_scaler"


def has_overflowed(optimizer: Any) -> bool:
    """Whether the last ``step`` of a fairseq optimizer did not change the weights, because a gradient was not finite.

    This only happens with ``--amp``: with ``--fp16`` an overflow raises an error before the step.
    """
    return bool(getattr(optimizer, "clear_has_overflowed", False))


def clip_grad_norm(self: Any, max_norm: float, aggregate_norm_fn: Any = None) -> torch.Tensor:
    """Replaces ``AMPOptimizer.clip_grad_norm``: also records whether the norm is finite.

    Removes: ``AttributeError: 'GradScaler' object has no attribute '_backoff_factor'`` for a NaN on a CPU, where the scaler
    is disabled.
    """
    is_scaled = self.scaler.is_enabled()
    clip = partial(original(f"{AMP}.clip_grad_norm"), self) if is_scaled else self.fp32_optimizer.clip_grad_norm
    norm: torch.Tensor = clip(max_norm, aggregate_norm_fn)
    self.clear_has_overflowed = not bool(torch.isfinite(norm).all())
    if self.clear_has_overflowed and not is_scaled:
        raise FloatingPointError("gradients are Nan/Inf")  # fairseq's message without --amp
    return norm


def step(self: Any) -> None:
    """Replaces ``AMPOptimizer.step``: steps the optimizer whose gradients ``clip_grad_norm`` unscaled.

    Removes: updates that are too small by a factor of the loss scale. fairseq unscales the gradients of the torch optimizer and
    then steps its own wrapper, which GradScaler takes for another optimizer and unscales again. Also removes a step with a
    batch that fairseq then repeats, because all gradients are finite but their norm is not.
    """
    if not has_overflowed(self):
        self.scaler.step(self.optimizer)
    self.scaler.update()


class _StaysOnCpu(torch.Tensor):
    def cuda(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self


def skip_overflows_on_cpu() -> None:
    """Let a CPU run with ``--fp16`` skip an update that overflows, as a GPU run does.

    Removes: ``AssertionError: Torch not compiled with CUDA enabled`` at the first overflow. fairseq's Trainer then
    calls ``torch.tensor(0.0).cuda()`` in the middle of a method of 230 lines, so its module gets another ``torch``.
    """
    from fairseq import trainer

    if not torch.cuda.is_available():
        stand_in = ModuleType("torch")
        vars(stand_in).update(vars(torch), tensor=lambda value: torch.tensor(value).as_subclass(_StaysOnCpu))
        trainer.torch = stand_in


def take_norms_where_gradients_are() -> None:
    """Let fairseq take the norm of the gradients on their device, with torch's kernels for many tensors.

    Removes: ``RuntimeError: scalar tensor is expected to be on cpu`` with ``--cpu --clip-norm`` on a machine with a GPU, to
    which fairseq moves the norms; a warning to install apex; and a kernel for each weight on a GPU without apex.
    """
    from fairseq import utils

    if not utils.multi_tensor_l2norm_available:
        utils.multi_tensor_l2norm_available, utils.multi_tensor_total_norm = True, total_norm


def total_norm(gradients: list[torch.Tensor]) -> torch.Tensor:
    """Return the L2 norm of all gradients together, in float32."""
    norms = torch._foreach_norm(gradients, 2, dtype=torch.float32)
    return torch.norm(torch.stack([norm.to(norms[0].device) for norm in norms]))


def _saving_scaler(owner: str) -> Callable[[Any], dict[str, Any]]:
    def state_dict(self: Any) -> dict[str, Any]:
        state: dict[str, Any] = original(f"{owner}.state_dict")(self)
        if isinstance(self.scaler, DynamicLossScaler):
            state[SCALER] = {name: value for name, value in vars(self.scaler).items() if name.startswith("_")}
        elif self.scaler is not None:
            state[SCALER] = self.scaler.state_dict()
        return state

    return state_dict


def amp_init(self: Any, cfg: Any, params: Any, fp32_optimizer: Any, **kwargs: Any) -> None:
    """Replaces ``AMPOptimizer.__init__``, which takes ``--amp-init-scale`` as the window, and only the scale of ``--fp16``."""
    original(f"{AMP}.__init__")(self, cfg, params, fp32_optimizer, **kwargs)
    common, window = cfg.common, cfg.common.amp_scale_window
    scale = common.fp16_init_scale if common.amp_init_scale == CommonConfig.amp_init_scale else common.amp_init_scale
    self._grad_scaler = torch.cuda.amp.GradScaler(
        init_scale=scale, **({} if window is None else {"growth_interval": window})
    )


def _loading_scaler(owner: str) -> Callable[[Any, dict[str, Any], Any], None]:
    def load_state_dict(self: Any, state_dict: dict[str, Any], optimizer_overrides: Any = None) -> None:
        if owner == AMP:  # whose own method passes by the optimizer's, which knows what it does not decay
            self.fp32_optimizer.load_state_dict(state_dict, optimizer_overrides)
        else:
            original(f"{owner}.load_state_dict")(self, state_dict, optimizer_overrides)
        saved = state_dict.get(SCALER, {})  # perhaps of another precision
        if isinstance(self.scaler, DynamicLossScaler):
            vars(self.scaler).update({name: value for name, value in saved.items() if name in vars(self.scaler)})
        elif self.scaler is not None and self.scaler.is_enabled():
            changing = [name for name in ("scale", "_growth_tracker") if name in saved]  # the others are settings
            self.scaler.load_state_dict(self.scaler.state_dict() | {name: saved[name] for name in changing})

    return load_state_dict


# Save and load when the loss scale was last changed, and the scale of --amp, which fairseq does not save: a resumed run raised
# its scale later than an uninterrupted one, or never.
memory_efficient_state_dict = _saving_scaler(MEMORY_EFFICIENT)
memory_efficient_load_state_dict = _loading_scaler(MEMORY_EFFICIENT)
amp_state_dict, amp_load_state_dict = _saving_scaler(AMP), _loading_scaler(AMP)
_fp16_state_dict, _fp16_load_state_dict = _saving_scaler(FP16), _loading_scaler(FP16)


def state_dict(self: Any) -> dict[str, Any]:
    """Return the optimizer's state with the float32 master weights of ``--fp16`` and ``--bf16``.

    Removes: a resumed half-precision run that drifts from the uninterrupted one, because fairseq saves the rounded model
    and rebuilds the masters from it. As part of the optimizer's state, the masters also reach the other workers.
    """
    return _fp16_state_dict(self) | {MASTERS: [master.data for master in _masters(self)]}


def load_state_dict(self: Any, state_dict: dict[str, Any], optimizer_overrides: Any = None) -> None:
    """Load the optimizer's state, with the master weights if the checkpoint has them."""
    _fp16_load_state_dict(self, state_dict, optimizer_overrides)
    saved = state_dict.get(MASTERS)
    masters = _masters(self)
    if saved is None or [m.shape for m in saved] != [m.shape for m in masters]:
        logger.warning(
            "the checkpoint holds no float32 master weights of this shape: training continues from the rounded "
            "weights and will differ a little from an uninterrupted run"
        )
        return
    with torch.no_grad():
        for master, value in zip(masters, saved, strict=True):
            master.copy_(value)
    self._sync_fp32_params_to_fp16()


def _masters(optimizer: Any) -> list[torch.Tensor]:
    masters = optimizer.fp32_params
    return list(masters.values()) if isinstance(masters, dict) else list(masters)
