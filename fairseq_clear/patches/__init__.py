"""Everything in fairseq that the plugin replaces, wraps or works around, in two tables.

Functions and classes of fairseq are replaced by name, once, and the originals are kept.
"""

import inspect
import logging
import sys
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

logger = logging.getLogger(__name__)

_originals: dict[str, Any] = {}
_installed: set[tuple[str, str]] = set()  # (module, which may be __main__; target or replacement)


@dataclass(frozen=True)
class Patch:
    """One row of the table of patches.

    Attributes:
        target: object to replace, as ``module:name`` or ``module:Class.name``; empty if ``replacement`` is a function that is
            only called once.
        replacement: function or class of this package, as ``module:name``.
        reason: the problem of fairseq that the patch solves.
        test: the test that fails without the patch.
    """

    target: str
    replacement: str
    reason: str
    test: str


# Test that fails without the function -> function that is called once -> the problem of fairseq that it solves.
CALLED = {
    "tests/patches/test_replacing.py": {
        "compatibility:silence_known_warnings": "warnings that a user cannot act on",
        "compatibility:allow_checkpoint_classes": "torch >= 2.6 does not load fairseq's checkpoints with weights_only",
        "compatibility:restore_numpy_compat": "numpy 2 lacks np.compat.long",
        "compatibility:stop_loading_at_exit": "a finished run may exit with code 134",
    },
    "tests/faults/test_literals.py": {
        "compatibility:evaluate_settings_as_literals": "fairseq passes settings of a checkpoint to eval",
    },
    "tests/patches/test_precision.py": {
        "precision:skip_overflows_on_cpu": "--fp16 on a CPU fails at the first overflow",
    },
}
# Test -> function or class of fairseq -> its replacement, and the problem that this solves.
REPLACED = {
    "tests/integration/test_command_lines.py": {
        "fairseq.optim.fp16_optimizer:_FP16OptimizerMixin.state_dict": (
            "precision:state_dict",
            "a run that resumes in half precision drifts from an uninterrupted one",
        ),
        "fairseq.optim.fp16_optimizer:_FP16OptimizerMixin.load_state_dict": (
            "precision:load_state_dict",
            "a run that resumes in half precision drifts from an uninterrupted one",
        ),
        "fairseq.models.distributed_fairseq_model:DistributedDataParallel": (
            "compatibility:any_device_ddp",
            "pytorch_ddp fails on several CPU workers",
        ),
        "fairseq.distributed.utils:call_main": (
            "startup:call_main",
            "torchrun on CPUs trains the same run once per worker",
        ),
    },
    "tests/patches/test_precision.py": {
        "fairseq.optim.amp_optimizer:AMPOptimizer.clip_grad_norm": (
            "precision:clip_grad_norm",
            "--amp makes a step although the norm of the gradients is not finite",
        ),
        "fairseq.optim.amp_optimizer:AMPOptimizer.step": (
            "precision:step",
            "--amp divides gradients by the loss scale twice",
        ),
    },
    "tests/patches/test_replacing.py": {
        "fairseq.distributed.utils:_broadcast_object_slow": (
            "compatibility:broadcast_object",
            "on torch >= 2.6 only the first worker can resume",
        ),
        "fairseq.utils:import_user_module": (
            "startup:import_user_module",
            "patches of fairseq_cli.train come too late if the plugin was imported first",
        ),
    },
    "tests/faults/test_checkpoint_files.py": {
        "fairseq.checkpoint_utils:load_checkpoint_to_cpu": (
            "checkpoint_files:read_checkpoint",
            "damaged files load; weights_only is off on older torch",
        ),
        "fairseq.checkpoint_utils:torch_persistent_save": (
            "checkpoint_files:write_whole",
            "a killed run leaves half a checkpoint; NaN weights are saved",
        ),
        "fairseq.file_io:PathManager.copy": (
            "checkpoint_files:copy_whole",
            "a killed run leaves half a checkpoint_last.pt",
        ),
    },
    "tests/faults/test_mistakes.py": {
        "fairseq.checkpoint_utils:verify_checkpoint_directory": (
            "checkpoint_files:verify_folder",
            "an unwritable --save-dir ends in a traceback",
        ),
        "fairseq.options:parse_args_and_arch": (
            "startup:parse_args_and_arch",
            "an unknown flag prints 173 lines of usage",
        ),
        "fairseq_cli.train:convert_namespace_to_omegaconf": (
            "startup:convert_namespace_to_omegaconf",
            "polynomial_decay without --total-num-update, and NaN as a value, end in tracebacks",
        ),
        "fairseq_cli.train:add_defaults": (
            "startup:add_defaults",
            "invalid settings are found late, in a traceback, or never",
        ),
        "fairseq_cli.hydra_train:add_defaults": ("startup:merge_defaults", "a misspelt setting ends in a traceback"),
    },
    "tests/faults/test_training.py": {
        "fairseq.checkpoint_utils:save_checkpoint": (
            "failures:save_checkpoint",
            "after a NaN score, fairseq treats any later score as the best",
        ),
        "fairseq.trainer:Trainer.train_step": (
            "failures:train_step",
            "if one worker runs out of memory, the others wait forever",
        ),
        "fairseq.trainer:Trainer.valid_step": (
            "failures:valid_step",
            "if one worker runs out of memory, the others wait forever",
        ),
        "fairseq.trainer:Trainer._log_oom": ("failures:log_oom", "a run that skips every batch never ends"),
        "fairseq.trainer:Trainer.load_checkpoint": (
            "failures:load_checkpoint",
            "a missing --restore-file starts a new run; a run with other settings resumes without notice",
        ),
        "fairseq.trainer:NanDetector": (
            "failures:ForwardNanDetector",
            "a NaN on one of two workers ends in StopIteration",
        ),
        "fairseq_cli.train:train": ("startup:train", "a finished run that is started again makes one more update"),
    },
    "tests/launch/test_preemption.py": {
        "fairseq_cli.train:validate_and_save": (
            "stopping:validate_and_save",
            "a signal loses all updates since the last checkpoint",
        ),
    },
    "tests/tasks/test_run_record.py": {
        "fairseq_cli.train:should_stop_early": (
            "stopping:should_stop_early",
            "a resumed run counts --patience from the beginning",
        ),
    },
}
PATCHES = (
    *(Patch("", function, why, test) for test, rows in CALLED.items() for function, why in rows.items()),
    *(Patch(target, new, why, test) for test, rows in REPLACED.items() for target, (new, why) in rows.items()),
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
    if target in _originals:
        return _originals[target]
    owner, name = _resolve(target, import_module(target.partition(":")[0]))
    return getattr(owner, name)


def install(patch: Patch) -> bool:
    """Install a patch: replace its target, or call its function. A second call does nothing.

    Returns:
        Whether the patch is in place. False for a target of a fairseq command that this process has not imported.
    """
    if not patch.target:
        if ("", patch.replacement) not in _installed:
            _installed.add(("", patch.replacement))
            _load(patch.replacement)()
        return True
    modules = _modules(patch.target.partition(":")[0])
    for module in modules:
        if (module.__name__, patch.target) in _installed:
            continue
        _installed.add((module.__name__, patch.target))
        replacement = _load(patch.replacement)
        owner, name = _resolve(patch.target, module)
        found = getattr(owner, name)
        if patch.target not in _originals:
            _originals[patch.target] = found
            if mismatch := signature_mismatch(patch):
                logger.warning("%s", mismatch)
        is_static = isinstance(inspect.getattr_static(owner, name), staticmethod)
        setattr(owner, name, staticmethod(replacement) if is_static else replacement)
    return bool(modules)


def is_installed(patch: Patch) -> bool:
    """Whether the patch is installed in this process; imports the target's module.

    Raises:
        AttributeError: fairseq has no such target.
    """
    if not patch.target:
        return ("", patch.replacement) in _installed
    owner, name = _resolve(patch.target, import_module(patch.target.partition(":")[0]))
    return getattr(owner, name) is _load(patch.replacement)


def signature_mismatch(patch: Patch) -> str:
    """Return a line if the target takes other parameters than its replacement, else an empty string.

    Classes, and replacements that take ``*args`` or ``**options``, are not compared.

    Raises:
        AttributeError: fairseq has no such target.
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


def _resolve(target: str, module: ModuleType) -> tuple[Any, str]:
    *owners, name = target.partition(":")[2].split(".")
    owner: Any = module
    for part in owners:
        owner = getattr(owner, part)
    return owner, name


def _load(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(import_module(f"fairseq_clear.patches.{module}"), attribute)
