"""Everything in fairseq that the plugin replaces, wraps or works around, in one table.

Functions and classes of fairseq are replaced by name, once, and the originals are kept.
"""

import inspect
import logging
import pkgutil
import sys
from dataclasses import dataclass
from functools import reduce
from importlib import import_module
from types import ModuleType
from typing import Any

logger = logging.getLogger(__name__)

_originals: dict[str, Any] = {}
_installed: set[tuple[str, str]] = set()  # (module, which may be __main__; target or replacement)


@dataclass(frozen=True)
class Patch:
    """One row of the table of patches."""

    target: str  # object to replace, as module:name or module:Class.name; empty if the replacement is only called, once
    replacement: str  # function or class of this package, as module:name
    reason: str  # the problem of fairseq that the patch solves
    test: str  # fails without the patch


_DRIFT = "a run that resumes in half precision drifts from an uninterrupted one"
_SCALE = "a resumed run raises its loss scale at another update"
AMP, FP16 = "fairseq.optim.amp_optimizer:AMPOptimizer", "fairseq.optim.fp16_optimizer:_FP16OptimizerMixin"
MEMORY_EFFICIENT = "fairseq.optim.fp16_optimizer:_MemoryEfficientFP16OptimizerMixin"
_SAVING, _UTILS = "fairseq.checkpoint_utils", "fairseq.distributed.utils"
_PLACE = "a run that resumes with another batch size loses its place in the epoch, or ends in a traceback"
# Test -> replacement -> target and reason, see Patch.
_ROWS = {
    "tests/patches/test_replacing.py": {
        "compatibility:silence_known_warnings": ("", "warnings that a user cannot act on"),
        "compatibility:allow_checkpoint_classes": ("", "torch >= 2.6 rejects fairseq's checkpoints"),
        "compatibility:restore_numpy_compat": ("", "numpy 2 lacks np.compat.long"),
        "compatibility:stop_loading_at_exit": ("", "a finished run may exit with code 134"),
        "compatibility:broadcast_object": (f"{_UTILS}:_broadcast_object_slow", "only the first worker can resume"),
        "startup:import_user_module": ("fairseq.utils:import_user_module", "commands imported later stay unpatched"),
    },
    "tests/patches/test_precision.py": {
        "precision:skip_overflows_on_cpu": ("", "--fp16 on a CPU fails at the first overflow"),
        "precision:take_norms_where_gradients_are": ("", "--cpu --clip-norm fails on a machine with a GPU"),
        "precision:clip_grad_norm": (f"{AMP}.clip_grad_norm", "--amp makes a step although a gradient is not finite"),
        "precision:step": (f"{AMP}.step", "--amp divides by the loss scale twice"),
        "precision:amp_init": (f"{AMP}.__init__", "--amp-init-scale and --amp-scale-window set something else"),
        "precision:amp_state_dict": (f"{AMP}.state_dict", _SCALE),
        "precision:amp_load_state_dict": (f"{AMP}.load_state_dict", _SCALE),
        "precision:memory_efficient_state_dict": (f"{MEMORY_EFFICIENT}.state_dict", _SCALE),
        "precision:memory_efficient_load_state_dict": (f"{MEMORY_EFFICIENT}.load_state_dict", _SCALE),
    },
    "tests/integration/test_command_lines.py": {
        "precision:state_dict": (f"{FP16}.state_dict", _DRIFT),
        "precision:load_state_dict": (f"{FP16}.load_state_dict", _DRIFT),
        "compatibility:any_device_ddp": (
            "fairseq.models.distributed_fairseq_model:DistributedDataParallel",
            "pytorch_ddp fails on several CPU workers",
        ),
        "startup:call_main": ("fairseq.distributed.utils:call_main", "torchrun on CPUs trains one run per worker"),
    },
    "tests/faults/test_literals.py": {
        "compatibility:evaluate_settings_as_literals": ("", "fairseq passes settings of a checkpoint to eval"),
    },
    "tests/faults/test_checkpoint_files.py": {
        "checkpoint_files:read_checkpoint": (f"{_SAVING}:load_checkpoint_to_cpu", "damaged or unsafe files load"),
        "checkpoint_files:write_whole": (
            "fairseq.checkpoint_utils:torch_persistent_save",
            "a killed run leaves half a checkpoint; NaN weights are saved",
        ),
        "checkpoint_files:copy_whole": ("fairseq.file_io:PathManager.copy", "a kill leaves half a checkpoint_last.pt"),
    },
    "tests/faults/test_mistakes.py": {
        "checkpoint_files:verify_folder": (
            "fairseq.checkpoint_utils:verify_checkpoint_directory",
            "an unwritable --save-dir ends in a traceback",
        ),
        "startup:parse_args_and_arch": ("fairseq.options:parse_args_and_arch", "an unknown flag prints pages of usage"),
        "startup:convert_namespace_to_omegaconf": (
            "fairseq_cli.train:convert_namespace_to_omegaconf",
            "polynomial_decay without --total-num-update, and NaN as a value, end in tracebacks",
        ),
        "startup:add_defaults": ("fairseq_cli.train:add_defaults", "invalid settings are found late, or never"),
        "startup:merge_defaults": ("fairseq_cli.hydra_train:add_defaults", "a misspelt setting ends in a traceback"),
    },
    "tests/faults/test_training.py": {
        "failures:save_checkpoint": ("fairseq.checkpoint_utils:save_checkpoint", "after a NaN, any score is the best"),
        "failures:train_step": ("fairseq.trainer:Trainer.train_step", "one worker without memory blocks the others"),
        "failures:valid_step": ("fairseq.trainer:Trainer.valid_step", "one worker without memory blocks the others"),
        "failures:log_oom": ("fairseq.trainer:Trainer._log_oom", "a run that skips every batch never ends"),
        "failures:load_checkpoint": (
            "fairseq.trainer:Trainer.load_checkpoint",
            "a missing --restore-file starts a new run; a run with other settings resumes without notice",
        ),
        "failures:ForwardNanDetector": ("fairseq.trainer:NanDetector", "a NaN on one worker ends in StopIteration"),
        "startup:train": ("fairseq_cli.train:train", "a finished run that is started again makes one more update"),
    },
    "tests/launch/test_preemption.py": {
        "stopping:validate_and_save": ("fairseq_cli.train:validate_and_save", "a signal loses all unsaved updates"),
    },
    "tests/tasks/test_run_record.py": {
        "stopping:should_stop_early": ("fairseq_cli.train:should_stop_early", "a resumed run counts --patience anew"),
        "stopping:epoch_state": ("fairseq.data.iterators:EpochBatchIterator.state_dict", _PLACE),
        "stopping:load_epoch_state": ("fairseq.data.iterators:EpochBatchIterator.load_state_dict", _PLACE),
    },
}
PATCHES = tuple(
    Patch(target, replacement, reason, test)
    for test, rows in _ROWS.items()
    for replacement, (target, reason) in rows.items()
)


def apply() -> None:
    """Install every patch; safe to call again. Patches of a fairseq command are installed once the command is imported."""
    import_fairseq()
    for patch in PATCHES:
        install(patch)


def import_fairseq() -> None:
    """Import fairseq, and leave the root logger as it was: a module of fairseq turns on the debug logs of all libraries."""
    if "fairseq" in sys.modules:
        return
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    import_module("fairseq")
    root.setLevel(level)
    root.handlers = handlers


def original(target: str) -> Any:
    """Return fairseq's own function or class of this name, unpatched."""
    return _originals[target] if target in _originals else pkgutil.resolve_name(target)


def install(patch: Patch) -> None:
    """Install a patch: replace its target, or call its function. A second call does nothing."""
    if not patch.target:
        if ("", patch.replacement) not in _installed:
            _installed.add(("", patch.replacement))
            _load(patch.replacement)()
        return
    for module in _modules(patch.target.partition(":")[0]):
        if (module.__name__, patch.target) in _installed:
            continue
        _installed.add((module.__name__, patch.target))
        replacement = _load(patch.replacement)
        *owners, name = patch.target.partition(":")[2].split(".")
        owner: Any = reduce(getattr, owners, module)
        found = getattr(owner, name)
        if patch.target not in _originals:
            _originals[patch.target] = found
            if mismatch := signature_mismatch(patch):
                logger.warning("%s", mismatch)
        is_static = isinstance(inspect.getattr_static(owner, name), staticmethod)
        setattr(owner, name, staticmethod(replacement) if is_static else replacement)


def is_installed(patch: Patch) -> bool:
    """Whether the patch is installed in this process; AttributeError if fairseq has no such target."""
    if not patch.target:
        return ("", patch.replacement) in _installed
    return pkgutil.resolve_name(patch.target) is _load(patch.replacement)


def signature_mismatch(patch: Patch) -> str:
    """Return a line if the target takes other parameters than its replacement, else an empty string.

    Classes, and replacements that take ``*args`` or ``**options``, are not compared.
    """
    if not patch.target or isinstance(stock := original(patch.target), type):
        return ""
    ours, theirs = (inspect.signature(function).parameters for function in (_load(patch.replacement), stock))
    if "options" in ours or list(ours) == list(theirs):
        return ""
    return (
        f"{patch.target} takes ({', '.join(theirs)}) in this version of fairseq, but ({', '.join(ours)}) in 0.12.3: its "
        "patch may not work"
    )


def _modules(name: str) -> list[ModuleType]:
    """Return the module of this name, and ``__main__`` if ``python -m`` runs it."""
    if not name.startswith("fairseq_cli."):
        return [import_module(name)]
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    found = [sys.modules[name]] if name in sys.modules else []
    return [*found, main] if main is not None and spec is not None and spec.name == name else found


def _load(name: str) -> Any:
    return pkgutil.resolve_name(f"fairseq_clear.patches.{name}")
